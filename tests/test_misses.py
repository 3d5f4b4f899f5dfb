"""Misses explained: for real launches that missed, and for what they left in the cache, just the part that differs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aotpack.build import Built
from aotpack.bundle import Bundle
from aotpack.cli import main
from aotpack.coverage import cover_records
from aotpack.engines import Engine
from aotpack.errors import AotpackError
from aotpack.install import install_bundle
from aotpack.leftovers import find_leftovers, read_leftover
from aotpack.manifest import Entry, Missing
from aotpack.misses import explain_misses
from aotpack.misses.differences import PARTS
from aotpack.misses.entries import explain_leftovers
from aotpack.misses.launches import explain_launches
from aotpack.misses.miss import Miss
from aotpack.record import Launch, read_launches, read_records
from aotpack.sources import Global
from aotpack.targets import Target
from aotpack.toolchain import Toolchain, local_toolchain
from aotpack.tritoncache import directory_name
from tests.conftest import ROOT, needs_compiler
from tests.engines import change, copy_engine
from tests.launches import ARGUMENTS, HELPED, OPTIONS, PLAIN, VARIABLES
from tests.recorded import H200

Run = Callable[..., Path]


@pytest.fixture(scope="session")
def cache(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory with the bundle installed."""
    cache = tmp_path_factory.mktemp("launched") / "cache"
    install_bundle(built.bundle, cache)
    return cache


@pytest.fixture(scope="session")
def run(built: Built, cache: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Launch scenarios of ``tests.launches`` in a process of their own; the directory of their records."""

    def launch(*scenarios: str, engine: Path = engine.root, out: Path | None = None, **environment: str) -> Path:
        out = out or tmp_path_factory.mktemp("records")
        command = [sys.executable, "-m", "tests.launches", str(built.bundle.path), str(engine), str(out), *scenarios]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        variables = {**clean, "TRITON_CACHE_DIR": str(cache), **environment}
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return out

    return launch


@pytest.fixture(scope="module")
def records(run: Run) -> Path:
    """The records of every scenario on the engine that the bundle was built from."""
    return run()


@pytest.fixture
def bundle(built: Built) -> Bundle:
    return built.bundle


def launch_of(records: Path, scenario: str) -> Launch:
    """The one launch of a scenario."""
    (launch,) = read_launches(records / f"{scenario}.jsonl")
    return launch


def explain(bundle: Bundle, launch: Launch) -> Miss:
    (miss,) = explain_launches(bundle, [launch])
    return miss


def parts(miss: Miss) -> list[tuple[str, str]]:
    return [(difference.part, difference.name) for difference in miss.differences]


def values(miss: Miss) -> tuple[str, str]:
    (difference,) = miss.differences
    return difference.bundle, difference.here


def with_manifest(bundle: Bundle, **changes: Any) -> Bundle:
    return replace(bundle, manifest=replace(bundle.manifest, **changes))


def with_toolchain(bundle: Bundle, **changes: Any) -> Bundle:
    return with_manifest(bundle, toolchain=replace(bundle.manifest.toolchain, **changes))


def entry_of(bundle: Bundle, function: str = PLAIN) -> Entry:
    return next(entry for entry in bundle.manifest.entries if entry.key.function == function)


EXPECTED = {
    **{f"option-{name}": ("option", name) for name in OPTIONS},
    **{scenario: (scenario.partition("-")[0], argument) for scenario, (argument, _) in ARGUMENTS.items()},
    **{name: ("environment", name) for name in VARIABLES},
}


@pytest.mark.parametrize("scenario", EXPECTED)
def test_a_launch_that_missed_is_explained_by_the_one_part_that_differs(
    bundle: Bundle, records: Path, scenario: str
) -> None:
    launch = launch_of(records, scenario)
    miss = explain(bundle, launch)
    assert not launch.hit
    assert launch.exact
    assert parts(miss) == [EXPECTED[scenario]]
    assert miss.unknown == ()
    assert miss.nearest is not None
    assert miss.nearest.key.function == PLAIN


@pytest.mark.parametrize("scenario", EXPECTED)
def test_the_entry_that_a_miss_left_tells_the_same_as_far_as_it_can(
    bundle: Bundle, records: Path, cache: Path, scenario: str
) -> None:
    launch = launch_of(records, scenario)
    (miss,) = explain_leftovers(bundle, [read_leftover(cache / directory_name(launch.cache_key))])
    assert miss.cache_key == launch.cache_key
    if scenario == "constexpr-str":  # nobody can guess a string
        assert miss.differences == ()
        assert miss.unknown == ("constexprs", "source and line", "libtriton")
    else:
        assert (miss.differences, miss.unknown) == (explain(bundle, launch).differences, ())


def test_both_values_are_shown(bundle: Bundle, records: Path) -> None:
    def shown(scenario: str) -> tuple[str, str]:
        return values(explain(bundle, launch_of(records, scenario)))

    assert shown("integer-one") == ("i32, a multiple of 16", "1")
    assert shown("integer-i64") == ("i32, a multiple of 16", "i64, a multiple of 16")
    assert shown("alignment") == ("*bf16, a multiple of 16", "*bf16, not known as a multiple of 16")
    assert shown("TRITON_DISABLE_LINE_INFO") == ("not set", "'false'")
    assert shown("constexpr-str") == ("'silu'", "'sigmoid'")


def test_a_launch_that_hit_is_recorded_and_is_no_miss(bundle: Bundle, records: Path) -> None:
    launch = launch_of(records, "plain")
    assert launch.hit
    assert launch.exact
    assert launch.key == entry_of(bundle).key
    assert explain_launches(bundle, [launch]) == ()


def missed(records: Path, scenario: str = "plain") -> Launch:
    """A launch that hit, as it would be had the cache been empty."""
    return replace(launch_of(records, scenario), hit=False)


def test_each_option_of_a_key_is_named_when_the_bundle_has_another(bundle: Bundle, records: Path) -> None:
    launch, entry = missed(records), entry_of(bundle)
    for name, _ in entry.key.options:
        options = tuple((other, "another" if other == name else value) for other, value in entry.key.options)
        changed = replace(entry, key=replace(entry.key, options=options))
        miss = explain(with_manifest(bundle, entries=(changed,)), launch)
        assert parts(miss) == [("option", name)]
        assert values(miss)[0] == "'another'"


def left_by(bundle: Bundle, launch: Launch) -> Miss:
    (miss,) = explain_leftovers(bundle, [read_leftover(launch.cache / directory_name(launch.cache_key))])
    return miss


def test_a_line_above_the_kernel_is_told_from_a_changed_source(
    bundle: Bundle, engine: Engine, run: Run, tmp_path: Path
) -> None:
    folder = copy_engine(engine, tmp_path / "engine")
    for key in (entry_of(bundle).key, entry_of(bundle, HELPED).key):
        path = folder.joinpath(*key.module.split(".")).with_suffix(".py")
        path.write_text("\n" + path.read_text())
    launches = run("plain", "helped", engine=folder)
    for scenario, function in (("plain", PLAIN), ("helped", HELPED)):
        launch = launch_of(launches, scenario)
        miss = explain(bundle, launch)
        assert parts(miss) == [("line", entry_of(bundle, function).key.kernel)]
        assert values(miss)[1] == "line " + ", ".join(str(part.line) for part in launch.source.functions)
        assert (left_by(bundle, launch).differences, left_by(bundle, launch).unknown) == (miss.differences, ())


def test_a_changed_helper_is_named(bundle: Bundle, engine: Engine, run: Run, tmp_path: Path) -> None:
    folder = copy_engine(engine, tmp_path / "engine")
    module = entry_of(bundle, HELPED).key.module
    change(folder, module, "def _memcpy_u64_tiled(", "def _memcpy_u64_tiled(  # changed\n")
    launches = run("plain", "helped", engine=folder)
    assert launch_of(launches, "plain").hit
    launch = launch_of(launches, "helped")
    assert parts(explain(bundle, launch)) == [("source", f"{module}:_memcpy_u64_tiled")]
    left = left_by(bundle, launch)
    assert parts(left) == [("source", f"{module}:{HELPED}")]
    assert f"the text of {module}:_memcpy_u64_tiled" in values(left)[0]


def test_a_changed_constexpr_global_is_named_with_both_values(bundle: Bundle, records: Path) -> None:
    launch = missed(records)
    functions = bundle.manifest.sources.functions
    known = Global(spelling="_SALT", shown="constexpr[3]", keyed=True, definition="sha256:" + "0" * 64)
    changed = tuple(replace(part, globals=(known,)) if part.name == launch.kernel else part for part in functions)
    kernels = tuple(replace(kernel, cache_keys=("0" * 64,)) for kernel in bundle.manifest.kernels)
    other = with_manifest(bundle, kernels=kernels, sources=replace(bundle.manifest.sources, functions=changed))
    own = replace(launch.source.functions[0], constants=(("_SALT", "constexpr[4]"),))
    launch = replace(launch, source=replace(launch.source, functions=(own,)))
    assert parts(explain(other, launch)) == [("constant", f"_SALT of {launch.kernel}")]
    assert values(explain(other, launch)) == ("constexpr[3]", "constexpr[4]")


def test_another_ptxas_is_named_by_what_it_says_of_itself(bundle: Bundle, run: Run, tmp_path: Path) -> None:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    wrapper = tmp_path / "ptxas"
    wrapper.write_text(f'#!/bin/sh\n{path} "$@" && [ "$1" = --version ] && echo rebuilt by somebody\nexit 0\n')
    wrapper.chmod(0o755)
    paths = dict.fromkeys(("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"), str(wrapper))
    miss = explain(bundle, launch_of(run("plain", **paths), "plain"))
    assert parts(miss) == [("assembler", "cuda:90")]
    assert ["rebuilt by somebody" in text for text in values(miss)] == [False, True]


def changed_source(toolchain: Toolchain) -> dict[str, Any]:
    name, _ = toolchain.sources[0]
    return {"sources": ((name, "sha256:" + "0" * 64), *toolchain.sources[1:])}


def test_another_triton_build_is_named_by_release_module_and_libdevice(bundle: Bundle, records: Path) -> None:
    launch, toolchain = missed(records), bundle.manifest.toolchain
    assert parts(explain(with_toolchain(bundle, triton="3.5.0"), launch)) == [("triton", "release")]
    patched = explain(with_toolchain(bundle, **changed_source(toolchain)), launch)
    assert parts(patched) == [("triton source", toolchain.sources[0][0])]
    assert values(patched)[0] == "0" * 12
    other = explain(with_toolchain(bundle, libdevice="sha256:" + "0" * 64), launch)
    assert parts(other) == [("libdevice", "")]


def test_another_libtriton_is_named_when_nothing_else_differs(bundle: Bundle, records: Path) -> None:
    launch = missed(records)
    elsewhere = replace(launch, build=replace(launch.build, libtriton="sha256:" + "0" * 64))
    assert parts(explain(bundle, elsewhere)) == [("libtriton", "")]
    assert parts(explain(bundle, launch)) == [("installation", "")]


def test_a_variable_that_the_bundle_was_built_with_is_named_where_it_is_not_set(bundle: Bundle, records: Path) -> None:
    changed = with_toolchain(bundle, environment=(("DISABLE_LLVM_OPT", "1"),))
    assert parts(explain(changed, missed(records))) == [("environment", "DISABLE_LLVM_OPT")]
    assert values(explain(changed, missed(records))) == ("'1'", "not set")


def test_another_architecture_hides_the_options_that_follow_from_it(bundle: Bundle, records: Path) -> None:
    launch = missed(records)
    assert launch.key is not None
    target = Target("cuda", 100)
    options = tuple((name, "sm100" if name == "arch" else value) for name, value in launch.key.options)
    elsewhere = replace(launch, target=target, key=replace(launch.key, target=target, options=options))
    assert parts(explain(bundle, elsewhere)) == [("architecture", "")]
    assert values(explain(bundle, elsewhere)) == ("sm90", "sm100")


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        ("torch._inductor.runtime.compile_tasks.abc:triton_poi_fused_add_0", "Inductor wrote it"),
        ("vllm.model_executor.models.qwen3_vl:_bilinear_pos_embed_kernel", "it belongs to family vision"),
        ("vllm.v1.attention.ops.triton_unified_attention:kernel_unified_attention", "no family of aotpack drives it"),
    ],
)
def test_a_kernel_that_is_not_packed_is_named_for_what_it_is(
    bundle: Bundle, records: Path, kernel: str, text: str
) -> None:
    launch = missed(records)
    assert launch.key is not None
    miss = explain(bundle, replace(launch, kernel=kernel, key=replace(launch.key, kernel=kernel)))
    assert parts(miss) == [("kernel", kernel)]
    assert text in values(miss)[0]
    assert miss.nearest is None


def test_a_key_that_did_not_compile_at_the_build_says_why(bundle: Bundle, records: Path) -> None:
    launch = launch_of(records, "integer-one")
    assert launch.key is not None
    failed = with_manifest(bundle, missing=(Missing(key=launch.key, reason="PTXASError: out of registers"),))
    assert parts(explain(failed, launch)) == [("missing", "")]
    assert values(explain(failed, launch))[0] == "PTXASError: out of registers"


def test_the_state_of_the_cache_is_told_where_the_key_is_in_the_bundle(
    bundle: Bundle, records: Path, cache: Path, tmp_path: Path
) -> None:
    launch = missed(records)
    assert f"is installed in {cache} with this entry" in values(explain(bundle, launch))[0]
    moved = explain(bundle, replace(launch, cache=tmp_path))
    assert parts(moved) == [("installation", "")]
    assert f"is not installed in {tmp_path}" in values(moved)[0]


def test_an_entry_from_before_the_install_is_told_from_one_that_differs(
    bundle: Bundle, run: Run, tmp_path: Path
) -> None:
    run("plain", TRITON_CACHE_DIR=str(tmp_path))
    install_bundle(bundle, tmp_path)
    (miss,) = explain_misses(bundle, [], [], tmp_path)
    assert parts(miss) == [("installation", "")]
    assert "left the entry that Triton had compiled" in values(miss)[0]


def test_an_entry_without_its_code_says_that_its_arguments_are_not_known(
    bundle: Bundle, records: Path, cache: Path, tmp_path: Path
) -> None:
    launch = launch_of(records, "integer-one")
    directory = cache / directory_name(launch.cache_key)
    for file in directory.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (miss,) = explain_leftovers(bundle, [read_leftover(tmp_path)])
    assert miss.differences == ()
    assert miss.unknown == ("arguments", "constexprs", "source and line", "libtriton")


def test_only_what_no_install_wrote_is_left_over(records: Path, cache: Path) -> None:
    missed = {launch_of(records, scenario).cache_key for scenario in EXPECTED}
    assert missed <= {left.cache_key for left in find_leftovers(cache, {PLAIN})}
    assert find_leftovers(cache, {"another_kernel"}) == []


def test_a_record_counts_for_coverage_too(bundle: Bundle, records: Path) -> None:
    (key,) = read_records(records / "plain.jsonl")
    assert cover_records(bundle.manifest, [key]).complete
    (key,) = read_records(records / "integer-one.jsonl")
    assert not cover_records(bundle.manifest, [key]).complete


def test_a_record_of_keys_alone_is_refused_with_what_to_do() -> None:
    with pytest.raises(AotpackError, match=r"holds keys alone.*listen"):
        read_launches(H200)


@pytest.mark.parametrize("line", ["{", "3", '{"launch": {}}', '{"launch": {"build": "sha256:' + "0" * 64 + '"}}'])
def test_a_line_that_is_no_launch_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "record").write_text('{"meta": {}}\n' + line)
    with pytest.raises(AotpackError, match="line 2 is not a recorded launch"):
        read_launches(tmp_path / "record")


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"target": 3}'])
def test_what_is_no_entry_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "__grp__k.json").write_text("{}")
        (tmp_path / "k.json").write_text(content)
    with pytest.raises(AotpackError, match="entry of Triton's cache"):
        read_leftover(tmp_path)


def test_the_command_shows_each_miss_with_advice_and_exits_with_1(bundle: Bundle, records: Path) -> None:
    command = ["explain-miss", str(bundle.path)]
    for scenario in ("option-num_warps", "plain"):
        command += ["--record", str(records / f"{scenario}.jsonl")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "option num_warps" in result.stdout
    assert PARTS["option"] in result.stdout
    document = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)
    assert document["version"] == 1
    (miss,) = document["misses"]
    assert [difference["part"] for difference in miss["differences"]] == ["option"]


@pytest.mark.usefixtures("records")
def test_the_command_looks_through_the_cache_where_no_record_is_given(
    bundle: Bundle, cache: Path, tmp_path: Path
) -> None:
    assert CliRunner().invoke(main, ["explain-miss", str(bundle.path), "--cache-dir", str(tmp_path)]).exit_code == 0
    result = CliRunner().invoke(main, ["explain-miss", str(bundle.path), "--cache-dir", str(cache)])
    assert result.exit_code == 1
    assert all(f"{part} {name}" in result.stdout for part, name in EXPECTED.values() if name != "ACTIVATION")


def test_the_local_toolchain_is_what_a_record_says(records: Path) -> None:
    assert launch_of(records, "plain").build.toolchain == local_toolchain([Target("cuda", 90)])


FAKE_EVENT = """
import sys
from types import SimpleNamespace
from triton import knobs
from aotpack.listener import listen

heard = []
knobs.compilation.listener = lambda **event: heard.append(event["cache_hit"])
listen(sys.argv[1])
for hit in (False, True, False):
    knobs.compilation.listener(src=SimpleNamespace(fn=None), metadata={}, metadata_group={}, times=None, cache_hit=hit)
print(heard)
"""


def test_what_goes_wrong_in_the_listener_is_one_warning_and_an_earlier_listener_still_hears(tmp_path: Path) -> None:
    needs_compiler()
    command = [sys.executable, "-c", FAKE_EVENT, str(tmp_path / "nowhere" / "record")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[False, True, False]\n"
    assert len(done.stderr.splitlines()) == 1
    assert "compiles are not recorded: KeyError: 'target'" in done.stderr


def test_a_record_that_cannot_be_written_does_not_break_a_launch(run: Run, tmp_path: Path) -> None:
    run("plain", out=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
