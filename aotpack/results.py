"""Results as text: what was measured of autotuned kernels, in files that are reviewed like code.

They lie in a directory of each engine's release and device, a file for each kernel::

    artifacts/tuning/vllm-0.33.0/nvidia-h200/chunk_fwd_kernel_o.json

A file has one spelling: a line for each configuration, so that a change of a measurement is a change of its lines.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aotpack.atomic import write_atomically
from aotpack.documents import Node, parse_document
from aotpack.errors import DocumentError, OutputError, UsageError
from aotpack.findings import Finding
from aotpack.keys import read_target
from aotpack.targets import Target
from aotpack.tuning import (
    Configuration,
    Measured,
    Result,
    Tuning,
    check_candidates,
    check_times,
    in_order,
    read_scalar,
    read_times,
)

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """The results of one kernel on one device, as they lie in a file.

    Attributes:
        engine: the engine's name.
        engine_version: its release.
        results: in order, all of one kernel, target and device.
    """

    engine: str
    engine_version: str
    results: tuple[Result, ...]

    @property
    def path(self) -> Path:
        """Where it lies below the directory of results."""
        first = self.results[0]
        function = first.tuning.kernel.rpartition(".")[2].rpartition(":")[2]
        return Path(f"{self.engine}-{self.engine_version}", directory_of(first.device), f"{function}.json")

    def to_text(self) -> str:
        """The file in its one spelling; ``read_file`` undoes it."""
        first = self.results[0]
        head = {
            "format": FORMAT,
            "engine": {"name": self.engine, "version": self.engine_version},
            "kernel": first.tuning.kernel,
            "target": str(first.tuning.target),
            "device": first.device,
        }
        lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
        results = ",\n".join(_spell(result) for result in self.results)
        return "\n".join(["{", *lines, ' "results": [', results, " ]", "}", ""])


def _spell(result: Result) -> str:
    timed = zip(result.tuning.configurations, result.times, strict=True)
    configurations = [json.dumps([*one.to_json(), times]) for one, times in timed]
    fields = {"key": list(result.tuning.key), "measured": result.measured.to_json(), "fastest": str(result.fastest)}
    lines = [f"   {json.dumps(name)}: {json.dumps(value)}," for name, value in fields.items()]
    listed = ",\n".join(f"    {line}" for line in configurations)
    return "\n".join(["  {", *lines, '   "configurations": [', listed, "   ]", "  }"])


def directory_of(device: str) -> str:
    """A device's name as that of a directory: ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9.]+", "-", device.lower()).strip("-")


def read_file(path: Path) -> ResultFile:
    """The results in a file.

    Raises:
        DocumentError: it cannot be read, is no file of results, or is spelled otherwise than it would be written; the
            message says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = read_text(text)
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"{path}: cannot be read: {error}") from None
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}; measure it again: aotpack tune") from None
    if found.to_text() != text:
        raise DocumentError(f"{path}: expected the spelling that aotpack tune writes, found another; measure it again")
    return found


def read_text(text: str) -> ResultFile:
    """The results in a file's text, whatever its spelling.

    Raises:
        DocumentError: it is no file of results; the message says where.
    """
    root = parse_document(text)
    root.only("format", "engine", "kernel", "target", "device", "results")
    if root.field("format").integer() != FORMAT:
        raise root.field("format").error(f"format {FORMAT}")
    engine = root.field("engine").only("name", "version")
    kernel, target = root.field("kernel").text(), read_target(root.field("target"))
    device = root.field("device").text()
    results = [_read_result(node, kernel, target, device) for node in root.field("results").items()]
    if not results or list(in_order(results)) != results:
        raise root.field("results").error("results, in the order of their keys")
    return ResultFile(
        engine=engine.field("name").text(), engine_version=engine.field("version").text(), results=tuple(results)
    )


def _read_result(node: Node, kernel: str, target: Target, device: str) -> Result:
    node.only("key", "measured", "fastest", "configurations")
    lines = node.field("configurations")
    parts = [list(line.items()) for line in lines.items()]
    if not all(parts):
        raise lines.error("a configuration in each line")
    configurations = tuple(Configuration.from_json(Node(list(line.value)[:-1], line.place)) for line in lines.items())
    check_candidates(lines, configurations)
    times = tuple(read_times(line[-1]) for line in parts)
    check_times(lines, configurations, times)
    key = tuple(read_scalar(value) for value in node.field("key").items())
    tuning = Tuning(kernel=kernel, target=target, key=key, configurations=configurations)
    result = Result(tuning=tuning, device=device, times=times, measured=Measured.from_json(node.field("measured")))
    if node.field("fastest").text() != str(result.fastest):
        raise node.field("fastest").error(f"the fastest of the configurations, {str(result.fastest)!r}")
    return result


def read_results(directory: Path, engine: str, version: str) -> tuple[Result, ...]:
    """All results of an engine's release in a directory of results, in order; none where there are none.

    Raises:
        DocumentError: as ``read_file``, or where a file is not of the release, or not in its place.
    """
    place = directory / f"{engine}-{version}"
    found: list[Result] = []
    for path in sorted(place.glob("*/*.json")):
        file = read_file(path)
        if directory / file.path != path:
            raise DocumentError(f"{path}: holds what belongs in {directory / file.path}; move it there")
        found += file.results
    return in_order(found)


def shipped_results() -> Path:
    """The directory of the results that come with aotpack."""
    package = Path(__file__).parent
    installed = package / "measured"
    return installed if installed.is_dir() else package.parent / "artifacts" / "tuning"


def results_for(results: Sequence[Result], devices: Sequence[str], engine: str) -> list[Result]:
    """Of an engine's results those for some devices, or all where none is named.

    Raises:
        UsageError: there are none for one of them.
    """
    known = sorted({result.device for result in results})
    for device in devices:
        if device not in known:
            raise UsageError(
                f"there are no results for {device!r} with {engine}; there are for {', '.join(known) or 'none'}: spell "
                "it as the driver does, or measure on it: aotpack tune"
            )
    return [result for result in results if not devices or result.device in devices]


def lacking(
    decisions: Collection[Tuning], results: Sequence[Result], devices: Collection[str], triton: str
) -> Iterator[Finding]:
    """What autotuners will still measure where it serves, and what was measured with another compiler.

    Args:
        decisions: what they decide.
        results: what was measured.
        devices: what serves; none means any product of the decisions' targets.
        triton: the release that it will serve with.
    """
    for target in sorted({tuning.target for tuning in decisions}):
        asked = {tuning for tuning in decisions if tuning.target == target}
        ours = [result for result in results if result.tuning.target == target]
        measured = sorted({result.device for result in ours})
        for device in [name for name in measured if not devices or name in devices] or [f"any GPU of {target.short}"]:
            missing = asked - {result.tuning for result in ours if result.device == device}
            if missing:
                kernels = ", ".join(sorted({tuning.kernel.rpartition(":")[2] for tuning in missing}))
                yield Finding(
                    code="K103",
                    subject=device,
                    detail=f"{len(missing)} of {len(asked)} decisions of autotuners have no result: {kernels}",
                    hint="its first use measures all configurations, unless you do: aotpack tune",
                )
    others = sorted({result.measured.triton for result in results} - {triton})
    if others:
        detail = f"some results were measured with Triton {', '.join(others)}; another compiler may favour others"
        yield Finding(code="K104", subject=f"Triton {triton}", detail=detail)


def write_results(directory: Path, engine: str, version: str, results: Sequence[Result]) -> Iterator[Path]:
    """Write results into a directory of results, beside those that are there; the newest of a tuning stays.

    Yields:
        Each file that was written.

    Raises:
        DocumentError: what is there cannot be read.
        OutputError: a file cannot be written.
    """
    by_path: dict[Path, list[Result]] = {}
    for result in results:
        path = ResultFile(engine=engine, engine_version=version, results=(result,)).path
        by_path.setdefault(directory / path, []).append(result)
    for path, fresh in sorted(by_path.items()):
        kept = read_file(path).results if path.exists() else ()
        merged = {result.tuning: result for result in (*kept, *fresh)}
        text = ResultFile(engine=engine, engine_version=version, results=in_order(merged.values())).to_text()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, [text.encode()])
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}; choose another --output") from None
        yield path
