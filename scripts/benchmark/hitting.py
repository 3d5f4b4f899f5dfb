"""A process in which Triton looks up the keys of a bundle for the first time.

    python -m benchmark.hitting BUNDLE ENGINE

``TRITON_CACHE_DIR`` or ``AOTPACK_BUNDLE_PATH`` say where it finds them. Nothing of the engine is imported: what stands
in for its kernels is hashed as they are. Prints a JSON object: how many keys, how many were found, and the seconds.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import aotpack
from aotpack.bundle import open_bundle
from aotpack.sourcekeys import SourceKeys
from aotpack.sources import EngineSources
from aotpack.toolchain import attrs_of, backend_of, constexprs_of, gpu_target, signature_of


def main(path: str, root: str) -> None:
    """Look up, and say what it took."""
    aotpack.activate()
    from triton import compile as triton_compile  # noqa: PLC0415  # once bundles are effective
    from triton import knobs  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415
    from triton.runtime.cache import triton_key  # noqa: PLC0415

    manifest = open_bundle(Path(path)).manifest
    keys = [entry.key for entry in manifest.entries]
    maker = SourceKeys(manifest.sources, EngineSources(Path(root)))
    functions = {key.kernel: maker.stand_in(key.kernel) for key in keys}
    found: list[bool] = []

    def listen(*, cache_hit: bool, **_: Any) -> None:
        found.append(cache_hit)

    knobs.compilation.listener = listen
    # What a process pays once, however many keys it looks up.
    triton_key()
    backend_of(keys[0].target).hash()
    for function in functions.values():
        _ = function.cache_key
    start = time.perf_counter()
    for key in keys:
        source = ASTSource(functions[key.kernel], signature_of(key), constexprs_of(key), attrs_of(key))
        triton_compile(source, target=gpu_target(key.target), options=dict(key.options))
    seconds = time.perf_counter() - start
    print(json.dumps({"keys": len(keys), "found": sum(found), "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
