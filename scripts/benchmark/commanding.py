"""A process that has imported Triton and had it hash itself, and then runs a command of aotpack's.

    python -m benchmark.commanding ARGUMENT...

Any process that serves pays for Triton's import and its hash, so what aotpack adds is told without them. Prints what
the command does, and a JSON object: the seconds that importing aotpack and running the command took.
"""

import json
import sys
import time

from triton.runtime.cache import triton_key


def main(*arguments: str) -> None:
    """Get ready, run, and say what it took."""
    triton_key()
    start = time.perf_counter()
    from aotpack.cli import main as command  # noqa: PLC0415  # its import is part of what is measured

    try:
        command(arguments, prog_name="aotpack")
    except SystemExit as ended:
        if ended.code:
            raise
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
