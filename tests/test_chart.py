"""The README's chart shows what was measured."""

import subprocess
import sys

from tests.conftest import ROOT


def test_the_chart_is_what_the_measurements_draw() -> None:
    assert subprocess.run([sys.executable, ROOT / "scripts" / "chart.py", "--check"], check=False).returncode == 0
