"""What a check saw: a code, a subject, and a hint. A check returns findings; an action raises."""

from dataclasses import dataclass

CODES = {
    "E101": "engine release that aotpack has not been tested with",
    "E102": "Triton release other than the one this engine release runs with",
    "E103": "kernel that this engine release does not have",
    "E104": "family that does not drive this engine release",
    "F101": "family of kernels that cannot be loaded",
    "K101": "compile key that could not be compiled",
    "K102": "value that only the serving machine fixes, and keys that depend on it",
    "I101": "entry of the cache that another process or user has changed since it was installed",
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
        code: a key of ``CODES``; the letter tells the subject (engine, family, key, install, verify).
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
        return f"{self.code} {self.subject}: {self.detail}" + (f"; {self.hint}" if self.hint else "")
