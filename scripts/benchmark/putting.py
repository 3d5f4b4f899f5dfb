"""A process that lays the entries of a cache directory into another with Triton's own ``put``.

    python -m benchmark.putting FROM TO

Prints a JSON object: how many entries, and the seconds that it took once all was read and Triton imported.
"""

import json
import os
import sys
import time
from pathlib import Path

from aotpack.tritoncache import GROUP_PREFIX, cache_key_of, stem_of


def main(source: str, to: str) -> None:
    """Read, put, and say what it took."""
    os.environ["TRITON_CACHE_DIR"] = to
    from triton.runtime.cache import get_cache_manager  # noqa: PLC0415  # after the directory is said

    entries = []
    for group in Path(source).glob(f"*/{GROUP_PREFIX}*.json"):
        stem = stem_of(group.name)
        files = {name: (group.parent / name).read_bytes() for name in (f"{stem}.cubin", f"{stem}.json")}
        entries.append((cache_key_of(group.parent.name), f"{stem}.json", files))
    start = time.perf_counter()
    for cache_key, name, files in entries:
        manager = get_cache_manager(cache_key)
        manager.put_group(name, {file: manager.put(data, file) for file, data in files.items()})
    print(json.dumps({"entries": len(entries), "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
