"""Models and deployments: what decides the shapes in kernels.

A model is a Hugging Face ``config.json``, or a preset (``presets/*.json``) made of the same fields; only the
fields that families ask for are read. A deployment is a model as it is served: tensor parallel size and dtype.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from aotpack.documents import Node, parse_document
from aotpack.errors import DocumentError, ModelError, UsageError

DTYPES = ("bfloat16", "float16", "float32")

_GDN_TYPES = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_VL_TYPES = ("qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen2_5_vl", "qwen2_5_vl_text")
MODEL_TYPES = _GDN_TYPES + _VL_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Full attention: head counts before tensor parallel, and the size of one head.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: elements of one head.
        output_gate: whether the query projection carries a gate beside the queries (``attn_output_gate``).
    """

    heads: int
    kv_heads: int
    head_dim: int
    output_gate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gdn:
    """The gated delta net layers, before tensor parallel.

    Attributes:
        k_heads: key heads.
        v_heads: value heads.
        k_dim: elements of a key head.
        v_dim: elements of a value head; also the width of the gated norm.
        gate: the activation of the gated norm, "silu" or "sigmoid" (``output_gate_type``; vLLM takes
            "swish" for "silu", model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py).
    """

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    gate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MRope:
    """Rotary embedding with temporal, height and width sections.

    Attributes:
        sections: pairs of elements rotated by the temporal, height and width position.
        interleaved: whether the sections are interleaved rather than laid end to end.
        rotary_dim: leading elements of a head that are rotated.
    """

    sections: tuple[int, int, int]
    interleaved: bool
    rotary_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a model's configuration says about shapes.

    Attributes:
        name: the preset's name, or the name of the directory that held the ``config.json``.
        model_type: as the configuration has it.
        dtype: of weights and activations, one of ``DTYPES``.
        attention: its full attention layers.
        gdn: its gated delta net layers, if it has any.
        mrope: its multimodal rotary embedding, if it has one.
    """

    name: str
    model_type: str
    dtype: str
    attention: Attention
    gdn: Gdn | None
    mrope: MRope | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model as it is served.

    Attributes:
        model: the model.
        tp: tensor parallel size.
        dtype: of activations, one of ``DTYPES``.
        max_num_batched_tokens: the largest number of tokens in one step.
    """

    model: Model
    tp: int = 1
    dtype: str = "bfloat16"
    max_num_batched_tokens: int = 8192

    def __str__(self) -> str:
        """``qwen3.5-27b tp4 bfloat16``."""
        return f"{self.model.name} tp{self.tp} {self.dtype}"

    @property
    def q_heads(self) -> int:
        """Query heads of one rank."""
        return self.model.attention.heads // self.tp

    @property
    def kv_heads(self) -> int:
        """Key and value heads of one rank; a rank has at least one, then shared with others."""
        return max(1, self.model.attention.kv_heads // self.tp)

    def to_json(self) -> dict[str, Any]:
        """The deployment and every field of its model, for manifests."""
        return asdict(self)


def presets() -> tuple[str, ...]:
    """The names of the presets, in order."""
    folder = files("aotpack") / "presets"
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def load_model(spec: str) -> Model:
    """The model of a preset's name, a ``config.json``, or a directory that holds one.

    Raises:
        UsageError: neither a preset nor something on disk.
        ModelError: the configuration cannot be read, lacks a field, or is of a type without these kernels.
    """
    path = Path(spec)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ModelError(f"{spec}: no config.json in this directory")
    if path.is_file():
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        return _read_model(name, _read_text(path), str(path))
    if spec not in presets():
        raise UsageError(
            f"{spec!r} is neither a preset nor a config.json nor a directory that holds one; "
            f"presets are {', '.join(presets())}"
        )
    text = (files("aotpack") / "presets" / f"{spec}.json").read_text(encoding="utf-8")
    return _read_model(spec, text, f"preset {spec}")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


def _read_model(name: str, text: str, origin: str) -> Model:
    try:
        return _parse_model(name, parse_document(text))
    except DocumentError as error:
        raise ModelError(f"{origin}: {error}; aotpack needs this field of a Hugging Face config.json") from None


def _parse_model(name: str, root: Node) -> Model:
    model_type = root.field("model_type").text()
    if model_type not in MODEL_TYPES:
        raise root.field("model_type").error("one of " + ", ".join(MODEL_TYPES))
    text = root.field("text_config") if root.has("text_config") else root
    heads = text.field("num_attention_heads").integer(low=1)
    if text.has("head_dim"):
        head_dim = text.field("head_dim").integer(low=1)
    else:
        head_dim = text.field("hidden_size").integer(low=1) // heads
    attention = Attention(
        heads=heads,
        kv_heads=text.field("num_key_value_heads").integer(low=1),
        head_dim=head_dim,
        output_gate=model_type in _GDN_TYPES
        and (text.field("attn_output_gate").boolean() if text.has("attn_output_gate") else True),
    )
    return Model(
        name=name,
        model_type=model_type,
        dtype=_parse_dtype(text, root),
        attention=attention,
        gdn=_parse_gdn(text) if model_type in _GDN_TYPES else None,
        mrope=_parse_mrope(text, head_dim),
    )


def _parse_dtype(text: Node, root: Node) -> str:
    # transformers 5 writes "dtype", earlier releases "torch_dtype"; either may stand at the top or with the text.
    for node in (text, root):
        for field in ("dtype", "torch_dtype"):
            if node.has(field):
                return node.field(field).one_of(*DTYPES)
    return text.field("dtype").one_of(*DTYPES)


def _parse_gdn(text: Node) -> Gdn:
    gate = text.field("output_gate_type").one_of("silu", "swish", "sigmoid") if text.has("output_gate_type") else "silu"
    return Gdn(
        k_heads=text.field("linear_num_key_heads").integer(low=1),
        v_heads=text.field("linear_num_value_heads").integer(low=1),
        k_dim=text.field("linear_key_head_dim").integer(low=1),
        v_dim=text.field("linear_value_head_dim").integer(low=1),
        gate="silu" if gate == "swish" else gate,
    )


def _parse_mrope(text: Node, head_dim: int) -> MRope | None:
    # What makes a rotary embedding multimodal for vLLM is the presence of sections, whatever its type is called
    # (model_executor/layers/rotary_embedding/__init__.py, get_rope).
    for field in ("rope_parameters", "rope_scaling"):
        if text.has(field) and text.field(field).has("mrope_section"):
            rope = text.field(field)
            break
    else:
        return None
    sections = tuple(section.integer() for section in rope.field("mrope_section").items())
    if len(sections) != 3:  # noqa: PLR2004
        raise rope.field("mrope_section").error("three sections")
    factor = 1.0
    for node in (text, rope):
        if node.has("partial_rotary_factor"):
            factor = node.field("partial_rotary_factor").number()
    return MRope(
        sections=(sections[0], sections[1], sections[2]),
        interleaved=rope.field("mrope_interleaved").boolean() if rope.has("mrope_interleaved") else False,
        rotary_dim=int(head_dim * factor),
    )


def make_deployments(models: Iterable[Model], tps: Iterable[int], dtype: str | None = None) -> tuple[Deployment, ...]:
    """Every model at every tensor parallel size.

    Args:
        models: the models.
        tps: tensor parallel sizes.
        dtype: of activations; None takes each model's own.

    Raises:
        ModelError: a model's heads cannot be split that way.
    """
    sizes = sorted(set(tps))
    deployments = []
    for model in models:
        for tp in sizes:
            if reason := misfit(model, tp):
                raise ModelError(f"{model.name}: {reason}; choose another --tp")
            deployments.append(Deployment(model=model, tp=tp, dtype=dtype or model.dtype))
    return tuple(deployments)


def misfit(model: Model, tp: int) -> str:
    """Why the model's heads cannot be split over ``tp`` ranks, or "" where they can."""
    split = {"num_attention_heads": model.attention.heads}
    if model.gdn is not None:
        split |= {"linear_num_key_heads": model.gdn.k_heads, "linear_num_value_heads": model.gdn.v_heads}
    for field, count in split.items():
        if count % tp:
            return f"{field} is {count} and cannot be split over a tensor parallel size of {tp}"
    kv_heads = model.attention.kv_heads
    if kv_heads % tp and tp % kv_heads:
        return f"num_key_value_heads is {kv_heads}, neither a multiple nor a divisor of a tensor parallel size of {tp}"
    return ""


def canonical_deployments(deployments: Iterable[Deployment]) -> tuple[Deployment, ...]:
    """The same deployments once each, in an order that does not depend on how they were given."""
    return tuple(sorted(set(deployments), key=lambda item: (str(item), json.dumps(item.to_json(), sort_keys=True))))
