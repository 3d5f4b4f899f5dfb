"""Deployments: a model as it is served, and what follows from that: the page of the KV cache above all.

A ``Deployment`` says everything that decides a key. A ``Service`` is one as someone means it, with modes and limits
left open; on a target it stands for a deployment of each mode. A deployment file holds many.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from aotpack.documents import Node, parse_document, parse_toml
from aotpack.errors import DocumentError, ModelError, UsageError
from aotpack.models import DTYPES, Attention, Gdn, Model, MRope, Vision, load_model, presets
from aotpack.targets import DEVICES, Target

KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
PREFILLS = ("triton", "flashinfer")

_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model as it is served.

    Attributes:
        model: the model.
        tp: tensor parallel size.
        dtype: of activations, one of ``DTYPES``.
        kv_cache_dtype: of the KV cache, one of ``KV_CACHE_DTYPES``; "auto" is ``dtype``.
        ssm_dtype: of the recurrent state, one of ``DTYPES``, or "auto": the model's own, else ``dtype``.
        speculative_tokens: draft tokens of a step, 0 without speculation.
        max_num_seqs: the most requests of one step.
        max_num_batched_tokens: the most tokens of one step.
        max_model_len: the longest sequence; 0 is the model's own limit.
        prefix_caching: whether prefix caching is on, as it is by default; linear-attention models then keep
            their state aligned to blocks (vLLM, ``mamba_cache_mode`` "align").
        gdn_prefill: the back end of gated delta net prefill, one of ``PREFILLS``.
        pooling: whether the model only embeds or scores, and never decodes.
        vision_data_parallel: whether the vision tower runs whole on each rank (``mm_encoder_tp_mode`` "data").
        settings: values by name that only the serving machine fixes, where the user knows them.
    """

    model: Model
    tp: int = 1
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    ssm_dtype: str = "auto"
    speculative_tokens: int = 0
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 16384
    max_model_len: int = 0
    prefix_caching: bool = True
    gdn_prefill: str = "triton"
    pooling: bool = False
    vision_data_parallel: bool = False
    settings: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """``qwen3.5-27b tp4 bfloat16``, and what else is not as by default."""
        parts = [self.model.name, f"tp{self.tp}", self.dtype]
        for shown, text in (
            (self.kv_cache_dtype != "auto", f"kv-{self.kv_cache_dtype}"),
            (self.ssm_dtype != "auto", f"ssm-{self.ssm_dtype}"),
            (self.speculative_tokens, f"drafts-{self.speculative_tokens}"),
            (self.gdn_prefill != "triton", self.gdn_prefill),
            (not self.prefix_caching, "no-prefix-caching"),
            (self.pooling, "pooling"),
            (self.vision_data_parallel, "vision-data-parallel"),
        ):
            if shown:
                parts.append(text)
        return " ".join(parts)

    @property
    def q_heads(self) -> int:
        """Query heads of one rank."""
        return self.model.attention.heads // self.tp

    @property
    def kv_heads(self) -> int:
        """Key and value heads of one rank; a rank has at least one, then shared with others."""
        return max(1, self.model.attention.kv_heads // self.tp)

    @property
    def model_len(self) -> int:
        """The longest sequence served."""
        return self.max_model_len or self.model.max_positions

    @property
    def state_dtype(self) -> str:
        """The dtype of the recurrent state (vLLM, model_executor/models/config.py and layers/mamba/mamba_utils.py)."""
        own = self.model.gdn.state_dtype if self.model.gdn else ""
        return self.ssm_dtype if self.ssm_dtype != "auto" else own or self.dtype

    @property
    def kv_token_bytes(self) -> int:
        """Bytes that one token takes in one layer's KV cache on one rank."""
        element = _SIZES[self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype]
        return 2 * self.kv_heads * self.model.attention.head_dim * element

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution on one rank."""
        gdn = self.gdn
        return (2 * gdn.k_heads * gdn.k_dim + gdn.v_heads * gdn.v_dim) // self.tp

    @property
    def gdn(self) -> Gdn:
        """The gated delta net layers of a model that has them."""
        assert self.model.gdn is not None
        return self.model.gdn

    @property
    def state_bytes(self) -> int:
        """Bytes of one request's convolution and recurrent state in one layer on one rank.

        vLLM, model_executor/layers/mamba/mamba_utils.py, ``gated_delta_net_state_shape``: the convolution's
        state is in the KV cache's model dtype, with a row more for each draft token.
        """
        gdn = self.gdn
        conv = (gdn.conv_kernel - 1 + self.speculative_tokens) * self.conv_dim * _SIZES[self.dtype]
        return conv + gdn.v_heads // self.tp * gdn.v_dim * gdn.k_dim * _SIZES[self.state_dtype]

    @property
    def block_tokens(self) -> int:
        """Tokens of one KV cache block: as many as make a block hold the state.

        vLLM, platforms/interface.py, ``_align_hybrid_block_size``. Blocks are multiples of 16 tokens, and of 64
        where FlashInfer's prefill exports checkpoints from inside a chunk.
        """
        align = 64 if self.gdn_prefill == "flashinfer" and self.prefix_caching else 16
        return align * -(-self.state_bytes // (align * self.kv_token_bytes))

    @property
    def kv_page(self) -> int:
        """Bytes of one KV cache page, to which the state is padded: a constexpr stride of several kernels."""
        return self.block_tokens * self.kv_token_bytes

    def to_json(self) -> dict[str, Any]:
        """The deployment and every field of its model; ``from_json`` undoes it."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return document

    @classmethod
    def from_json(cls, node: Node) -> "Deployment":
        """The deployment that ``to_json`` spelled.

        Raises:
            DocumentError: a field is missing, unknown, or of the wrong kind; the message says where.
        """
        model = node.field("model")
        served = {name: value for name, value in node.value.items() if name not in ("model", "settings")}
        settings = tuple(_pairs(node.field("settings")))
        nested: dict[str, Any] = {
            name: kind(**_plain(model.field(name), kind)) if model.has(name) else None
            for name, kind in (("attention", Attention), ("gdn", Gdn), ("mrope", MRope), ("vision", Vision))
        }
        if nested["attention"] is None:
            raise model.field("attention").error("an object")
        plain = {name: value for name, value in model.value.items() if name not in nested}
        return cls(
            model=Model(**_plain(Node(plain, model.place), Model, without=nested), **nested),
            settings=settings,
            **_plain(Node(served, node.place), cls, without=("model", "settings")),
        )


def _plain(node: Node, kind: type, without: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass of numbers, strings, flags and tuples of numbers, from an object of just those."""
    types = {field.name: field.type for field in fields(kind) if field.name not in without}
    node.only(*types)
    return {name: _plain_value(node.field(name), type_) for name, type_ in types.items()}


def _pairs(node: Node) -> Iterator[tuple[str, int]]:
    for item in node.items():
        pair = list(item.items())
        if len(pair) != 2:  # noqa: PLR2004
            raise item.error("a name and a number")
        yield pair[0].text(), pair[1].integer()


def _plain_value(node: Node, type_: object) -> Any:
    if type_ is int:
        return node.integer()
    if type_ is bool:
        return node.boolean()
    if type_ is str:
        return node.string()
    if type_ is float:
        return node.number()
    return tuple(item.integer() for item in node.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A model as someone means to serve it: what is left open stands for every mode, or for vLLM's default.

    Attributes:
        model: the model.
        tp: tensor parallel size.
        dtype: of activations; "" is the model's own.
        kv_cache_dtype: as in ``Deployment``.
        ssm_dtype: as in ``Deployment``.
        speculative_tokens: as in ``Deployment``.
        max_num_seqs: as in ``Deployment``; 0 is vLLM's default on the target.
        max_num_batched_tokens: as in ``Deployment``; 0 is vLLM's default on the target.
        max_model_len: as in ``Deployment``.
        prefix_caching: as in ``Deployment``.
        gdn_prefill: "triton", "flashinfer", "auto" (what vLLM takes on the target), or "both": FlashInfer where
            the target has it, and Triton, to which vLLM falls back where FlashInfer is not installed.
        pooling: as in ``Deployment``.
        vision_data_parallel: as in ``Deployment``.
        settings: as in ``Deployment``.
    """

    model: Model
    tp: int = 1
    dtype: str = ""
    kv_cache_dtype: str = "auto"
    ssm_dtype: str = "auto"
    speculative_tokens: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_model_len: int = 0
    prefix_caching: bool = True
    gdn_prefill: str = "both"
    pooling: bool = False
    vision_data_parallel: bool = False
    settings: tuple[tuple[str, int], ...] = ()

    def deployments(self, target: Target) -> tuple[Deployment, ...]:
        """What a target can be serving then: a deployment for each mode that was left open."""
        return tuple(
            Deployment(
                model=self.model,
                tp=self.tp,
                dtype=self.dtype or self.model.dtype,
                kv_cache_dtype=self.kv_cache_dtype,
                ssm_dtype=self.ssm_dtype,
                speculative_tokens=self.speculative_tokens,
                max_num_seqs=requests,
                max_num_batched_tokens=tokens,
                max_model_len=self.max_model_len,
                prefix_caching=self.prefix_caching,
                gdn_prefill=prefill,
                pooling=self.pooling,
                vision_data_parallel=self.vision_data_parallel,
                settings=self.settings,
            )
            for requests, tokens in self._limits(target)
            for prefill in self._prefills(target)
        )

    def _limits(self, target: Target) -> list[tuple[int, int]]:
        limits = {
            (self.max_num_seqs or requests, self.max_num_batched_tokens or tokens)
            for requests, tokens in default_limits(target)
        }
        return sorted(limits)

    def _prefills(self, target: Target) -> tuple[str, ...]:
        if self.model.gdn is None or not flashinfer_prefills(self.model.gdn, target):
            return ("triton",)
        return {"both": PREFILLS, "auto": ("flashinfer",)}.get(self.gdn_prefill, (self.gdn_prefill,))


def default_limits(target: Target) -> tuple[tuple[int, int], ...]:
    """VLLM's default ``max_num_seqs`` and ``max_num_batched_tokens`` on the products of a target.

    vLLM, engine/arg_utils.py, ``get_batch_defaults``: by the device's memory, with A100 and GB10 in the small tier.
    Of the two defaults for tokens it is the offline engine's, the larger: what a server reaches is among it. One
    architecture may have products in both tiers.
    """
    small, large = (256, 8192), (1024, 16384)
    if target.arch in (80, 121):
        return (small,)
    if target.arch in _BOTH_TIERS:
        return (small, large)
    return (large,) if DEVICES[target.arch].memory >= 70 << 30 else (small,)


_BOTH_TIERS = (120,)
"""GeForce cards have less than 70 GiB, RTX PRO 6000 has more."""


def flashinfer_prefills(gdn: Gdn, target: Target) -> bool:
    """Whether vLLM would prefill with FlashInfer on a target where that is installed.

    vLLM, model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py, ``_resolve_gdn_prefill_backend``, with a CUDA 13
    runtime, which is what its wheels require.
    """
    return target.arch == 90 or (target.arch // 10 in (10, 12) and gdn.k_dim == 128)  # noqa: PLR2004


def make_services(models: Iterable[Model], tps: Iterable[int], **stated: Any) -> tuple[Service, ...]:
    """Every model at every tensor parallel size.

    Args:
        models: the models.
        tps: tensor parallel sizes.
        stated: further fields of ``Service``.

    Raises:
        ModelError: a model's heads cannot be split that way.
    """
    sizes = sorted(set(tps))
    services = []
    for model in models:
        for tp in sizes:
            if reason := misfit(model, tp):
                raise ModelError(f"{model.name}: {reason}; choose another --tp")
            services.append(Service(model=model, tp=tp, **stated))
    return tuple(services)


def load_services(path: Path) -> tuple[Service, ...]:
    """The services of a deployment file: TOML, or JSON for a name that ends in ``.json``.

    The file has a table for each deployment, whose fields are the command line's options; a list stands for each of
    its values::

        [[deployment]]
        model = "qwen3.5-27b"
        tp = [1, 2]
        kv-cache-dtype = "fp8"

    A model's path is relative to the file.

    Raises:
        ModelError: the file cannot be read, or a deployment in it is not one; the message says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    try:
        root = parse_document(text) if path.suffix == ".json" else parse_toml(text)
        tables = list(root.only("deployment").field("deployment").items())
        return tuple(service for table in tables for service in _read_services(table, path.parent))
    except (DocumentError, ModelError, UsageError) as error:
        raise ModelError(f"{path}: {error}") from None


def _read_services(table: Node, folder: Path) -> tuple[Service, ...]:
    stated: dict[str, Any] = {}
    readers = {
        "dtype": lambda node: node.one_of(*DTYPES),
        "kv-cache-dtype": lambda node: node.one_of(*KV_CACHE_DTYPES),
        "ssm-dtype": lambda node: node.one_of("auto", *DTYPES),
        "num-speculative-tokens": lambda node: node.integer(high=64),
        "max-num-seqs": lambda node: node.integer(low=1),
        "max-num-batched-tokens": lambda node: node.integer(low=1),
        "max-model-len": lambda node: node.integer(low=1),
        "prefix-caching": Node.boolean,
        "gdn-prefill": lambda node: node.one_of("both", "auto", *PREFILLS),
        "pooling": Node.boolean,
        "vision-data-parallel": Node.boolean,
    }
    table.only("model", "tp", "set", *readers)
    for name, read in readers.items():
        if table.has(name):
            field = name.replace("num-speculative-tokens", "speculative-tokens").replace("-", "_")
            stated[field] = read(table.field(name))
    if table.has("set"):
        stated["settings"] = tuple(sorted((name, value.integer()) for name, value in table.field("set").fields()))
    models = [load_model(_beside(node.text(), folder)) for node in _one_or_many(table.field("model"))]
    sizes = [node.integer(low=1, high=1024) for node in _one_or_many(table.field("tp"))] if table.has("tp") else [1]
    return make_services(models, sizes, **stated)


def _one_or_many(node: Node) -> Iterable[Node]:
    return node.items() if isinstance(node.value, list) else [node]


def _beside(model: str, folder: Path) -> str:
    path = folder / model
    return str(path) if path.exists() and model not in presets() else model


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
