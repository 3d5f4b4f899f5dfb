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
    "I102": "kernels of an architecture whose assembler is another one here, and that were not installed",
    "I103": "difference of the assembler that was accepted on purpose",
    "I104": "kernel whose source is another one in the engine that is installed, and that was not installed",
    "I105": "engine of another release than the bundle's",
    "I101": "entry of the cache that another process or user has changed since it was installed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check saw.

    Attributes:
        code: a key of ``CODES``; the letter tells the subject (engine, key, model, install).
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
