"""The command that measures, on a machine with a GPU."""

import signal
import sys
from pathlib import Path
from typing import Any

import click

from aotpack.cli.options import cache_option, select, selecting, terminated


@click.command()
@selecting
@cache_option
@click.option(
    "-o",
    "--output",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("artifacts/tuning"),
    show_default=True,
    help="The directory of results; a file for each kernel, below one for the release and the GPU.",
)
@click.option(
    "--milliseconds",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="How long each configuration is launched again and again.",
)
@click.option("--again", is_flag=True, help="Measure also what has a result for this GPU.")
def tune(directory: Path, cache_dir: Path | None, milliseconds: int, again: bool, **options: Any) -> None:  # noqa: FBT001  # a click flag
    """Measure the autotuned kernels on this machine's GPU, and write down the fastest configurations.

    Needs the GPU, its driver, and Triton with torch; the engine need not be installed. The engine's wrappers say what
    is launched, and Triton's own autotuner measures it. Each result is written as it comes, as text to be reviewed:
    aotpack build takes it from there. Where a bundle of all configurations is installed in the cache directory,
    nothing is compiled. Prints the files; the exit code is 1 where anything could not be measured.

    \b
    Examples:
      aotpack tune --model qwen3.5-27b --tp 1,2,4,8
      aotpack tune --model ./my-model --engine vllm==0.33.0 -o artifacts/tuning
      aotpack tune --deployments fleet.toml --again
    """
    from aotpack.cachedirectory import effective_directory
    from aotpack.pool import default_jobs
    from aotpack.report.build import show_tuned
    from aotpack.report.words import Words
    from aotpack.tune import this_gpu
    from aotpack.tune import tune as measure

    signal.signal(signal.SIGTERM, terminated)
    gpu = this_gpu()
    with Words(quiet=options["quiet"]) as words:
        selection = select([(gpu.target,)], options, words)
        tuned = measure(
            selection,
            gpu,
            directory=directory,
            cache=effective_directory(cache_dir),
            milliseconds=milliseconds,
            jobs=min(options["jobs"] or default_jobs(), len(selection.services)),
            again=again,
            tick=words.tick,
        )
    show_tuned(tuned, words)
    sys.exit(1 if tuned.failures else 0)
