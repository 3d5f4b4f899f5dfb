"""Keys that a real engine met on a real GPU."""

import json
from pathlib import Path
from typing import Any

from aotpack.keys import CompileKey
from aotpack.record import comparable as form_of
from aotpack.record import read_records

DATA = Path(__file__).parent / "data"
H200 = DATA / "recorded-vllm-0.33.0-h200-qwen3_5.jsonl"
H200_FP16 = DATA / "recorded-vllm-0.33.0-h200-qwen3_5-fp16.jsonl"


def recorded_keys(path: Path = H200) -> list[dict[str, Any]]:
    """The comparable form of each recorded key, as a document."""
    return [json.loads(record.form) for record in read_records(path)]


def comparable(key: CompileKey) -> dict[str, Any]:
    """The same form of an enumerated key."""
    document: dict[str, Any] = json.loads(form_of(key).form)
    return document
