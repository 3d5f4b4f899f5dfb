"""The command line: options in, one library call, report out; nothing else.

Exit codes: 0 done; 1 the work ran and found something, or some keys failed; 2 usage; 3 could not be done;
130 interrupted.
"""

import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from aotpack import __version__
from aotpack.deployments import KV_CACHE_DTYPES, PREFILLS, Service, load_services, make_services, misfit
from aotpack.errors import AotpackError, UsageError
from aotpack.models import DTYPES, load_model, presets
from aotpack.targets import Target, buildable_archs, parse_archs

if TYPE_CHECKING:
    from aotpack.build import Selection
    from aotpack.report import Words

_F = TypeVar("_F", bound=Callable[..., Any])

EXIT_CODES = """\b
Exit codes:
  0    done
  1    it ran, and found something or lacks some keys
  2    the command was not meant that way
  3    could not be done; one line says what, where, and what now
  130  interrupted; nothing half written is left
"""


class _Commands(click.Group):
    """The commands, and the one place where an error becomes text and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from aotpack.report import show_error

        try:
            return super().invoke(ctx)
        except UsageError as error:
            show_error(str(error))
            ctx.exit(2)
        except AotpackError as error:
            show_error(str(error))
            ctx.exit(3)
        except KeyboardInterrupt:
            show_error("interrupted; nothing half written is left")
            ctx.exit(130)


class _Archs(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
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


class _Sizes(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A comma list of tensor parallel sizes."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not a comma list of whole numbers such as 1,2,4,8", param, ctx)
        return tuple(int(part) for part in parts)


class _Model(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A preset's name, a config.json, or a directory that holds one."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(name) for name in presets() if name.startswith(incomplete)]


class _Minors(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
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


class _Size(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
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


class _Setting(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
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
        type=_Model(),
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
        type=_Sizes(),
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
        type=_Setting(),
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
        help="Worker processes. Default: AOTPACK_JOBS, else the cores of this machine.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and warnings."),
)


def _archs_option(
    text: str = "GPU architecture: sm90, sm_90, 90 or 9.0; a comma list, or repeated.", *, required: bool = False
) -> Callable[[_F], _F]:
    return click.option("--arch", "archs", type=_Archs(), multiple=True, required=required, metavar="ARCH", help=text)


def _selecting(command: _F) -> _F:
    """The options that say which keys: shared by the commands that enumerate them."""
    for option in reversed(_SELECTION):
        command = option(command)
    return command


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


def _select(archs: Sequence[tuple[Target, ...]], options: dict[str, Any], words: "Words") -> "Selection":
    """What the options select; what is cheap to refuse is refused before an engine is downloaded."""
    from aotpack.build import Selection
    from aotpack.engines import find_engine
    from aotpack.families import load_families, usable_families
    from aotpack.report import show_findings
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
        targets=_flatten(archs),
        families=tuple(family.name for family in families),
        services=services,
    )


def _flatten(archs: Sequence[tuple[Target, ...]]) -> tuple[Target, ...]:
    return tuple(sorted({target for part in archs for target in part}))


@click.group(cls=_Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aotpack")
def main() -> None:
    """Take the just-in-time compile out of LLM serving.

    Build a bundle of an engine's Triton kernels on a machine without a GPU, and install it into the Triton cache
    of the container that serves.

    \b
    Examples:
      aotpack build --arch sm90
      aotpack inspect aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst
      aotpack install aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst
    """


@main.command()
@_archs_option(required=True)
@_selecting
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The bundle's path, or a directory that gets it under its usual name. Default: here.",
)
@click.option(
    "--python",
    "minors",
    type=_Minors(),
    metavar="MINORS",
    help="Pythons to build native helpers for, a comma list such as 3.11,3.12, or none. Default: the one that runs "
    "this, where a C compiler and its headers are found.",
)
def build(archs: Sequence[tuple[Target, ...]], output: Path, minors: tuple[str, ...] | None, **options: Any) -> None:
    """Compile every kernel that the deployments can meet, and pack them.

    No GPU is needed, and no engine needs to be installed. What is not said by an option covers every mode: eager
    and compiled, both runners, both prefill back ends. Prints the bundle's path. Keys that cannot be compiled are
    named, the bundle says what it lacks, and the exit code is 1.

    Triton compiles small native helpers in C where it launches kernels. Those are built here for each Python asked
    for, so that whoever serves needs no C compiler. Kernels serve every Python; helpers just theirs.

    \b
    Examples:
      aotpack build --arch sm90
      aotpack build --arch sm90 --python 3.11,3.12
      aotpack build --arch sm90,sm100 --model qwen3.5-27b --tp 1,2,4,8 -o bundles/
      aotpack build --arch 9.0 --model ./my-model --kv-cache-dtype fp8 --num-speculative-tokens 2
      aotpack build --arch sm90 --deployments fleet.toml
    """
    from aotpack.build import build_bundle
    from aotpack.helpers import choose_interpreters
    from aotpack.pool import default_jobs
    from aotpack.report import Words, show_built, show_findings

    signal.signal(signal.SIGTERM, _terminated)
    with Words(quiet=options["quiet"]) as words:
        interpreters, findings = choose_interpreters(minors)
        show_findings(findings)
        selection = _select(archs, options, words)
        jobs = options["jobs"] or default_jobs()
        built = build_bundle(selection, output=output, jobs=jobs, tick=words.tick, interpreters=interpreters)
    show_built(built, words)
    sys.exit(1 if built.failures else 0)


def _terminated(number: int, frame: FrameType | None) -> None:
    """Unwind on SIGTERM as on Ctrl-C, so that workers end and nothing half written stays."""
    del frame
    sys.exit(128 + number)


@main.command()
@_archs_option(required=True)
@_selecting
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def keys(archs: Sequence[tuple[Target, ...]], as_json: bool, **options: Any) -> None:  # noqa: FBT001  # a click flag
    """List the compile keys of the deployments, without compiling.

    Each key comes with an input that reaches it.

    \b
    Examples:
      aotpack keys --arch sm90 --model qwen3-next-80b-a3b --tp 1,8
      aotpack keys --arch sm90 --family layernorm --json
    """
    from aotpack.build import enumerate_keys
    from aotpack.pool import default_jobs
    from aotpack.report import Words, show_keys

    with Words(quiet=options["quiet"]) as words:
        selection = _select(archs, options, words)
        jobs = min(options["jobs"] or default_jobs(), len(selection.services))
        enumeration = enumerate_keys(selection, jobs=jobs, tick=words.tick)
    show_keys(enumeration, words, as_json=as_json)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@_archs_option()
@_selecting
@click.option(
    "--recorded",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file of keys that a run met, in place of deployments; needs neither torch nor Triton.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def coverage(
    bundle: Path,
    archs: Sequence[tuple[Target, ...]],
    recorded: Path | None,
    as_json: bool,  # noqa: FBT001  # a click flag
    **options: Any,
) -> None:
    """Show which of the keys that deployments need BUNDLE holds, and which are missing.

    The architectures are the bundle's, unless --arch names some. The exit code is 1 where any key is missing.

    \b
    Examples:
      aotpack coverage bundle.tar.zst --model qwen3.5-27b --tp 4
      aotpack coverage bundle.tar.zst --deployments fleet.toml --json
      aotpack coverage bundle.tar.zst --recorded keys.jsonl
    """
    from aotpack.build import enumerate_keys
    from aotpack.bundle import open_bundle
    from aotpack.coverage import cover_deployments, cover_records
    from aotpack.pool import default_jobs
    from aotpack.record import read_records
    from aotpack.report import Words, show_coverage

    manifest = open_bundle(bundle).manifest
    if recorded is not None:
        found = cover_records(manifest, read_records(recorded))
    else:
        targets = [_flatten(archs) or manifest.targets]
        with Words(quiet=options["quiet"]) as words:
            selection = _select(targets, options, words)
            jobs = min(options["jobs"] or default_jobs(), len(selection.services))
            found = cover_deployments(manifest, enumerate_keys(selection, jobs=jobs, tick=words.tick))
    show_coverage(found, as_json=as_json)
    sys.exit(0 if found.complete else 1)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole manifest as JSON.")
def inspect(bundle: Path, as_json: bool) -> None:  # noqa: FBT001  # a click flag
    """Show what BUNDLE holds, reading its manifest alone.

    Needs neither torch nor Triton.

    \b
    Examples:
      aotpack inspect aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst
      aotpack inspect --json bundle.tar.zst | jq .manifest.toolchain
    """
    from aotpack.bundle import open_bundle
    from aotpack.report import show_bundle

    show_bundle(open_bundle(bundle), as_json=as_json)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The directory that gets the wheels. Default: here.",
)
@_archs_option("Only these architectures of the bundle.")
@click.option(
    "--python",
    "minors",
    type=_Minors(),
    metavar="MINORS",
    help="Pythons whose native helpers go in, a comma list such as 3.11,3.12, or none. Default: all of the bundle's.",
)
@click.option(
    "--max-size",
    type=_Size(),
    metavar="SIZE",
    help="Write nothing where a wheel would be larger: 100MB, 2GiB. PyPI takes 100MiB unless asked for more.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and warnings.")
def wheel(
    bundle: Path,
    output: Path,
    archs: Sequence[tuple[Target, ...]],
    minors: tuple[str, ...] | None,
    max_size: int | None,
    quiet: bool,  # noqa: FBT001  # a click flag
) -> None:
    """Make wheels that carry BUNDLE, for pip to install.

    aotpack.activate() finds and serves them in the process; nothing is laid into a cache. Needs neither torch nor
    Triton. A wheel is named after the engine and the architectures, and numbered after the releases of engine and
    Triton: 0.33.0.post30800 is for 0.33.0 with Triton 3.8.0. Kernels serve every Python; native helpers just theirs,
    so a bundle that has some makes a wheel for each Python. Prints the wheels' paths.

    \b
    Examples:
      aotpack wheel bundle.tar.zst
      aotpack wheel bundle.tar.zst --arch sm90 --python none -o dist/ --max-size 100MB
    """
    from aotpack.bundle import open_bundle
    from aotpack.report import Words, show_wheels
    from aotpack.wheel import write_wheels

    signal.signal(signal.SIGTERM, _terminated)
    with Words(quiet=quiet) as words:
        wheels = write_wheels(open_bundle(bundle), output, targets=_flatten(archs), minors=minors, max_size=max_size)
        show_wheels(wheels, words)


_cache_option = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Triton's cache directory. Default: TRITON_CACHE_DIR, else $TRITON_HOME/.triton/cache, else ~/.triton/cache.",
)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@_cache_option
@_archs_option("Only these architectures of the bundle.")
@click.option(
    "--engine",
    "spec",
    metavar="ENGINE",
    help="The engine that will serve, whose files the kernels are compared with: a directory, a wheel, or a release. "
    "Default: the one that is installed in this environment, if any.",
)
@click.option(
    "--other-ptxas",
    metavar="REASON",
    help="Install although the ptxas here is not the one that compiled; the reason is kept in the receipt.",
)
@click.option(
    "--libcuda-dir",
    "libcuda",
    multiple=True,
    metavar="DIR",
    help="Where the driver's libcuda.so.1 will be, as ldconfig -p names it; several directories joined by colons; "
    "repeatable for several machines. Default: TRITON_LIBCUDA_PATH, else where it is here, else the usual places.",
)
def install(
    bundle: Path,
    cache_dir: Path | None,
    archs: Sequence[tuple[Target, ...]],
    spec: str | None,
    other_ptxas: str | None,
    libcuda: tuple[str, ...],
) -> None:
    """Lay the kernels of BUNDLE into the Triton cache.

    Needs the Triton that will serve, and no GPU, no network, no compiler. Every digest is checked before anything
    is written; installing twice changes nothing. The engine's files are read, never imported: a kernel that stands
    in other lines gets the key that Triton will ask for, and one whose source differs is refused by name while the
    others are installed; the exit code is then 1. So it is for native helpers that this machine cannot use.

    \b
    Examples:
      aotpack install bundle.tar.zst
      aotpack install bundle.tar.zst --cache-dir /opt/triton-cache --arch sm90
      aotpack install bundle.tar.zst --engine /opt/vllm/lib/python3.12/site-packages
    """
    from aotpack.bundle import open_bundle
    from aotpack.engines import find_engine, installed_engine
    from aotpack.install import install_bundle
    from aotpack.report import Words, show_installed
    from aotpack.tritoncache import effective_directory

    signal.signal(signal.SIGTERM, _terminated)
    opened = open_bundle(bundle)
    engine = find_engine(spec, Words(quiet=False).say) if spec else installed_engine(opened.manifest.engine)
    installed = install_bundle(
        opened,
        effective_directory(cache_dir),
        targets=_flatten(archs),
        engine=engine,
        other_ptxas=other_ptxas,
        libcuda=libcuda,
    )
    show_installed(installed)
    sys.exit(1 if installed.refused else 0)


@main.command()
@click.argument("bundle")
@_cache_option
def uninstall(bundle: str, cache_dir: Path | None) -> None:
    """Take out what an install wrote, and nothing else.

    BUNDLE is the file's name, or the start of the bundle's digest. Files that another installed bundle shares
    stay, and so do files that are no longer what was installed; those are named, and the exit code is 1.

    \b
    Examples:
      aotpack uninstall 3f9c2a71d004
      aotpack uninstall bundle.tar.zst --cache-dir /opt/triton-cache
    """
    from aotpack.install import uninstall as remove
    from aotpack.receipts import find_receipt
    from aotpack.report import show_removed
    from aotpack.tritoncache import effective_directory

    removed = remove(find_receipt(effective_directory(cache_dir), bundle))
    show_removed(removed)
    sys.exit(1 if removed.findings else 0)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@_cache_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(bundle: Path | None, cache_dir: Path | None, as_json: bool) -> None:  # noqa: FBT001  # a click flag
    """Look at this machine: whether the kernels of BUNDLE, or those installed, would be found and could run.

    Shows the cache directory and who sets it, Triton, its assembler, Python, the engine, GPUs and their driver, what
    builds native helpers, and what is installed. Nothing of it has to be there; nothing is changed. The exit code is
    1 where something keeps kernels from being found or launched.

    \b
    Examples:
      aotpack doctor
      aotpack doctor bundle.tar.zst
      aotpack doctor --cache-dir /opt/triton-cache --json
    """
    from aotpack.bundle import open_bundle
    from aotpack.doctor import diagnose
    from aotpack.report import show_diagnosis

    diagnosis = diagnose(open_bundle(bundle) if bundle else None, cache_dir)
    show_diagnosis(diagnosis, as_json=as_json)
    sys.exit(1 if diagnosis.errors else 0)


@main.command()
@click.argument("bundle", required=False)
@_cache_option
@click.option("--fix", is_flag=True, help="Make what is broken in the cache directory whole, or take it out.")
@click.option(
    "--bundle",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --fix: where to take from what is broken. Default: where the bundle was when it was installed.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def verify(
    bundle: str | None,
    cache_dir: Path | None,
    fix: bool,  # noqa: FBT001  # a click flag
    source: Path | None,
    as_json: bool,  # noqa: FBT001  # a click flag
) -> None:
    """Check a bundle file, or what was installed.

    Given a BUNDLE file, every digest in it, its metadata, and the architecture of its machine code. Otherwise what
    the receipts of the cache directory say was installed; BUNDLE, a file's name or the start of a digest, limits it
    to one. Needs neither torch nor Triton. The exit code is 1 where anything is wrong.

    --fix lays anew what is broken, and writes the group files of a cache directory that was moved. What it cannot
    restore, since the bundle is not at hand, it takes out, so that Triton compiles it instead of failing on it.

    \b
    Examples:
      aotpack verify bundle.tar.zst
      aotpack verify
      aotpack verify --cache-dir /opt/triton-cache --fix
      aotpack verify --fix --bundle bundle.tar.zst
    """
    from aotpack.bundle import open_bundle
    from aotpack.report import show_checked, show_healed
    from aotpack.tritoncache import effective_directory
    from aotpack.verify import heal, verify_bundle, verify_cache

    signal.signal(signal.SIGTERM, _terminated)
    if source is not None and not fix:
        raise UsageError("--bundle says where --fix takes from what is broken; add --fix")
    if bundle is not None and cache_dir is None and not fix and Path(bundle).is_file():
        checked = verify_bundle(Path(bundle))
        show_checked(checked, as_json=as_json)
    elif fix:
        cache = effective_directory(cache_dir)
        healed = heal(cache, bundle=open_bundle(source) if source else None, wanted=bundle)
        checked = healed.after
        show_healed(healed, as_json=as_json)
    else:
        checked = verify_cache(effective_directory(cache_dir), bundle)
        show_checked(checked, as_json=as_json)
    sys.exit(1 if checked.findings else 0)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--record",
    "records",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="A file that a listener wrote in the serving process; repeatable.",
)
@click.option(
    "--entry",
    "entries",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="DIR",
    help="An entry's directory in Triton's cache; repeatable. Default: every entry of the cache that no install "
    "wrote, of the kernels in BUNDLE.",
)
@_cache_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain_miss(
    bundle: Path,
    records: tuple[Path, ...],
    entries: tuple[Path, ...],
    cache_dir: Path | None,
    as_json: bool,  # noqa: FBT001  # a click flag
) -> None:
    """Show why Triton compiled kernels although there is BUNDLE: the nearest entry, and the parts that differ.

    A record tells all. To have one, call in the serving process, before its first launch:
    from aotpack.listener import listen; listen("misses.jsonl"). An entry that a compile left in the cache tells less,
    and what it does not tell is named. The exit code is 1 where any miss is explained.

    \b
    Examples:
      aotpack explain-miss bundle.tar.zst --record misses.jsonl
      aotpack explain-miss bundle.tar.zst --cache-dir /opt/triton-cache
      aotpack explain-miss bundle.tar.zst --entry ~/.triton/cache/UVUNAE4RUWC7SJ2OCKRSPWR3MVWNVWA54PJVTIIZO7FRA3OBQPMQ
    """
    from aotpack.bundle import open_bundle
    from aotpack.misses import explain_misses
    from aotpack.report import show_misses
    from aotpack.tritoncache import effective_directory

    misses = explain_misses(open_bundle(bundle), records, entries, effective_directory(cache_dir))
    show_misses(misses, as_json=as_json)
    sys.exit(1 if misses else 0)
