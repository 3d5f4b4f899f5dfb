"""Options that several commands have, and the types of their values."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from aotpack.deployments import KV_CACHE_DTYPES, PREFILLS, Service, load_services, make_services, misfit
from aotpack.errors import UsageError
from aotpack.models import DTYPES, load_model, presets
from aotpack.targets import Target, buildable_archs, parse_archs

if TYPE_CHECKING:
    from aotpack.build import Selection
    from aotpack.compilecache import CompileCache
    from aotpack.findings import Finding
    from aotpack.pool import Recruit
    from aotpack.report.words import Words

_F = TypeVar("_F", bound=Callable[..., Any])


class Archs(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """One architecture or a comma list of them, in any of their spellings."""

    name = "arch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Target, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_archs([value])
        except UsageError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        names = [f"sm{arch}" for arch in buildable_archs()]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class Sizes(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A comma list of tensor parallel sizes."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not a comma list of whole numbers such as 1,2,4,8", param, ctx)
        return tuple(int(part) for part in parts)


class Model(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A preset's name, a config.json, or a directory that holds one."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(name) for name in presets() if name.startswith(incomplete)]


class Minors(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A comma list of Python minors, or none."""

    name = "minors"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if parts == ["none"]:
            return ()
        if not all(re.fullmatch(r"3\.\d{1,2}", part, re.ASCII) for part in parts):
            self.fail(f"{value!r} is not a comma list of Python releases such as 3.11,3.12, nor none", param, ctx)
        return tuple(dict.fromkeys(parts))


class Size(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A size of a file in bytes: ``100MB``, ``2GiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*(?:([KMG])(I?))?B?", str(value).strip().upper(), re.ASCII)
        if match is None:
            self.fail(f"{value!r} is not a size such as 100MB or 2GiB", param, ctx)
        number, unit, binary = match.groups()
        factors = {None: 0, "K": 1, "M": 2, "G": 3}
        return int(number) * int((1024 if binary else 1000) ** factors[unit])


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A day, of which the beginning in UTC counts, or a moment in UTC."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value) if "T" in str(value) else f"{value}T00:00:00Z"
        try:
            return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        except ValueError:
            self.fail(f"{value!r} is neither a day nor a moment in UTC: 2027-06-30, 2027-06-30T12:00:00Z", param, ctx)


class Setting(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """NAME=VALUE, a value that only the serving machine fixes."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, _, number = str(value).partition("=")
        if not name or not number.isdecimal():
            self.fail(f"{value!r} is not NAME=VALUE with a whole number", param, ctx)
        return name, int(number)


_SELECTION = (
    click.option(
        "--engine",
        metavar="ENGINE",
        help="vllm (installed), vllm==0.33.0 (downloaded once), a wheel, or a directory. "
        "Default: vllm if installed, else the newest release known.",
    ),
    click.option(
        "--model",
        "models",
        type=Model(),
        multiple=True,
        metavar="MODEL",
        help="A preset's name, a config.json, or a directory that holds one; repeatable. Default: all presets.",
    ),
    click.option(
        "--deployments",
        "file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="A TOML or JSON file of deployments, in place of --model and the options on how it is served.",
    ),
    click.option(
        "--tp",
        type=Sizes(),
        default="1",
        show_default=True,
        metavar="SIZES",
        help="Tensor parallel sizes, a comma list. Without --model, presets that a size does not fit are left out.",
    ),
    click.option("--dtype", type=click.Choice(DTYPES), help="Of activations. Default: each model's own."),
    click.option(
        "--kv-cache-dtype",
        type=click.Choice(KV_CACHE_DTYPES),
        default="auto",
        show_default=True,
        help="Of the KV cache.",
    ),
    click.option(
        "--ssm-dtype",
        type=click.Choice(("auto", *DTYPES)),
        default="auto",
        show_default=True,
        help="Of the recurrent state.",
    ),
    click.option(
        "--num-speculative-tokens",
        "speculative_tokens",
        type=click.IntRange(0, 64),
        default=0,
        show_default=True,
        help="Draft tokens of a step.",
    ),
    click.option(
        "--max-num-seqs",
        type=click.IntRange(min=1),
        help="Requests of a step. Default: vLLM's own on the architecture.",
    ),
    click.option(
        "--max-num-batched-tokens",
        type=click.IntRange(min=1),
        help="Tokens of a step. Default: vLLM's own on the architecture.",
    ),
    click.option("--max-model-len", type=click.IntRange(min=1), help="Longest sequence. Default: the model's own."),
    click.option(
        "--prefix-caching/--no-prefix-caching", default=True, show_default=True, help="Whether prefix caching is on."
    ),
    click.option(
        "--gdn-prefill",
        type=click.Choice(("both", "auto", *PREFILLS)),
        default="both",
        show_default=True,
        help="Back end of gated delta net prefill; auto is what vLLM takes where FlashInfer is installed.",
    ),
    click.option("--pooling", is_flag=True, help="For embedding and scoring alone."),
    click.option("--vision-data-parallel", is_flag=True, help="The vision tower runs whole on each rank."),
    click.option(
        "--set",
        "settings",
        type=Setting(),
        multiple=True,
        metavar="NAME=VALUE",
        help="A value that only the serving machine fixes, as the findings name it; repeatable.",
    ),
    click.option(
        "--family",
        "families",
        multiple=True,
        metavar="NAME",
        help="Only these families of kernels; repeatable. Default: all.",
    ),
    click.option(
        "-j",
        "--jobs",
        type=click.IntRange(min=1),
        help="Worker processes. Default: AOTPACK_JOBS, else what cores and memory allow, or a container's share.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and warnings."),
)


def archs_option(
    text: str = "GPU architecture: sm90, sm_90, 90 or 9.0; a comma list, or repeated.", *, required: bool = False
) -> Callable[[_F], _F]:
    """The option that names architectures; ``flatten`` makes one list of what it gives."""
    return click.option("--arch", "archs", type=Archs(), multiple=True, required=required, metavar="ARCH", help=text)


_CACHING = (
    click.option(
        "--compile-cache/--no-compile-cache",
        default=True,
        help="Whether what earlier builds found out is used again, and this one's kept. The result is the same.",
    ),
    click.option(
        "--cache-size",
        type=Size(),
        default="4GiB",
        show_default=True,
        metavar="SIZE",
        envvar="AOTPACK_CACHE_SIZE",
        help="What a build leaves in the compile cache at most. Also: AOTPACK_CACHE_SIZE.",
    ),
)


def _with(options: Sequence[Callable[[_F], _F]], command: _F) -> _F:
    """A command with more options, which its help shows in their order."""
    for option in reversed(options):
        command = option(command)
    return command


def caching(command: _F) -> _F:
    """The options that say what of earlier work is used; ``compile_cache`` makes a cache of them."""
    return _with(_CACHING, command)


def selecting(command: _F) -> _F:
    """The options that say which keys: shared by the commands that enumerate them."""
    return _with(_SELECTION, command)


_STATED = (
    "dtype",
    "kv_cache_dtype",
    "ssm_dtype",
    "speculative_tokens",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "prefix_caching",
    "gdn_prefill",
    "pooling",
    "vision_data_parallel",
)


def _services(options: dict[str, Any]) -> tuple[Service, ...]:
    """What the options say is served."""
    if options["file"] is not None:
        if options["models"]:
            raise UsageError("--deployments names its own models; leave out --model")
        return load_services(options["file"])
    stated = {name: options[name] for name in _STATED if options[name] is not None}
    stated["settings"] = tuple(sorted(options["settings"]))
    if options["models"]:
        return make_services([load_model(model) for model in options["models"]], options["tp"], **stated)
    every = [load_model(name) for name in presets()]
    return tuple(
        service
        for size in options["tp"]
        for service in make_services([model for model in every if not misfit(model, size)], [size], **stated)
    )


def select(archs: Sequence[tuple[Target, ...]], options: dict[str, Any], words: "Words") -> "Selection":
    """What the options select; what is cheap to refuse is refused before an engine is downloaded."""
    from aotpack.build import Selection
    from aotpack.engines import find_engine
    from aotpack.families import load_families, usable_families
    from aotpack.report.words import show_findings
    from aotpack.toolchain import require_compiler

    require_compiler()
    services = _services(options)
    if options["families"]:
        families = load_families(options["families"])
    else:
        families, findings = usable_families()
        show_findings(findings)
    return Selection(
        engine=find_engine(options["engine"], words.say),
        targets=flatten(archs),
        families=tuple(family.name for family in families),
        services=services,
    )


def compile_cache(options: dict[str, Any]) -> "CompileCache | None":
    """The user's compile cache, or None where the options say to go without."""
    from aotpack.compilecache import CompileCache
    from aotpack.engines import cache_root

    if not options["compile_cache"] or not options["cache_size"]:
        return None
    return CompileCache(root=cache_root() / "compiles", limit=options["cache_size"])


@contextmanager
def executing(executor: str, words: "Words") -> "Iterator[Recruit | None]":
    """Who compiles while the block lasts, as ``--executor`` names them; None means this machine's own processes."""
    if executor == "local":
        yield None
        return
    from aotpack.cluster import connected
    from aotpack.report.words import show_findings

    refused: list[Finding] = []
    try:
        with connected(executor, refused, words.say) as recruit:
            yield recruit
    finally:
        show_findings(refused)


def flatten(archs: Sequence[tuple[Target, ...]]) -> tuple[Target, ...]:
    """The targets that the repeated comma lists name, each once, ascending."""
    return tuple(sorted({target for part in archs for target in part}))


cache_option = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Triton's cache directory. Default: TRITON_CACHE_DIR, else $TRITON_HOME/.triton/cache, else ~/.triton/cache.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


_TRUST = (
    click.option(
        "--require-signature",
        "required",
        is_flag=True,
        help="Refuse what no trusted key has signed. Keys are those of the policies here (see the README, Trust), or "
        "of --trusted-key.",
    ),
    click.option(
        "--trusted-key",
        "trusted",
        type=click.Path(path_type=Path, dir_okay=False),
        multiple=True,
        metavar="FILE",
        help="A public key that is trusted; a signature by one of them is required. Repeatable.",
    ),
)

signature_option = click.option(
    "--signature",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The bundle's signatures. Default: BUNDLE.sig, if it is there.",
)


def trusting(command: _F) -> _F:
    """The options that demand signatures, beyond what the policies of the machine do."""
    return _with(_TRUST, command)


def terminated(number: int, frame: FrameType | None) -> None:
    """Unwind on SIGTERM as on Ctrl-C, so that workers end and nothing half written stays."""
    del frame
    sys.exit(128 + number)
