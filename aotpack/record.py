"""Records: the compile keys that a running engine met, as a file of JSON lines.

A line has a kernel, its signature, constexprs, attrs and options, as Triton's binder gave them; a first line with
``meta`` alone says of what run. Records come from other releases of Triton too, so they are compared in a form that
leaves out what differs between releases and says nothing: arguments listed with empty attrs.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotpack.digests import canonical_json
from aotpack.errors import AotpackError
from aotpack.keys import CompileKey, spell_constant


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedKey:
    """One key that a run met, in the form in which keys are compared.

    Attributes:
        kernel: ``module:qualname``.
        form: every field of the key, empty attrs aside, in one canonical line.
    """

    kernel: str
    form: str


def comparable(key: CompileKey) -> RecordedKey:
    """A key in the form in which keys are compared."""
    return _recorded(
        key.kernel,
        {
            "signature": dict(key.to_json()["signature"]),
            "constexprs": [[list(path), value] for path, value in key.constexprs],
            "attrs": key.to_json()["attrs"],
            "options": key.to_json()["options"],
        },
    )


def read_records(path: Path) -> tuple[RecordedKey, ...]:
    """The keys of a file of records, each once, in its order.

    Raises:
        AotpackError: the file cannot be read, or a line of it is no record; the message says which.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AotpackError(f"{path}: cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if "meta" not in record:
                found.append(_recorded(_with_colon(record["kernel"]), record))
        except (ValueError, KeyError, TypeError) as error:
            raise AotpackError(f"{path}: line {number} is not a recorded key: {error!r}") from None
    return tuple(dict.fromkeys(found))


def _with_colon(kernel: str) -> str:
    """``module:qualname``, of a name that has dots alone."""
    if ":" in kernel:
        return kernel
    module, _, name = kernel.rpartition(".")
    return f"{module}:{name}"


def _recorded(kernel: str, record: dict[str, Any]) -> RecordedKey:
    form = {
        "kernel": kernel,
        "signature": record["signature"],
        "constexprs": sorted(([path, spell_constant(value)] for path, value in record["constexprs"]), key=str),
        "attrs": sorted([path, attrs] for path, attrs in record["attrs"] if attrs),
        "options": record["options"],
    }
    return RecordedKey(kernel=kernel, form=canonical_json(form))
