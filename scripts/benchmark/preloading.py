"""A process that preloads what a bundle has, as one that serves does when its model is loaded; on a fake GPU.

    python -m benchmark.preloading BUNDLE ENGINE

``TRITON_CACHE_DIR`` or ``AOTPACK_BUNDLE_PATH`` say what is served; libcuda is the fake one of the tests. Prints a JSON
object: how many keys were made ready, and the seconds.
"""

import json
import sys
import time
from pathlib import Path

from aotpack.bundle import open_bundle
from aotpack.engines import find_engine
from aotpack.families import load_families
from aotpack.runtime.preload import preload
from aotpack.tracing import Tracer


def main(path: str, root: str) -> None:
    """Load the engine's modules, preload, and say what it took."""
    manifest = open_bundle(Path(path)).manifest
    Tracer(
        find_engine(root, lambda line: print(line, file=sys.stderr)),
        manifest.targets[0],
        load_families(manifest.families),
    )
    from triton.backends.nvidia.driver import CudaDriver  # noqa: PLC0415  # once the process is a target
    from triton.runtime import driver  # noqa: PLC0415
    from triton.runtime.cache import triton_key  # noqa: PLC0415

    driver.set_active(CudaDriver())
    triton_key()  # whoever uses Triton pays for its hash of itself
    start = time.perf_counter()
    done = preload(seconds=3600)
    print(json.dumps({"ready": done.ready, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
