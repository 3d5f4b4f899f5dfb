#!/usr/bin/env python3
"""Draw what was measured of serving, as the SVG that the README shows.

    scripts/chart.py [--check]

Reads tests/data/served-vllm-0.33.0-h200.json, which ``tests/gpu/serve.py`` wrote on a GPU, and writes docs/serving.svg.
With --check it compares instead, and exits with 1 where the two differ.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "served-vllm-0.33.0-h200.json"
CHART = ROOT / "docs" / "serving.svg"

WIDTH, BAR, GAP, LEFT, RIGHT = 760, 20, 6, 190, 90
PANELS = (("startup_seconds", "start-up, seconds"), ("first_request_ms", "first request, milliseconds"))
CASES = {"cold": ("empty Triton cache", "#9aa5b1"), "bundle": ("aotpack", "#1f7a5c"), "warm": ("warm cache", "#c9d1d9")}
MODES = {"default": "default mode", "eager": "eager mode"}


def chart(table: list[dict[str, Any]], title: str) -> str:
    """The SVG of a table of medians."""
    body = list(_panels(table))
    height = 40 + sum(line.count("<rect") * (BAR + GAP) + line.count('class="panel"') * 34 for line in body)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13" role="img">\n'
        f"<title>{title}</title>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="16" y="24" font-weight="bold">{title}</text>\n'
    )
    return head + "\n".join(body) + "\n</svg>\n"


def _panels(table: list[dict[str, Any]]) -> Iterator[str]:
    top = 40
    for field, caption in PANELS:
        yield f'<text class="panel" x="16" y="{top + 18}" fill="#52606d">{caption}</text>'
        top += 34
        rows = [row for mode in MODES for case in CASES for row in table if (row["mode"], row["case"]) == (mode, case)]
        largest = max(row[field] for row in rows)
        for row in rows:
            name, colour = CASES[row["case"]]
            width = max(1, round((WIDTH - LEFT - RIGHT) * row[field] / largest))
            middle = top + BAR - 5
            yield (
                f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{MODES[row["mode"]]}, {name}</text>'
                f'<rect x="{LEFT}" y="{top}" width="{width}" height="{BAR}" fill="{colour}"/>'
                f'<text x="{LEFT + width + 6}" y="{middle}">{row[field]:,g}</text>'
            )
            top += BAR + GAP


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    measured = json.loads(DATA.read_text())
    drawn = chart(measured["table"], measured["provenance"]["title"])
    if options.check:
        return int(CHART.read_text() != drawn)
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
