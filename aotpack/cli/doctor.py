"""Commands that answer why a machine does not serve kernels."""

import sys
from pathlib import Path

import click

from aotpack.cli.options import cache_option, json_option


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@cache_option
@json_option
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
    from aotpack.report.doctor import show_diagnosis

    diagnosis = diagnose(open_bundle(bundle) if bundle else None, cache_dir)
    show_diagnosis(diagnosis, as_json=as_json)
    sys.exit(1 if diagnosis.errors else 0)


@click.command()
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
@cache_option
@json_option
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
    from aotpack.cachedirectory import effective_directory
    from aotpack.misses import explain_misses
    from aotpack.report.doctor import show_misses

    misses = explain_misses(open_bundle(bundle), records, entries, effective_directory(cache_dir))
    show_misses(misses, as_json=as_json)
    sys.exit(1 if misses else 0)
