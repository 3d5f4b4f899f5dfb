"""The workplace: what the sections share. A real bundle, its engine, and a directory to work in."""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zstandard

from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.compiler import alike
from aotpack.engines import Engine
from aotpack.keys import CompileKey
from aotpack.manifest import Manifest
from benchmark.spending import python, spend

SELECTION = ("--arch", "sm90", "--gdn-prefill", "triton")
"""What is built where no bundle is given: every preset, with Triton's kernels for prefill."""

SMALL = ("--model", "qwen3.5-0.8b", "--family", "layernorm", "--family", "mrope")
"""What narrows it to what is built in half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What is measured with.

    Attributes:
        directory: where everything goes that a section writes, and that a later one may find.
        kept: what builds keep for later ones, as ``AOTPACK_CACHE_DIR`` names it.
        bundle: a real one.
        engine: whose kernels they are.
        sample: how many of its keys are compiled; None means all.
        sizes: how many keys the multiplied bundles have, ascending.
        runs: how often what is quick is repeated.
        quick: whether the figures only show that all of it works.
    """

    directory: Path
    kept: Path
    bundle: Bundle
    engine: Engine
    sample: int | None
    sizes: tuple[int, ...]
    runs: int
    quick: bool

    @property
    def plain(self) -> Path:
        """The cache directory that the plain loop leaves."""
        return self.directory / f"plain-{self.bundle.digest[-12:]}-{self.sample or 'all'}"

    def keys(self) -> tuple[CompileKey, ...]:
        """The keys that are compiled."""
        return sampled([entry.key for entry in self.bundle.manifest.entries], self.sample)

    def sampled_bundle(self) -> Bundle:
        """A bundle of those keys alone, without native helpers."""
        keys = set(self.keys())
        manifest = self.bundle.manifest
        entries = tuple(entry for entry in manifest.entries if entry.key in keys)
        path = self.directory / "sampled.tar.zst"
        return write_bundle(path, without_helpers(replace(manifest, entries=entries)), dict(self.bundle.blobs()))

    def multiplied(self, keys: int) -> Bundle:
        """A bundle of so many keys, made of the real one."""
        from multiply import multiply  # noqa: PLC0415  # not every section needs it

        path = self.directory / f"multiplied-{self.bundle.digest[-12:]}-{keys}.tar.zst"
        return open_bundle(path) if path.exists() else multiply(self.bundle, keys, path)

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """A new directory, gone after the block."""
        path = Path(tempfile.mkdtemp(dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path)


def sampled(keys: Sequence[CompileKey], count: int | None) -> tuple[CompileKey, ...]:
    """About ``count`` keys, evenly over the order of the given ones; those that may share work stay together."""
    groups: dict[object, list[CompileKey]] = {}
    for key in keys:
        groups.setdefault(alike(key), []).append(key)
    ordered = list(groups.values())
    if count is None or count >= len(keys):
        return tuple(key for group in ordered for key in group)
    wanted = max(1, min(len(ordered), round(count * len(ordered) / len(keys))))
    chosen = [ordered[(2 * index + 1) * len(ordered) // (2 * wanted)] for index in range(wanted)]
    return tuple(key for group in chosen for key in group)


def without_helpers(manifest: Manifest) -> Manifest:
    """A manifest of kernels alone: what is not compiled for each key stays out of what is counted for each."""
    return replace(manifest, helpers=(), results=(), missing=())


def build_command(engine: Engine, output: Path, *, small: bool) -> list[str | Path]:
    """The command that builds what is measured with."""
    narrowing = SMALL if small else ()
    command = ["-m", "aotpack", "build", *SELECTION, *narrowing, "--engine", engine.root, "--output", output]
    return python(*command)


def built_bundle(engine: Engine, directory: Path, kept: Path, *, small: bool) -> Bundle:
    """Every preset's bundle, built once for each directory."""
    path = directory / f"{'small' if small else 'presets'}.tar.zst"
    if not path.exists():
        spend(build_command(engine, path, small=small), {"AOTPACK_CACHE_DIR": str(kept)})
    return open_bundle(path)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model.partition(":")[2].strip() or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": os.getloadavg()[0],
    }


def versions(engine: Engine) -> dict[str, str]:
    """What took part."""
    done = subprocess.run(["zstd", "--version"], capture_output=True, text=True, check=True)
    return {
        "aotpack": version("aotpack"),
        "engine": str(engine),
        "triton": version("triton"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "zstandard": f"{zstandard.__version__} (libzstd {'.'.join(map(str, zstandard.ZSTD_VERSION))})",
        "zstd": done.stdout.strip().strip("*").strip(),
    }
