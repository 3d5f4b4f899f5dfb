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
    "H101": "native helpers that cannot be built here",
    "H102": "Python that a bundle has no native helpers for",
    "H103": "native helper that this Triton needs and a bundle lacks",
    "H104": "native helper that needs a newer glibc",
    "H105": "native helper whose key depends on where the driver's library will be",
    "I101": "entry of the cache that another process or user has changed since it was installed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check saw.

    Attributes:
        code: a key of ``CODES``; the letter tells the subject (engine, family, key, helper, install).
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
