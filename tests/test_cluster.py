"""Builds on a real Dask cluster of worker processes: the same bundle, lost workers, and workers that are refused."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aotpack.build import Built, build_bundle
from aotpack.cli import main
from aotpack.cluster import SCHEME, Identity, connected
from aotpack.engines import Engine
from aotpack.errors import ClusterError, UsageError
from aotpack.findings import Finding
from aotpack.pool import Description
from tests.conftest import needs_compiler
from tests.test_kept import selection

distributed = pytest.importorskip("distributed")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two worker processes of one thread each."""
    needs_compiler()
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as local:
        yield local


def address_of(cluster: Any) -> str:
    return SCHEME + str(cluster.scheduler_address).removeprefix("tcp://")


@pytest.mark.slow
def test_a_build_on_a_cluster_that_loses_a_worker_gives_the_same_bundle(
    engine: Engine, built: Built, cluster: Any, tmp_path: Path
) -> None:
    killed: list[int] = []

    def tick(what: str, done: int, total: int) -> None:
        if what.startswith("compiling") and done == total // 3 and not killed:
            with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
                killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    refused: list[Finding] = []
    with connected(address_of(cluster), refused, print) as recruit:
        again = build_bundle(selection(engine), output=tmp_path, jobs=1, tick=tick, recruit=recruit)
    assert killed
    assert refused == []
    assert again.failures == ()
    assert again.bundle.path.read_bytes() == built.bundle.path.read_bytes()


@pytest.mark.slow
def test_a_worker_whose_triton_would_compile_other_code_gets_no_key(engine: Engine, tmp_path: Path) -> None:
    needs_compiler()
    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as scheduler:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler.scheduler_address, "--nthreads", "1"]
        command += ["--no-dashboard", "--local-directory", str(tmp_path)]
        worker = subprocess.Popen(
            command, env={**os.environ, "DISABLE_LLVM_OPT": "1"}, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            refused: list[Finding] = []
            with distributed.Client(scheduler.scheduler_address, set_as_default=False) as client:
                client.wait_for_workers(1, timeout=60)
            with (
                connected(address_of(scheduler), refused, print) as recruit,
                pytest.raises(ClusterError, match=r"no worker may compile .*found DISABLE_LLVM_OPT="),
            ):
                build_bundle(selection(engine), output=tmp_path, jobs=1, recruit=recruit)
        finally:
            os.killpg(worker.pid, signal.SIGTERM)
            worker.wait()
    (finding,) = refused
    assert finding.code == "C103"
    assert f"on {os.uname().nodename} (process " in finding.subject
    assert list(tmp_path.glob("*.zst")) == []


def identity(built: Built, **changed: Any) -> Identity:
    manifest = built.bundle.manifest
    description = Description(toolchain=manifest.toolchain, kernels=manifest.kernels, sources=manifest.sources)
    values = {"host": "here", "aotpack": "0.1.0", "code": "sha256:1", "description": description, "processes": 1}
    return Identity(**{**values, **changed})


def test_a_worker_is_compared_by_aotpack_triton_and_engine(built: Built) -> None:
    ours = identity(built)
    description = ours.description
    assert list(ours.differences(identity(built, host="there", processes=8))) == []
    (text,) = ours.differences(identity(built, aotpack="0.2.0"))
    assert text.startswith("aotpack 0.1.0 (sha256:1) is wanted, it has 0.2.0")
    other = replace(description, toolchain=replace(description.toolchain, triton="3.6.0"))
    (text,) = ours.differences(identity(built, description=other))
    assert text == f"Triton {description.toolchain.triton} is wanted, it has 3.6.0"
    other = replace(description, toolchain=replace(description.toolchain, libdevice="sha256:" + "0" * 64))
    (text,) = ours.differences(identity(built, description=other))
    assert text.startswith("libdevice differs")
    modules = (*description.sources.modules[:-1], (description.sources.modules[-1][0], "sha256:" + "0" * 64))
    other = replace(description, sources=replace(description.sources, modules=modules))
    (text,) = ours.differences(identity(built, description=other))
    assert text == f"the engine's files differ: {modules[-1][0]}"
    other = replace(description, kernels=description.kernels[1:])
    (text,) = ours.differences(identity(built, description=other))
    assert "source keys" in text


@pytest.mark.parametrize(
    "address", ["dask://", "dask://host", "dask://:8786", "dask://host:x", "host:8786", "ray://h:1"]
)
def test_an_executor_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="expected local, or dask://HOST:PORT"), connected(address, [], print):
        pytest.fail("it was taken")


def test_a_scheduler_that_does_not_answer_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aotpack.cluster._CONNECT", "1s")
    result = CliRunner().invoke(main, ["build", "--arch", "sm90", "--executor", "dask://127.0.0.1:9"])
    assert result.exit_code == 3
    assert "dask://127.0.0.1:9: no Dask scheduler answers" in result.output
