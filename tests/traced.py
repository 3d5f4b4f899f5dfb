"""What tests of families share: the recorded run's deployment, tracing, sweeps in a process of their own."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.families import Family
from aotpack.keys import CompileKey
from aotpack.models import load_model
from aotpack.pool import Pool, WorkerSpec
from aotpack.targets import Device, Target
from aotpack.tracing import Tracer, clean_environment
from tests.conftest import SM90, needs_compiler
from tests.recorded import H200


@contextmanager
def tracing(engine: Engine, family: str, target: Target = SM90) -> Iterator[Pool]:
    """A worker that traces one family."""
    needs_compiler()
    with Pool(WorkerSpec(engine=engine, target=target, families=(family,)), 1) as pool:
        yield pool


@cache
def _traced(pool: Pool, deployment: Deployment) -> tuple[CompileKey, ...]:
    return tuple(key for traced in next(pool.trace([deployment])) for key, _ in traced.keys)


def keys_of(pool: Pool, deployment: Deployment, function: str = "") -> list[CompileKey]:
    """The keys that a deployment reaches, of one kernel where it is named."""
    return [key for key in _traced(pool, deployment) if key.function == (function or key.function)]


def divisible(key: CompileKey, argument: str) -> bool:
    """Whether the key takes that argument for a multiple of 16."""
    index = [name for name, _ in key.signature].index(argument)
    return dict(key.attrs).get((index,), ()) == (("tt.divisibility", 16),)


def constant(key: CompileKey, argument: str) -> Any:
    """The value of a constexpr of the key."""
    index = [name for name, _ in key.signature].index(argument)
    return dict(key.constexprs)[(index,)]


def recorded_deployment(folder: Path) -> Deployment:
    """The deployment that the recorded run served, from the configuration that its first line holds."""
    meta: dict[str, Any] = json.loads(H200.read_text().splitlines()[0])["meta"]
    text = {**meta["text_config"], "dtype": meta["dtype"], "max_position_embeddings": 32768, "vocab_size": 248320}
    text["rope_parameters"] = {
        name: text.pop(name) for name in ("mrope_section", "mrope_interleaved", "partial_rotary_factor")
    }
    config = {"model_type": meta["model_type"], "text_config": text, "vision_config": meta["vision_config"]}
    (folder / "config.json").write_text(json.dumps(config))
    return Deployment(
        model=load_model(str(folder)),
        tp=meta["tensor_parallel_size"],
        max_num_seqs=meta["max_num_seqs"],
        max_num_batched_tokens=meta["max_num_batched_tokens"],
        max_model_len=meta["max_model_len"],
        gdn_prefill=meta["gdn_prefill_backend"],
    )


def sweep(engine: Engine, family: Family, deployment: Deployment, device: Device | None = None) -> set[str]:
    """The digests of the keys that a family of the test's own reaches, driven in a process of its own."""
    return sweep_each(engine, family, [deployment], device)[0]


def sweep_each(
    engine: Engine, family: Family, deployments: Sequence[Deployment], device: Device | None = None
) -> list[set[str]]:
    """The same for several deployments, one after another in one process."""
    needs_compiler()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        return executor.submit(_sweep_each, engine, family, deployments, device).result()


def _sweep_each(
    engine: Engine, family: Family, deployments: Sequence[Deployment], device: Device | None
) -> list[set[str]]:
    with tempfile.TemporaryDirectory() as cache:
        clean_environment(cache)
        tracer = Tracer(engine, SM90, (family,), device)
        return [{key.digest for part in tracer.trace(deployment) for key, _ in part.keys} for deployment in deployments]
