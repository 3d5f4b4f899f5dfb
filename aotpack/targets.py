"""Targets: what a kernel is compiled for, and the device that a tracing process pretends to be.

A target is Triton's ``GPUTarget`` (backend, architecture, warp size), spelled ``cuda:90``. People write
architectures in more ways than one; ``parse_arch`` takes them all at the door and nothing past it sees text.
"""

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from aotpack.errors import UsageError

_ARCH = re.compile(r"(?:cuda:|sm_?)?(?P<number>\d{2,3}|\d{1,2}\.\d)a?", re.IGNORECASE)
_TARGET = re.compile(r"(?P<backend>cuda):(?P<arch>[1-9]\d{1,2})(?:/(?P<warp_size>[1-9]\d{0,2}))?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """What a kernel is compiled for, as Triton's ``GPUTarget``.

    Attributes:
        backend: Triton's name of the back end; "cuda" is the one that aotpack builds for.
        arch: the compute capability without its point: 90 for 9.0.
        warp_size: threads in a warp.
    """

    backend: str
    arch: int
    warp_size: int = 32

    def __str__(self) -> str:
        """``cuda:90``; ``Target.parse`` undoes it."""
        suffix = "" if self.warp_size == 32 else f"/{self.warp_size}"  # noqa: PLR2004
        return f"{self.backend}:{self.arch}{suffix}"

    @property
    def short(self) -> str:
        """``sm90``: how file names and people call it."""
        return f"sm{self.arch}"

    @classmethod
    def parse(cls, text: str) -> "Target":
        """The target that ``str`` spelled.

        >>> Target.parse("cuda:90")
        Target(backend='cuda', arch=90, warp_size=32)

        Raises:
            UsageError: ``text`` is no target.
        """
        match = _TARGET.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not a target; expected one such as cuda:90")
        return cls(match["backend"], int(match["arch"]), int(match["warp_size"] or 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The GPU that a tracing process pretends to be: what engines ask a device before they launch.

    Attributes:
        name: as ``torch.cuda.get_device_name`` gives it.
        sm_count: streaming multiprocessors; some wrappers derive constexprs from it.
        shared_memory: bytes of shared memory that one block can opt in to
            (``cudaDevAttrMaxSharedMemoryPerBlockOptin``); some modules choose their configurations by it.
        memory: bytes of device memory.
    """

    name: str
    sm_count: int
    shared_memory: int
    memory: int


# One common data-center or workstation part for each architecture. Shared memory is the architecture's own
# (CUDA C++ Programming Guide, "Compute Capabilities"); SM counts are those of the named product.
DEVICES: dict[int, Device] = {
    80: Device(name="NVIDIA A100-SXM4-80GB", sm_count=108, shared_memory=166912, memory=80 << 30),
    86: Device(name="NVIDIA A10", sm_count=72, shared_memory=101376, memory=24 << 30),
    87: Device(name="Orin", sm_count=16, shared_memory=166912, memory=64 << 30),
    89: Device(name="NVIDIA L40S", sm_count=142, shared_memory=101376, memory=48 << 30),
    90: Device(name="NVIDIA H100 80GB HBM3", sm_count=132, shared_memory=232448, memory=80 << 30),
    100: Device(name="NVIDIA B200", sm_count=148, shared_memory=232448, memory=180 << 30),
    103: Device(name="NVIDIA B300", sm_count=148, shared_memory=232448, memory=270 << 30),
    110: Device(name="NVIDIA Thor", sm_count=20, shared_memory=232448, memory=128 << 30),
    120: Device(name="NVIDIA RTX PRO 6000 Blackwell", sm_count=188, shared_memory=101376, memory=96 << 30),
    121: Device(name="NVIDIA GB10", sm_count=48, shared_memory=101376, memory=128 << 30),
}


def buildable_archs() -> tuple[int, ...]:
    """The architectures that the installed Triton's ptxas builds and aotpack knows a device for.

    Triton's wheel has two assemblers, ``ptxas`` and ``ptxas-blackwell`` (backends/nvidia/bin); each lists
    what it takes under ``--gpu-name`` in its help. Where Triton is not installed, all known ones.
    """
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return tuple(DEVICES)
    listed: set[int] = set()
    for tool in sorted((Path(spec.origin).parent / "backends" / "nvidia" / "bin").glob("ptxas*")):
        try:
            text = subprocess.run([tool, "--help"], capture_output=True, text=True, check=True).stdout  # noqa: S603
        except (OSError, subprocess.CalledProcessError):
            continue
        listed.update(int(number) for number in re.findall(r"'sm_(\d+)'", text))
    return tuple(arch for arch in DEVICES if arch in listed) or tuple(DEVICES)


def parse_arch(text: str) -> Target:
    """The target that ``sm90``, ``sm_90``, ``90``, ``9.0`` or ``sm_90a`` means.

    >>> {str(parse_arch(text)) for text in ("sm90", "sm_90", "90", "9.0", "sm_90a", "cuda:90")}
    {'cuda:90'}

    Raises:
        UsageError: no architecture, or one that the installed Triton's ptxas does not build; the message
            lists those it does.
    """
    match = _ARCH.fullmatch(text.strip())
    known = buildable_archs()
    if match is not None:
        arch = int(match["number"].replace(".", ""))
        if arch in known:
            return Target("cuda", arch)
    listed = ", ".join(f"sm{arch}" for arch in known)
    raise UsageError(f"{text.strip()!r} is not an architecture that can be built for here; choose from {listed}")


def parse_archs(texts: Iterable[str]) -> tuple[Target, ...]:
    """The targets of a repeated option whose values may be comma lists, each once, in ascending order.

    Raises:
        UsageError: as ``parse_arch``, or no architecture at all.
    """
    targets = {parse_arch(part) for text in texts for part in text.split(",")}
    if not targets:
        raise UsageError("no architecture given; try --arch sm90")
    return tuple(sorted(targets))
