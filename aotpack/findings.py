"""What a check saw: a code, a subject, and a hint. A check returns findings; an action raises."""

from dataclasses import dataclass

from aotpack.errors import printable

CODES = {
    "C101": "file of the compile cache that is damaged",
    "C102": "compile cache that cannot be used",
    "C103": "worker of a cluster that was refused",
    "E101": "engine release that aotpack has not been tested with",
    "E102": "Triton release other than the one this engine release runs with",
    "E103": "kernel that this engine release does not have",
    "E104": "family that does not drive this engine release",
    "F101": "family of kernels that cannot be loaded",
    "K101": "compile key that could not be compiled",
    "K102": "value that only the serving machine fixes, and keys that depend on it",
    "H101": "native helpers that cannot be built here",
    "H102": "Python that a bundle has no native helpers for",
    "H103": "native helper that this Triton needs and a bundle lacks",
    "H104": "native helper that needs a newer glibc",
    "H105": "native helper whose key depends on where the driver's library will be",
    "I102": "kernels of an architecture whose assembler is another one here, and that were not installed",
    "I103": "difference of the assembler that was accepted on purpose",
    "I104": "kernel whose source is another one in the engine that is installed, and that was not installed",
    "I105": "engine of another release than the bundle's",
    "D101": "cache directory that this user cannot write or create",
    "D102": "cache directory that this user cannot read",
    "D103": "cache directory on a mount from which nothing can be executed",
    "D104": "cache directory without space or inodes for the kernels",
    "D105": "TRITON_CACHE_DIR that is set to nothing",
    "D106": "Triton that is not here or cannot be used",
    "D107": "environment variable that keeps Triton from its cache",
    "D108": "bundle that does not fit the Triton here",
    "D110": "GPU that no kernel was compiled for",
    "D111": "driver older than the CUDA that assembled the kernels",
    "D112": "driver that does not answer",
    "D113": "native helpers that are neither here nor can be built here",
    "D114": "ldconfig that Triton needs and that is not here",
    "D115": "receipt that cannot be read",
    "D116": "cache directory that was moved since an install",
    "D117": "installed bundle whose kernels Triton would not find",
    "D118": "assembler that Triton needs and that does not run",
    "D119": "wheel whose bundle cannot be read",
    "D120": "policy, key or signature that cannot be read",
    "D201": "cache directory on a network file system",
    "D202": "cache directory that a serving process may not look in",
    "D203": "cache directory that depends on the working directory",
    "D204": "Triton whose files are not those of its wheel",
    "D205": "environment variable that decides where Triton's entries come from",
    "D206": "assembler other than the one asked for or expected",
    "D207": "wheel whose kernels are for another Triton",
    "D208": "place that others may write, and that is not served from",
    "I101": "entry of the cache that another process or user has changed since it was installed",
    "S101": "bundle that nobody has signed",
    "S102": "bundle that no trusted key has signed",
    "S103": "signature that is damaged, or is of something else",
    "S104": "policy that has expired",
    "S105": "signatures that have expired",
    "V101": "bundle that is truncated or altered",
    "V102": "machine code for another architecture than its entry is for, or no machine code",
    "V103": "metadata that Triton could not load",
    "V111": "installed entry that lacks files",
    "V112": "installed entry with files that are not what was installed",
    "V113": "installed entries whose group files name another directory",
    "V114": "installed entry that Triton has compiled anew",
    "V115": "receipt that cannot be read",
    "V116": "cache directory without a receipt",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check saw.

    Attributes:
        code: a key of ``CODES``; the letter tells the subject (engine, family, key, helper, install, verify).
        subject: what it is about: a kernel, a release, a path.
        detail: what was seen, in one line.
        hint: what to do now, or "" where nothing can be done.
    """

    code: str
    subject: str
    detail: str
    hint: str = ""

    def __str__(self) -> str:
        """``CODE subject: detail; hint`` in one line."""
        return printable(f"{self.code} {self.subject}: {self.detail}" + (f"; {self.hint}" if self.hint else ""))


def is_error(finding: Finding) -> bool:
    """Whether a finding of the doctor is more than a warning: one of its own, or of what would be refused."""
    return finding.code.startswith(("D1", "I", "S"))
