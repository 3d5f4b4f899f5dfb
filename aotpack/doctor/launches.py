"""Probes of what launches need beside kernels: GPUs, their driver, and Triton's native helpers."""

import os
import platform
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from aotpack.bundle import Bundle
from aotpack.doctor.sections import Findings, Section, files_found, find_distribution
from aotpack.findings import Finding
from aotpack.gpus import Driver
from aotpack.targets import Target


def probe_gpus(driver: Driver | None, targets: Sequence[Target], toolkits: Mapping[Target, str]) -> Section:
    """The GPUs here, each against the kernels' targets, and the driver against the CUDA that assembled them.

    A driver loads what any toolkit of its own major release or of an older one made, given the first driver of that
    major: "minor version compatibility" and binary backward compatibility (NVIDIA, CUDA Compatibility, "Minor
    Version Compatibility": https://docs.nvidia.com/deploy/cuda-compatibility/). It promises nothing of a newer major.

    Args:
        driver: what was asked of it, or None where there is none.
        targets: of the bundle, or of what is installed.
        toolkits: the CUDA release that assembled each target's kernels, "12.9".
    """
    if driver is None:
        return Section(title="GPU", rows=(("driver", "none (no libcuda.so.1): nothing can be launched here"),))
    findings: list[Finding] = []
    say = Findings(findings, "driver")
    cuda = f"CUDA {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else "of an unknown release"
    rows = [("driver", cuda)]
    if driver.trouble:
        say("D112", driver.trouble, "run nvidia-smi on the host; in a container, mount the driver that matches it")
    archs = list(dict.fromkeys(gpu.arch for gpu in driver.gpus))
    counts = {gpu: driver.gpus.count(gpu) for gpu in driver.gpus}
    rows += [("GPU", f"{count} x {gpu.name} (sm{gpu.arch})") for gpu, count in counts.items()]
    if not driver.gpus:
        rows.append(("GPU", "unknown" if driver.trouble else "none that this process may see"))
    available = {target.arch: target for target in targets}
    for arch in archs if available else ():
        if arch not in available:
            held = ", ".join(target.short for target in targets)
            findings.append(
                Finding(
                    code="D110",
                    subject=next(gpu.name for gpu in driver.gpus if gpu.arch == arch),
                    detail=f"is sm{arch}, and the kernels are for {held}; it will compile its own",
                    hint=f"build a bundle with --arch sm{arch}",
                )
            )
            continue
        toolkit = toolkits.get(available[arch], "")
        if toolkit and driver.cuda and int(toolkit.split(".")[0]) > driver.cuda[0]:
            say(
                "D111",
                f"supports {cuda}, and the kernels of sm{arch} were assembled with CUDA {toolkit}, of a newer major",
                f"update the driver to one of CUDA {toolkit.split('.')[0]}, or add cuda-compat to the image",
            )
        elif toolkit:
            rows.append((f"sm{arch}", f"assembled with CUDA {toolkit}, which this driver loads"))
    return Section(title="GPU", rows=tuple(rows), findings=tuple(findings))


def probe_helpers(cache: Path, environment: Mapping[str, str], bundle: Bundle | None) -> Section:
    """Whether Triton's native helpers are there, or can be built here.

    Every release builds ``cuda_utils`` with a C compiler when the driver is first used, and up to 3.6 one
    ``__triton_launcher`` for each signature as well (triton/backends/nvidia/driver.py). ``/sbin/ldconfig`` is run
    before, even where all is in the cache, unless ``TRITON_LIBCUDA_PATH`` is set. Whether ``file`` is there enters
    the helpers' keys (triton/runtime/build.py, ``platform_key``).
    """
    findings: list[Finding] = []
    say = Findings(findings, "native helpers")
    compiler, trouble = _compiler(environment)
    file, ldconfig = shutil.which("file"), Path("/sbin/ldconfig")
    rows = [("C compiler", compiler or trouble), ("file", file or "none")]
    rows.append(("ldconfig", str(ldconfig) if ldconfig.exists() else "none"))
    found = find_distribution("triton", "pytorch-triton")
    if found is None:
        return Section(title="native helpers", rows=tuple(rows), findings=tuple(findings))
    held = helpers_held(cache, found.version, bundle)
    launchers = " and one launcher for each signature" if _has_launchers(found.version) else ""
    rows.append((f"Triton {Version(found.version).public}", f"needs cuda_utils{launchers}"))
    rows.append(("helpers", held or "none yet for this Python: a C compiler is needed"))
    if not held and trouble:
        say(
            "D113",
            f"none are here for this Python, and none can be built: {trouble}",
            "install gcc and Python's headers",
        )
    if not ldconfig.exists() and not environment.get("TRITON_LIBCUDA_PATH"):
        say(
            "D114",
            "Triton runs /sbin/ldconfig to find the driver, and it is not there",
            f"set TRITON_LIBCUDA_PATH=/usr/lib/{platform.machine()}-linux-gnu, or where libcuda.so.1 lies",
        )
    return Section(title="native helpers", rows=tuple(rows), findings=tuple(findings))


def helpers_held(cache: Path, triton: str, bundle: Bundle | None) -> str:
    """Where this Python's helpers are, or "" where they are not: in the bundle, or in the cache directory.

    Args:
        cache: the cache directory.
        triton: the release of Triton.
        bundle: the bundle that is to serve here.
    """
    names = ("cuda_utils", "__triton_launcher") if _has_launchers(triton) else ("cuda_utils",)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if all(files_found(cache, f"*/{name}{suffix}") for name in names):
        return "in the cache directory, for this Python"
    if bundle is not None and any(helper.suffix == suffix for helper in bundle.manifest.helpers):
        return "in the bundle, for this Python"
    return ""


def _has_launchers(triton: str) -> bool:
    return Version(triton) < Version("3.7")


def _compiler(environment: Mapping[str, str]) -> tuple[str, str]:
    """The compiler that Triton would call, and what stands in its way (triton/runtime/build.py)."""
    asked = environment.get("CC")
    path = shutil.which(asked) if asked is not None else shutil.which("gcc") or shutil.which("clang")
    if path is None:
        return "", f"CC={asked} is not there" if asked is not None else "no gcc and no clang on PATH"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not os.access(header, os.R_OK):  # Path.is_file raises where a directory above it is closed
        return "", f"{path} is there, and {header} is not"
    return path, ""
