"""Keys that a real engine met on a real GPU, in a form that can be held against enumerated ones."""

import json
from pathlib import Path
from typing import Any

from aotpack.keys import CompileKey, spell_constant

H200 = Path(__file__).parent / "data" / "recorded-vllm-0.33.0-h200-qwen3_5.jsonl"


def recorded_keys(path: Path = H200) -> list[dict[str, Any]]:
    """The comparable form of each recorded key: every field, empty attrs aside.

    Releases of Triton differ in which arguments they list with empty attrs, and that says nothing.
    """
    lines = path.read_text().splitlines()[1:]
    return [_comparable(_with_colon(record["kernel"]), record) for record in map(json.loads, lines)]


def comparable(key: CompileKey) -> dict[str, Any]:
    """The same form of an enumerated key."""
    document = key.to_json()
    plain = {
        "signature": dict(document["signature"]),
        "constexprs": [[list(path), value] for path, value in key.constexprs],
    }
    return _comparable(key.kernel, {**document, **plain})


def _with_colon(dotted: str) -> str:
    module, _, name = dotted.rpartition(".")
    return f"{module}:{name}"


def _comparable(kernel: str, record: dict[str, Any]) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "signature": record["signature"],
        "constexprs": sorted(([path, spell_constant(value)] for path, value in record["constexprs"]), key=str),
        "attrs": sorted([path, attrs] for path, attrs in record["attrs"] if attrs),
        "options": record["options"],
    }
