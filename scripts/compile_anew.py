#!/usr/bin/env python3
"""Compile every key of a bundle anew with the Triton of this Python, and write a bundle of what comes out.

    scripts/compile_anew.py BUNDLE --engine DIRECTORY --output DIRECTORY

Needs Triton, and no torch, which builds use to trace: the keys are BUNDLE's, and so is all else but the kernels' code
and metadata. The engine's kernel modules are loaded with everything else stubbed, torch too, of which a kernel's code
knows nothing. So a Python minor for which there is no torch at hand can tell whether its own libtriton.so gives the
same code: the bundle is then the same, to the last byte. Prints its path.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import triton
import triton.language

from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.compiler import CompileFailed, compile_key
from aotpack.digests import digest_bytes
from aotpack.manifest import Artifact, Entry
from aotpack.memorykeys import jit_function, look_up
from aotpack.targets import DEVICES, Target
from aotpack.tracing import clean_environment
from aotpack.tracing.stubs import Stubs
from aotpack.tracing.vllm import PACKAGE, REAL, SPARED, CudaPlatform

CHOOSES_TRITON = "vllm.triton_utils"
"""Loads Triton where a GPU is found, and stand-ins for it otherwise."""


class KernelModules:
    """The engine's kernels, as ``compile_key`` asks a tracer for them."""

    def __init__(self, bundle: Bundle, root: Path, target: Target) -> None:
        """Put the stubs in front of the import system, for one target."""
        manifest = bundle.manifest
        real = {name.partition(":")[0] for name in (function.name for function in manifest.sources.functions)}
        real |= {name for name in REAL if not name.startswith(CHOOSES_TRITON)}
        substitutes: dict[str, dict[str, Any]] = {
            CHOOSES_TRITON: {"triton": triton, "tl": triton.language, "HAS_TRITON": True},
            "vllm.platforms": {"current_platform": CudaPlatform(target, DEVICES[target.arch])},
        }
        spared = (*SPARED, "torch")
        sys.meta_path.insert(0, Stubs(root, PACKAGE, manifest.engine_version, real, substitutes, spared))

    def function(self, kernel: str) -> Any:
        """The ``JITFunction`` of a kernel."""
        module, _, qualname = kernel.partition(":")
        return jit_function(look_up(import_module(module), qualname))


def compiled(bundle: Bundle, modules: Any, blobs: dict[str, bytes]) -> Iterator[Entry]:
    """The bundle's entries with the code and the metadata that come out now, which are put among the blobs.

    Raises:
        SystemExit: a key does not compile.
    """
    for entry in bundle.manifest.entries:
        outcome = compile_key(modules, entry.key)
        if isinstance(outcome, CompileFailed):
            raise SystemExit(f"{entry.key.describe()}: {outcome.reason}")
        artifacts = []
        for kind, data in (("cubin", outcome.cubin), ("json", outcome.metadata)):
            artifact = Artifact(digest=digest_bytes(data), size=len(data))
            blobs[artifact.digest] = data
            artifacts.append((kind, artifact))
        yield replace(entry, name=outcome.name, artifacts=tuple(artifacts))


def main() -> None:
    """Compile, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--engine", type=Path, required=True, help="the directory that holds the engine's package")
    parser.add_argument("--output", type=Path, required=True, help="the directory that gets the bundle")
    options = parser.parse_args()
    bundle = open_bundle(options.bundle)
    blobs = dict(bundle.blobs())
    with tempfile.TemporaryDirectory() as cache:
        clean_environment(cache)
        modules = KernelModules(bundle, options.engine, bundle.manifest.targets[0])
        manifest = replace(bundle.manifest, entries=tuple(compiled(bundle, modules, blobs)))
    print(write_bundle(options.output / options.bundle.name, manifest, blobs).path)


if __name__ == "__main__":
    main()
