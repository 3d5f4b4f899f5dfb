"""Commands that trace an engine: what a build machine runs."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from aotpack.cli.options import (
    Minors,
    archs_option,
    caching,
    compile_cache,
    executing,
    flatten,
    json_option,
    select,
    selecting,
    terminated,
)
from aotpack.targets import Target


@click.command()
@archs_option(required=True)
@selecting
@caching
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
    type=Minors(),
    metavar="MINORS",
    help="Pythons to build native helpers for, a comma list such as 3.11,3.12, or none. Default: the one that runs "
    "this, where a C compiler and its headers are found.",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Serve on this GPU alone, named as its driver does ('NVIDIA H200'); repeatable. Of autotuned kernels only the "
    "fastest configurations are packed then, where they were measured. Default: all configurations.",
)
@click.option(
    "--tuning",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="A directory of results that aotpack tune has written. Default: those that come with aotpack.",
)
@click.option(
    "--executor",
    default="local",
    show_default=True,
    metavar="WHERE",
    help="Who compiles: local, or dask://HOST:PORT, the workers of a Dask cluster.",
)
def build(
    archs: Sequence[tuple[Target, ...]],
    output: Path,
    minors: tuple[str, ...] | None,
    devices: tuple[str, ...],
    tuning: Path | None,
    executor: str,
    **options: Any,
) -> None:
    """Compile every kernel that the deployments can meet, and pack them.

    No GPU is needed, and no engine needs to be installed. What is not said by an option covers every mode: eager
    and compiled, both runners, both prefill back ends. Prints the bundle's path. Keys that cannot be compiled are
    named, the bundle says what it lacks, and the exit code is 1.

    Triton compiles small native helpers in C where it launches kernels. Those are built here for each Python asked
    for, so that whoever serves needs no C compiler. Kernels serve every Python; helpers just theirs.

    What is known to be the fastest configuration of an autotuned kernel on a GPU rides along, so that nothing is
    measured there. With --device the slower ones are left out.

    \b
    Examples:
      aotpack build --arch sm90
      aotpack build --arch sm90 --python 3.11,3.12
      aotpack build --arch sm90,sm100 --model qwen3.5-27b --tp 1,2,4,8 -o bundles/
      aotpack build --arch 9.0 --model ./my-model --kv-cache-dtype fp8 --num-speculative-tokens 2
      aotpack build --arch sm90 --deployments fleet.toml
      aotpack build --arch sm90 --device 'NVIDIA H200'
      aotpack build --arch sm90,sm100 --executor dask://scheduler:8786
    """
    from aotpack.build import build_bundle
    from aotpack.helpers import choose_interpreters
    from aotpack.pool import default_jobs
    from aotpack.report.build import show_built
    from aotpack.report.words import Words, show_findings

    signal.signal(signal.SIGTERM, terminated)
    with Words(quiet=options["quiet"]) as words, executing(executor, words) as recruit:
        interpreters, findings = choose_interpreters(minors)
        show_findings(findings)
        selection = select(archs, options, words)
        built = build_bundle(
            selection,
            output=output,
            jobs=options["jobs"] or default_jobs(),
            tick=words.tick,
            interpreters=interpreters,
            tuning=tuning,
            devices=devices,
            cache=compile_cache(options),
            recruit=recruit,
        )
    show_built(built, words)
    sys.exit(1 if built.failures else 0)


@click.command()
@archs_option(required=True)
@selecting
@caching
@json_option
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
    from aotpack.report.build import show_keys
    from aotpack.report.words import Words

    with Words(quiet=options["quiet"]) as words:
        selection = select(archs, options, words)
        jobs = min(options["jobs"] or default_jobs(), len(selection.services))
        enumeration = enumerate_keys(selection, jobs=jobs, tick=words.tick, cache=compile_cache(options))
    show_keys(enumeration, words, as_json=as_json)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@archs_option()
@selecting
@caching
@click.option(
    "--recorded",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file of keys that a run met, in place of deployments; needs neither torch nor Triton.",
)
@json_option
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
    from aotpack.report.build import show_coverage
    from aotpack.report.words import Words

    manifest = open_bundle(bundle).manifest
    if recorded is not None:
        found = cover_records(manifest, read_records(recorded))
    else:
        targets = [flatten(archs) or manifest.targets]
        with Words(quiet=options["quiet"]) as words:
            selection = select(targets, options, words)
            jobs = min(options["jobs"] or default_jobs(), len(selection.services))
            found = cover_deployments(
                manifest, enumerate_keys(selection, jobs=jobs, tick=words.tick, cache=compile_cache(options))
            )
    show_coverage(found, as_json=as_json)
    sys.exit(0 if found.complete else 1)
