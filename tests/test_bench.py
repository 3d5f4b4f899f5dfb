"""The benchmark runs, and says of each figure what was asked and whether it is met. Times are for it to tell."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aotpack.build import Built
from aotpack.bundle import Bundle
from aotpack.compiler import alike
from aotpack.engines import Engine
from tests.conftest import ROOT, needs_compiler


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its modules, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return lambda name: importlib.import_module(f"benchmark.{name}")


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # The first Python on the path is this one, as in an environment that is active.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [ROOT / "scripts" / "bench", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def check_shape(path: Path, sections: list[str]) -> list[dict[str, Any]]:
    """The figures of a result, which has these sections in order."""
    document = json.loads(path.read_text())
    assert document["version"] == 1
    assert [section["name"] for section in document["sections"]] == sections
    for section in document["sections"]:
        assert section["command"].startswith("scripts/bench ")
        assert section["machine"]["cores"] > 0
        assert {"aotpack", "triton", "python", "zstd"} <= section["versions"].keys()
        assert section["inputs"]["bundle"].startswith("sha256:")
    figures: list[dict[str, Any]] = [figure for section in document["sections"] for figure in section["figures"]]
    for figure in figures:
        assert figure["unit"] in {"", "s", "ms", "/s", "%", "bytes", "MiB", "GiB"}
        assert bool(figure["rival"]) == (figure["rival_value"] is not None) == (figure["ratio"] is not None)
        assert (figure["goal"] is None) == (figure["met"] is None)
    return figures


def test_a_section_is_measured_and_replaces_only_its_own(helped: Bundle, engine: Engine, tmp_path: Path) -> None:
    common = ("--bundle", helped.path, "--engine", engine.root, "--output", tmp_path / "out")
    first, done = (bench("--keys", "3", "--runs", "1", *common, "install") for _ in range(2))
    assert (first.returncode, done.returncode) == (0, 0), first.stderr + done.stderr
    figures = check_shape(tmp_path / "out" / "results.json", ["install"])
    assert done.stdout.count("\n") == 2 + len(figures)
    assert (tmp_path / "out" / "results.md").read_text() == done.stdout
    rivals = {figure["rival"] for figure in figures} - {""}
    assert rivals == {"tar --zstd -x of the same files", "Triton's put", "cp and sha256sum of the bundle"}
    assert all(figure["value"] > 0 for figure in figures)


@pytest.mark.slow
def test_all_sections_run(built: Built, engine: Engine, tmp_path: Path) -> None:
    needs_compiler()
    common = ("--bundle", built.bundle.path, "--engine", engine.root)
    done = bench("--quick", *common, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    figures = check_shape(tmp_path / "results.json", ["build", "sizes", "install", "load"])
    names = " ".join(figure["name"] for figure in figures)
    for told in ("parallel efficiency", "bytes a key", "level 22", "no-op reinstall", "preload", "first hit"):
        assert told in names


@pytest.mark.parametrize("arguments", [("bild",), ("--runs", "often")])
def test_what_it_does_not_know_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_bundle_that_is_not_there_is_one_line(engine: Engine, tmp_path: Path) -> None:
    done = bench("--bundle", tmp_path / "no.tar.zst", "--engine", engine.root, "--output", tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_a_goal_is_held_against_the_ratio_where_there_is_a_rival(benchmark: Any) -> None:
    figures = benchmark("figures")
    most = figures.Goal(word="at most", limit=2)
    alone = figures.Figure(name="a", value=3, unit="s", goal=most)
    beside = figures.Figure(name="a", value=3, unit="s", rival="b", rival_value=1.5, goal=most)
    assert (alone.ratio, alone.met) == (None, False)
    assert (beside.ratio, beside.met) == (2, True)
    assert figures.Figure(name="a", value=3, unit="s").met is None
    assert figures.Figure(name="a", value=3, unit="s", goal=figures.Goal(word="at least", limit=3)).met


def section(figures: Any, name: str, value: float) -> Any:
    figure = figures.Figure(
        name="speed", value=value, unit="s", rival="tar", rival_value=2.0, goal=figures.Goal(word="at most", limit=1)
    )
    return figures.Section(
        name=name, date="", command="", machine={}, versions={}, inputs={"runs": 1}, figures=(figure,)
    )


def test_sections_are_written_read_and_merged_in_order(benchmark: Any, tmp_path: Path) -> None:
    figures = benchmark("figures")
    one, two, newer = (section(figures, *given) for given in (("load", 1.0), ("build", 2.0), ("load", 3.0)))
    path = tmp_path / "results.json"
    assert figures.read_sections(path) == []
    figures.write_sections(path, [one, two])
    assert figures.read_sections(path) == [one, two]
    assert figures.merge([one, two], newer, ["build", "load"]) == [two, newer]
    path.write_text('{"version": 2}')
    with pytest.raises(SystemExit, match="expected version 1, found 2"):
        figures.read_sections(path)


def test_the_table_says_what_was_asked_and_whether_it_is_met(benchmark: Any) -> None:
    figures = benchmark("figures")
    rows = figures.table([section(figures, "load", 1.0), section(figures, "build", 3.0)]).splitlines()
    assert rows[2] == "| load | speed | 1 s | tar: 2 s | 0.50 | at most 1 times | yes |"
    assert rows[3] == "| build | speed | 3 s | tar: 2 s | 1.50 | at most 1 times | no |"


def test_growth_is_told_by_what_each_further_key_costs(benchmark: Any) -> None:
    growth = benchmark("installing").growth
    (linear,) = growth("it", [(100, 5.0), (1000, 14.0), (10000, 104.0)])
    assert (linear.value, linear.rival_value, linear.met) == (10, 10, True)
    (steep,) = growth("it", [(100, 5.0), (1000, 14.0), (10000, 194.0)])
    assert (steep.ratio, steep.met) == (2, False)
    assert list(growth("it", [(100, 5.0), (1000, 4.0), (10000, 194.0)])) == []
    assert list(growth("it", [(100, 5.0), (1000, 5.1), (10000, 14.0)])) == []  # noise is nothing to hold against


def test_a_sample_is_spread_evenly_and_keeps_alike_keys_together(benchmark: Any, built: Built) -> None:
    sampled = benchmark("workplace").sampled
    keys = [entry.key for entry in built.bundle.manifest.entries]
    some = sampled(keys, len(keys) // 3)
    assert set(some) < set(keys)
    groups = {alike(key) for key in some}
    assert {key for key in keys if alike(key) in groups} == set(some)
    assert abs(len(some) - len(keys) // 3) <= max(sum(alike(key) == group for key in keys) for group in groups)
    assert set(sampled(keys, None)) == set(keys) == set(sampled(keys, len(keys)))


def test_what_gets_a_process_ready_is_not_counted(benchmark: Any, built: Built) -> None:
    divided = benchmark("compiling").divided
    keys = [entry.key for entry in built.bundle.manifest.entries]
    ready, counted = divided(keys)
    assert ready
    assert counted
    assert {alike(key) for key in ready}.isdisjoint(alike(key) for key in counted)
    assert set(ready) | set(counted) == set(keys)
