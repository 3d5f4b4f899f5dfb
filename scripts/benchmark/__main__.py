"""Run the sections that the command line asks for, and write what came out."""

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from aotpack.atomic import write_atomically
from aotpack.bundle import open_bundle
from aotpack.engines import find_engine
from aotpack.errors import AotpackError
from benchmark import building, installing, loading, sizes
from benchmark.figures import Figure, Section, merge, read_sections, table, write_sections
from benchmark.workplace import Workplace, built_bundle, machine, versions

ROOT = Path(__file__).resolve().parent.parent.parent
SECTIONS: dict[str, Callable[[Workplace], Iterator[Figure]]] = {
    "build": building.measure,
    "sizes": sizes.measure,
    "install": installing.measure,
    "load": loading.measure,
}


def numbers(text: str) -> tuple[int, ...]:
    """A comma list of numbers, ascending."""
    return tuple(sorted({int(part) for part in text.split(",")}))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--bundle", type=Path, help="a bundle to measure with; default: one of all presets for sm90")
    parser.add_argument("--engine", default="vllm==0.33.0", help="whose kernels they are (default: %(default)s)")
    parser.add_argument("--sample", type=int, metavar="N", help="compile about N keys, evenly chosen; default: all")
    parser.add_argument(
        "--keys", type=numbers, default=(100, 1000, 10000), metavar="N,...", help="sizes (default: 100,1000,10000)"
    )
    parser.add_argument("--runs", type=int, default=5, help="repetitions of what is quick (default: %(default)s)")
    parser.add_argument("--work", type=Path, help="a directory that keeps bundles and caches; default: none is kept")
    parser.add_argument("--kept", type=Path, help="an AOTPACK_CACHE_DIR to rebuild from; default: one of its own")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts" / "bench", help="where results.json goes")
    parser.add_argument("--quick", action="store_true", help="show in a minute that all of it works: little, once")
    options = parser.parse_args(arguments)
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if options.quick:
        options.sample, options.keys, options.runs = 8, (20, 40, 60), 1
    return options


def workplace(options: argparse.Namespace, directory: Path) -> Workplace:
    """What to measure with.

    Raises:
        AotpackError: there is no such engine, or no such bundle.
    """
    engine = find_engine(options.engine, lambda line: print(line, file=sys.stderr))
    for name in [name for name in os.environ if name.startswith(("TRITON_", "AOTPACK_"))]:
        del os.environ[name]  # figures are of what there is without them
    kept = options.kept or directory / "kept"
    given = options.bundle
    bundle = open_bundle(given) if given else built_bundle(engine, directory, kept, small=options.quick)
    return Workplace(
        directory=directory,
        kept=kept.resolve(),
        bundle=bundle,
        engine=engine,
        sample=options.sample,
        sizes=options.keys,
        runs=options.runs,
        quick=options.quick,
    )


def run(name: str, place: Workplace, command: str) -> Section:
    """Measure a section; each figure is told as it comes."""
    section = Section(
        name=name,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command,
        machine=machine(),
        versions=versions(place.engine),
        inputs={
            "bundle": place.bundle.digest,
            "keys": len(place.bundle.manifest.entries),
            "compiled": len(place.keys()),
            "sizes": list(place.sizes),
            "runs": place.runs,
            "quick": place.quick,
        },
    )
    figures = []
    for figure in SECTIONS[name](place):
        print(table([replace(section, figures=(figure,))]).splitlines()[-1], file=sys.stderr, flush=True)
        figures.append(figure)
    return replace(section, figures=tuple(figures))


def main(arguments: Sequence[str]) -> int:
    """Measure, write after each section, and show the table of all that is known."""
    options = parse(arguments)
    command = f"scripts/bench {shlex.join(arguments)}".strip()
    path = options.output / "results.json"
    options.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        try:
            place = workplace(options, directory.resolve())
            for name in options.sections or SECTIONS:
                write_sections(path, merge(read_sections(path), run(name, place, command), list(SECTIONS)))
                write_atomically(path.with_suffix(".md"), [f"{table(read_sections(path))}\n".encode()])
        except AotpackError as error:
            print(f"Error: {error}", file=sys.stderr)
            return 3
    print(table(read_sections(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
