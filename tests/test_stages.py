"""Stages that are skipped give what Triton's own compile gives, to the byte."""

import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aotpack.compiler import Compiled, _scrub, alike, compile_keys
from aotpack.deployments import Deployment
from aotpack.digests import canonical_json
from aotpack.engines import Engine
from aotpack.families import load_families
from aotpack.keys import CompileKey
from aotpack.models import load_model
from aotpack.stages import shared_stages
from aotpack.toolchain import attrs_of, constexprs_of, gpu_target, signature_of
from aotpack.tracing import Tracer, clean_environment
from tests.conftest import SM90, needs_compiler


def plain(tracer: Tracer, key: CompileKey) -> tuple[bytes, bytes]:
    """What ``triton.compile`` gives out of an empty cache, with all that it writes."""
    import triton
    from triton.compiler import ASTSource

    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(dir=os.environ["TRITON_HOME"])
    os.environ.pop("TRITON_STORE_BINARY_ONLY", None)
    source = ASTSource(tracer.function(key.kernel), signature_of(key), constexprs_of(key), attrs_of(key))
    compiled = triton.compile(source, target=gpu_target(key.target), options=dict(key.options))
    metadata = json.loads(Path(compiled.metadata_group[f"{source.name}.json"]).read_bytes())
    return bytes(compiled.asm["cubin"]), canonical_json(_scrub(metadata)).encode()


def compare(engine: Engine, functions: Sequence[str]) -> list[tuple[str, int, bool, bool]]:
    """Of each key of some kernels: name, pipeline stages, whether work was shared, whether the result is Triton's."""
    with tempfile.TemporaryDirectory() as cache:
        clean_environment(cache)
        tracer = Tracer(engine, SM90, load_families(["gdn", "layernorm"]))
        deployment = Deployment(model=load_model("qwen3.5-27b"))
        keys = [key for part in tracer.trace(deployment) for key, _ in part.keys]
        compared = []
        for function in functions:
            first = next(key for key in keys if key.function == function)
            batch = [key for key in keys if alike(key) == alike(first)]
            for outcome in compile_keys(tracer, batch):
                assert isinstance(outcome, Compiled)
                same = plain(tracer, outcome.key) == (outcome.cubin, outcome.metadata)
                compared.append((function, dict(outcome.key.options)["num_stages"], outcome.shared, same))
        return compared


def test_keys_that_share_work_compile_to_what_triton_gives_each(engine: Engine) -> None:
    needs_compiler()
    functions = ["merge_16x16_to_64x64_inverse_kernel", "chunk_scaled_dot_kkt_fwd_kernel", "layer_norm_fwd_kernel"]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        compared = executor.submit(compare, engine, functions).result()
    assert all(same for *_, same in compared)
    # No loop to pipeline: the number of stages leaves the module as it is. The other kernel has one.
    assert [(stages, shared) for name, stages, shared, _ in compared if name == functions[0]] == [
        (2, False),
        (3, True),
        (4, True),
        (5, True),
    ]
    assert {shared for name, _, shared, _ in compared if name == functions[1]} == {False}


@dataclass(frozen=True)
class Options:
    """Options as a back end of Triton's has them."""

    num_stages: int = 2
    fast: bool = True


class Backend:
    """A back end of three stages; what its last one reads is for a test to say."""

    ran: list[str]

    def __init__(self, last: Any) -> None:
        self.ran = []
        self.last = last

    def add_stages(self, stages: dict[str, Any], options: Any, language: Any) -> None:
        del language
        stages["module"] = lambda text, _: self.note("module", SimpleNamespace(str_nodebug=lambda: text))
        stages["text"] = lambda module, metadata: self.note("text", self.write(module, metadata))
        stages["code"] = lambda text, metadata: self.note("code", self.last(text, options, metadata))

    def note(self, name: str, result: Any) -> Any:
        self.ran.append(name)
        return result

    @staticmethod
    def write(module: Any, metadata: dict[str, Any]) -> str:
        metadata["shared"] = len(module.str_nodebug())
        return f"text of {module.str_nodebug()}"

    def compile(self, source: str, options: Options) -> tuple[Any, dict[str, Any]]:
        stages: dict[str, Any] = {}
        self.add_stages(stages, options, None)
        metadata: dict[str, Any] = {"hash": source, **vars(options)}
        result: Any = source
        for stage in stages.values():
            result = stage(result, metadata)
        return result, metadata


def test_a_stage_runs_once_for_equal_input() -> None:
    backend = Backend(lambda text, options, _: f"{text} {options.fast}".encode())
    with shared_stages(backend) as skipped:
        first = backend.compile("a", Options(num_stages=2))
        second = backend.compile("a", Options(num_stages=3))
        assert first[0] == second[0]
        assert second[1] == {"hash": "a", "fast": True, "num_stages": 3, "shared": 1}
        assert skipped == ["text", "code"]
        assert backend.ran == ["module", "text", "code", "module"]


@pytest.mark.parametrize(
    "last",
    [
        lambda text, options, _: f"{text} {options.num_stages}",
        lambda text, options, _: f"{text} {vars(options)}",
        lambda text, options, _: f"{text} {getattr(options, 'num_stages', 0)}",
        lambda text, _, metadata: f"{text} {metadata['num_stages']}",
        lambda text, _, metadata: f"{text} {metadata.get('num_stages')}",
    ],
)
def test_a_stage_that_reads_what_differs_runs_for_each(last: Any) -> None:
    backend = Backend(last)
    with shared_stages(backend) as skipped:
        results = [backend.compile("a", Options(num_stages=number))[0] for number in (2, 3, 2)]
    assert results[0] != results[1]
    assert results[0] == results[2]
    assert skipped == ["text", "text", "code"]


def test_another_module_is_not_taken_for_the_same() -> None:
    backend = Backend(lambda text, options, _: f"{text} {options.fast}")
    with shared_stages(backend) as skipped:
        assert backend.compile("a", Options())[0] != backend.compile("b", Options())[0]
        assert backend.compile("a", Options(fast=False))[0] == "text of a False"
    assert skipped == ["text"]


def test_after_the_block_the_back_end_is_as_it_was() -> None:
    before = Backend.add_stages
    with shared_stages(Backend(None)):
        assert Backend.add_stages is not before
    assert Backend.add_stages is before
