"""Results as text: one spelling, read strictly, and every file that comes with aotpack."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.errors import DocumentError, OutputError, UsageError
from aotpack.results import (
    lacking,
    read_file,
    read_results,
    results_for,
    shipped_results,
    write_results,
)
from aotpack.targets import Target
from aotpack.tuning import Configuration, Measured, Quantiles, Result, Tuning, in_order, losing

CONFIGURATIONS = (
    Configuration(arguments=(("BK", 64), ("BV", 32)), num_warps=4, num_stages=2),
    Configuration(arguments=(("BK", 128), ("BV", 32)), num_warps=8, num_stages=3),
    Configuration(arguments=(("BK", 128), ("BV", 64)), num_warps=8, num_stages=3, num_ctas=2, maxnreg=128),
)
TUNING = Tuning(
    kernel="vllm.ops.chunk:chunk_kernel",
    target=Target("cuda", 90),
    key=(24, 128, True, None, "torch.bfloat16"),
    configurations=CONFIGURATIONS,
)
MEASURED = Measured(
    date="2026-11-30",
    aotpack="0.1.0",
    triton="3.8.0",
    torch="2.14.0",
    cuda="13.0",
    input="qwen3.5-27b tp2 bfloat16: tokens=8192",
)
RESULT = Result(
    tuning=TUNING,
    device="NVIDIA H200",
    times=((0.25, 0.24, 0.26), (0.125, 0.12, 0.13), None),
    measured=MEASURED,
)


def written(folder: Path, *results: Result) -> Path:
    (path,) = write_results(folder, "vllm", "0.33.0", results)
    return path


def test_a_file_has_a_line_for_each_configuration(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    path = written(
        tmp_path, RESULT, replace(RESULT, tuning=replace(TUNING, key=(12, 128, True, None, "torch.float16")))
    )
    assert path == tmp_path / "vllm-0.33.0" / "nvidia-h200" / "chunk_kernel.json"
    golden("results.txt", path.read_text())


def test_what_is_written_is_read_back_and_the_newest_of_a_tuning_stays(tmp_path: Path) -> None:
    path = written(tmp_path, RESULT)
    other = replace(RESULT, tuning=replace(TUNING, key=(48, 128, True, None, "torch.bfloat16")))
    newer = replace(RESULT, measured=replace(MEASURED, date="2026-12-01"))
    assert read_results(tmp_path, "vllm", "0.33.0") == (RESULT,)
    assert written(tmp_path, newer, other) == path
    assert read_results(tmp_path, "vllm", "0.33.0") == in_order([newer, other])
    assert read_results(tmp_path, "vllm", "0.34.0") == ()


def test_the_fastest_is_the_first_of_those_with_the_least_median() -> None:
    assert RESULT.fastest == CONFIGURATIONS[1]
    even = replace(RESULT, times=((0.1, 0.1, 0.1), (0.1, 0.1, 0.1), (0.1, 0.1, 0.2)))
    assert even.fastest == CONFIGURATIONS[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"format": 1', '"format": 2', "format: expected format 1, found 2"),
        ('"cuda:90"', '"sm90"', 'target: expected a target such as "cuda:90"'),
        ('"BK=128 BV=32 warps=8 stages=3"', '"BK=64 BV=32 warps=4 stages=2"', "fastest: expected the fastest of the"),
        ("[0.125, 0.12, 0.13]", "[0.125, 0.12]", "three times in milliseconds, or null"),
        ("[0.125, 0.12, 0.13]", "[-1, 0.12, 0.13]", "three times in milliseconds, or null"),
        ("[0.25, 0.24, 0.26]", "[0.25, 0.24, 0.260]", "expected the spelling that aotpack tune writes"),
        ('["BK", 64]', '["B K", 64]', "configurations[0][0][0]: expected an argument's name and value"),
        ('["BK", 64]', '["BK", [64]]', "expected a number, a string, true, false, or null"),
        ('[["BK", 64], ["BV", 32]], 4, 2', '[["BK", 128], ["BV", 32]], 8, 3', "2 to 4096 configurations, each once"),
        ('"2026-11-30"', '"yesterday"', "measured.date: expected a date such as 2026-11-30"),
        ('"torch": "2.14.0", ', "", "measured.torch: missing"),
        ('"results": [', '"results": [],\n "more": [', "more: no such field"),
        ("{", "{{", "expected JSON"),
    ],
)
def test_an_error_names_the_file_and_the_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = written(tmp_path, RESULT)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DocumentError) as error:
        read_file(path)
    assert str(error.value).startswith(f"{path}: ")
    assert said in str(error.value)


def test_a_file_in_another_place_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, RESULT)
    moved = path.rename(path.with_name("other.json"))
    with pytest.raises(DocumentError, match=rf"{moved}: holds what belongs in {path}; move it there"):
        read_results(tmp_path, "vllm", "0.33.0")


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "vllm-0.33.0").write_text("in the way")
    with pytest.raises(OutputError, match=r"chunk_kernel\.json: cannot be written"):
        written(tmp_path, RESULT)


def test_every_file_that_comes_with_aotpack_is_read() -> None:
    directory = shipped_results()
    assert (directory / "README.md").is_file()
    for path in directory.glob("*/*/*.json"):
        file = read_file(path)
        assert directory / file.path == path


def on(device: str, *fast: float | None, tuning: Tuning = TUNING) -> Result:
    times: tuple[Quantiles | None, ...] = tuple(None if one is None else (one, one, one) for one in fast)
    return replace(RESULT, tuning=tuning, device=device, times=times)


@pytest.mark.parametrize(
    ("devices", "left_out"),
    [
        ((), ""),  # any product may serve
        (("A",), "bc"),
        (("A", "B"), "c"),
        (("A", "C"), ""),  # C has no result for this decision, and has for another
        (("D",), ""),  # of another target
        (("A", "D"), "bc"),
    ],
)
def test_what_loses_on_each_device_is_left_out(devices: tuple[str, ...], left_out: str) -> None:
    other = replace(TUNING, key=(1,))
    elsewhere = replace(TUNING, target=Target("cuda", 80))
    results = [on("A", 1, 2, 3), on("B", 2, 1, 3), on("C", 1, 2, 3, tuning=other), on("D", 3, 2, 1, tuning=elsewhere)]
    assert losing({TUNING: ("a", "b", "c")}, results, devices) == set(left_out)


def test_a_key_that_wins_for_another_decision_or_has_no_result_there_stays() -> None:
    other = replace(TUNING, key=(1,))
    decisions = {TUNING: ("a", "b", "c"), other: ("x", "a", "b")}
    assert losing(decisions, [on("A", 3, 2, 1)], ("A",)) == set()
    assert losing(decisions, [on("A", 3, 2, 1), on("A", 2, 1, 3, tuning=other)], ("A",)) == {"b", "x"}


def test_findings_say_what_has_no_result_and_which_were_measured_elsewhere() -> None:
    other = replace(TUNING, key=(1,), kernel="vllm.ops.chunk:other_kernel")
    findings = list(lacking([TUNING, other], [on("A", 1, 2, 3)], (), "3.9.0"))
    assert [(finding.code, finding.subject) for finding in findings] == [("K103", "A"), ("K104", "Triton 3.9.0")]
    assert findings[0].detail == "1 of 2 decisions of autotuners have no result: other_kernel"
    assert [f.subject for f in lacking([TUNING], [], (), "3.8.0")] == ["any GPU of sm90"]
    assert list(lacking([TUNING], [on("A", 1, 2, 3)], ("A",), "3.8.0")) == []


def test_a_device_without_results_is_refused() -> None:
    assert results_for([on("A", 1, 2, 3), on("B", 1, 2, 3)], ["B"], "vllm 0.33.0") == [on("B", 1, 2, 3)]
    with pytest.raises(UsageError, match=r"no results for .C. with vllm 0\.33\.0; there are for A: spell it"):
        results_for([on("A", 1, 2, 3)], ["C"], "vllm 0.33.0")
