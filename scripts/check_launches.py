#!/usr/bin/env python3
"""Prove that a container without a C compiler launches every kernel of a bundle: no compile of any kind, no GPU.

Drives, in a fresh process for each target, the engine's wrappers for every deployment of BUNDLE through Triton's own
launch path, driver and launcher, down to a fake libcuda that is compiled here and counts. In that process PATH names
an empty directory, so there is neither gcc nor ``file``. Each lookup must be a hit, and no helper may be built. Prints
a JSON report a target; exits with 1 where anything was compiled or a kernel was not launched.

    scripts/check_launches.py BUNDLE --engine ENGINE [--cache DIR | --store DIR] [--libcuda DIR] [--activate]

Run it with the Python whose Triton the bundle was built for. Without --cache the bundle is installed into a directory
of its own first; with --store nothing is, and what a store has is served in place.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import aotpack
from aotpack.bundle import Bundle, open_bundle
from aotpack.deployments import Deployment
from aotpack.documents import Node
from aotpack.engines import Engine, find_engine
from aotpack.families import load_families
from aotpack.install import install_bundle
from aotpack.targets import Target
from aotpack.tracing import Tracer
from aotpack.tracing.device import PretendStream

FAKE = Path(__file__).parent.parent / "tests" / "fake_libcuda.c"
LOG = "FAKE_LIBCUDA_LOG"


def build_fake(folder: Path) -> Path:
    """The fake driver in a directory of its own, which is returned."""
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(FAKE), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True)
    return folder


def drive(bundle: Bundle, engine: Engine, target: Target) -> dict[str, Any]:
    """Launch for one target in this process; TRITON_CACHE_DIR says where Triton looks."""
    from triton import knobs  # noqa: PLC0415  # the parent needs no Triton but to install
    from triton.backends.nvidia.driver import CudaDriver  # noqa: PLC0415
    from triton.runtime import build  # noqa: PLC0415
    from triton.runtime import driver as drivers  # noqa: PLC0415
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    families = load_families(bundle.manifest.families)
    launch, compile_helper = JITFunction.run, build._build  # noqa: SLF001
    tracer = Tracer(engine, target, families)
    launched = 0
    hits: set[str] = set()
    misses: list[str] = []
    built: list[str] = []
    looked_up: list[bool] = []

    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal launched
        looked_up.clear()
        kernel = launch(function, *args, **kwargs)
        launched += 1
        if looked_up == [True]:
            hits.add(kernel.hash)
        return kernel

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        looked_up.append(cache_hit)
        if not cache_hit:
            misses.append(src.name)

    def compiling(name: str, *args: Any, **kwargs: Any) -> Any:
        found = compile_helper(name, *args, **kwargs)
        if knobs.build.impl is None:
            built.append(name)
        return found

    # The real launch path and the real driver again; what torch is asked of the device stays pretended.
    JITFunction.run, build._build, knobs.compilation.listener = run, compiling, listen  # noqa: SLF001
    PretendStream.cuda_stream = 0  # type: ignore[attr-defined]  # the default stream
    drivers.set_active(CudaDriver())
    for document in bundle.manifest.deployments:
        deployment = Deployment.from_json(Node(document))
        for family in families:
            if family.serves(deployment):
                family.drive(tracer, deployment)
    lines = [line.split() for line in Path(os.environ[LOG]).read_text().splitlines()]
    return {
        "triton": bundle.manifest.toolchain.triton,
        "python": sys.version.split()[0],
        "target": str(target),
        "keys": sum(entry.key.target == target for entry in bundle.manifest.entries),
        "hits": len(hits),
        "misses": misses,
        "built": built,
        "written": sorted(path.name for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*") if path.is_file()),
        "asked": launched,
        "launched": sum(line[0] == "launch" for line in lines),
        "loaded": sum(line[0] == "load" for line in lines),
        "archs": sorted({_arch(*map(int, line[1:])) for line in lines if line[0] == "load"}),
    }


def _arch(machine: int, abi: int, flags: int) -> int:
    """What an ELF header says the code is for; CUDA 13 moved it when it changed the ABI's number."""
    assert machine == 190  # noqa: PLR2004  # EM_CUDA
    return flags & 0xFF if abi == 51 else flags >> 8 & 0xFF  # noqa: PLR2004


def main() -> int:
    """Install where asked, drive in a fresh process for each target, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--engine", help="as for aotpack build; default: the bundle's own release")
    parser.add_argument("--cache", type=Path, help="the cache directory that it is installed in")
    parser.add_argument("--store", type=Path, help="serve it from here, through AOTPACK_BUNDLE_PATH")
    parser.add_argument("--libcuda", type=Path, help="a directory with a libcuda.so.1; default: the fake one")
    parser.add_argument("--activate", action="store_true", help="call aotpack.activate() before the first launch")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args()
    bundle = open_bundle(options.bundle)
    spec = options.engine or f"{bundle.manifest.engine}=={bundle.manifest.engine_version}"
    if options.drive:
        if options.activate:
            aotpack.activate()
        engine = find_engine(spec, lambda line: print(line, file=sys.stderr))
        print(json.dumps(drive(bundle, engine, Target.parse(options.drive))))
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("cache", "empty", "libcuda"):
            (folder / part).mkdir()
        libcuda = options.libcuda or build_fake(folder / "libcuda")
        cache = options.cache or folder / "cache"
        if options.cache is None and options.store is None:
            install_bundle(bundle, cache, libcuda=[str(libcuda)])
        for target in bundle.manifest.targets:
            log = folder / f"{target.short}.log"
            log.touch()
            environment = {
                **os.environ,
                "PATH": str(folder / "empty"),
                "LD_LIBRARY_PATH": str(libcuda),
                "TRITON_CACHE_DIR": str(cache),
                "FAKE_LIBCUDA_ARCH": str(target.arch),
                LOG: str(log),
            }
            environment.pop("CC", None)
            if options.store is not None:
                environment["AOTPACK_BUNDLE_PATH"] = str(options.store)
            command = [sys.executable, __file__, str(options.bundle), "--engine", spec, "--drive", str(target)]
            command += ["--activate"] * (options.activate or options.store is not None)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                return done.returncode
            report = json.loads(done.stdout.splitlines()[-1])
            print(json.dumps(report))
            failed |= bool(report["misses"] or report["built"]) or report["hits"] != report["keys"]
            failed |= report["launched"] != report["asked"] or report["archs"] != [target.arch]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
