"""A process that activates aotpack, and says how long that took.

    python -m benchmark.activating [MODULE...]

The modules are imported first. Prints a JSON object: the seconds that importing and activating took, and whether
anything is served.
"""

import json
import sys
import time
from importlib import import_module


def main(*modules: str) -> None:
    """Import, activate, and say what it took."""
    for module in modules:
        import_module(module)
    start = time.perf_counter()
    import aotpack  # noqa: PLC0415  # its import is part of what is measured

    aotpack.activate()
    seconds = time.perf_counter() - start
    served = sys.modules["aotpack.runtime"].served_places()
    print(json.dumps({"seconds": seconds, "served": len(served)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
