"""Models: what decides the shapes in kernels.

A model is a Hugging Face ``config.json``, or a preset (``presets/*.json``) made of the same fields; only the
fields that families ask for are read.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

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
        conv_kernel: taps of the causal convolution.
        gate: the activation of the gated norm, "silu" or "sigmoid" (``output_gate_type``; vLLM takes
            "swish" for "silu", model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py).
        interleaved: whether the input projection interleaves q, k, v and z by key head (Qwen3-Next), rather
            than laying them end to end (Qwen3.5).
        state_dtype: of the recurrent state where the configuration says so (``mamba_ssm_dtype``), else "".
    """

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv_kernel: int
    gate: str
    interleaved: bool
    state_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MRope:
    """Rotary embedding with temporal, height and width sections.

    Attributes:
        sections: pairs of elements rotated by the temporal, height and width position.
        interleaved: whether the sections are interleaved rather than laid end to end.
    """

    sections: tuple[int, int, int]
    interleaved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """The vision tower, before tensor parallel.

    Attributes:
        hidden: elements of a patch's embedding.
        heads: attention heads.
        merge: patches of one token along each side (``spatial_merge_size``).
        positions: rows of the learned position table, or 0 where there is none (Qwen2.5-VL).
    """

    hidden: int
    heads: int
    merge: int
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a model's configuration says about shapes.

    Attributes:
        name: the preset's name, or the name of the directory that held the ``config.json``.
        model_type: as the configuration has it.
        dtype: of weights and activations, one of ``DTYPES``.
        hidden: elements of a token's hidden state.
        vocab: tokens of the vocabulary (``vocab_size``).
        max_positions: the longest sequence (``max_position_embeddings``).
        rotary_dim: leading elements of a head that are rotated.
        norm_epsilon: of the layers' RMS norms (``rms_norm_eps``).
        attention: its full attention layers.
        gdn: its gated delta net layers, if it has any.
        mrope: its multimodal rotary embedding, if it has one.
        vision: its vision tower, if it has one.
    """

    name: str
    model_type: str
    dtype: str
    hidden: int
    vocab: int
    max_positions: int
    rotary_dim: int
    norm_epsilon: float
    attention: Attention
    gdn: Gdn | None
    mrope: MRope | None
    vision: Vision | None


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
    hidden = text.field("hidden_size").integer(low=1)
    head_dim = text.field("head_dim").integer(low=1) if text.has("head_dim") else hidden // heads
    gated = text.field("attn_output_gate").boolean() if text.has("attn_output_gate") else True
    rope = next((text.field(field) for field in ("rope_parameters", "rope_scaling") if text.has(field)), None)
    return Model(
        name=name,
        model_type=model_type,
        dtype=_parse_dtype(text, root),
        hidden=hidden,
        vocab=text.field("vocab_size").integer(low=1),
        max_positions=text.field("max_position_embeddings").integer(low=1),
        rotary_dim=int(head_dim * _rotary_factor(text, rope)),
        norm_epsilon=text.field("rms_norm_eps").number() if text.has("rms_norm_eps") else 1e-6,
        attention=Attention(
            heads=heads,
            kv_heads=text.field("num_key_value_heads").integer(low=1),
            head_dim=head_dim,
            output_gate=gated and model_type in _GDN_TYPES,
        ),
        gdn=_parse_gdn(text, interleaved=model_type == "qwen3_next") if model_type in _GDN_TYPES else None,
        mrope=_parse_mrope(rope) if rope is not None else None,
        vision=_parse_vision(root.field("vision_config")) if root.has("vision_config") else None,
    )


def _parse_dtype(text: Node, root: Node) -> str:
    # transformers 5 writes "dtype", earlier releases "torch_dtype"; either may stand at the top or with the text.
    for node in (text, root):
        for field in ("dtype", "torch_dtype"):
            if node.has(field):
                return node.field(field).one_of(*DTYPES)
    return text.field("dtype").one_of(*DTYPES)


def _parse_gdn(text: Node, *, interleaved: bool) -> Gdn:
    gate = text.field("output_gate_type").one_of("silu", "swish", "sigmoid") if text.has("output_gate_type") else "silu"
    return Gdn(
        k_heads=text.field("linear_num_key_heads").integer(low=1),
        v_heads=text.field("linear_num_value_heads").integer(low=1),
        k_dim=text.field("linear_key_head_dim").integer(low=1),
        v_dim=text.field("linear_value_head_dim").integer(low=1),
        conv_kernel=text.field("linear_conv_kernel_dim").integer(low=2),
        gate="silu" if gate == "swish" else gate,
        interleaved=interleaved,
        state_dtype=text.field("mamba_ssm_dtype").one_of(*DTYPES) if text.has("mamba_ssm_dtype") else "",
    )


def _rotary_factor(text: Node, rope: Node | None) -> float:
    for node in (rope, text):
        if node is not None and node.has("partial_rotary_factor"):
            return node.field("partial_rotary_factor").number()
    return 1.0


def _parse_mrope(rope: Node) -> MRope | None:
    # What makes a rotary embedding multimodal for vLLM is the presence of sections, whatever its type is called
    # (model_executor/layers/rotary_embedding/__init__.py, get_rope).
    if not rope.has("mrope_section"):
        return None
    sections = tuple(section.integer() for section in rope.field("mrope_section").items())
    if len(sections) != 3:  # noqa: PLR2004
        raise rope.field("mrope_section").error("three sections")
    return MRope(
        sections=(sections[0], sections[1], sections[2]),
        interleaved=rope.field("mrope_interleaved").boolean() if rope.has("mrope_interleaved") else False,
    )


def _parse_vision(vision: Node) -> Vision:
    # Qwen2.5-VL's published files leave out what equals the defaults of its configuration class in transformers.
    defaults = {"num_heads": 16, "spatial_merge_size": 2}
    counts = {
        field: vision.field(field).integer(low=1) if vision.has(field) else default
        for field, default in defaults.items()
    }
    return Vision(
        hidden=vision.field("hidden_size").integer(low=1),
        heads=counts["num_heads"],
        merge=counts["spatial_merge_size"],
        positions=vision.field("num_position_embeddings").integer() if vision.has("num_position_embeddings") else 0,
    )
