#!/usr/bin/env python3
"""Prove with Triton alone that it finds every kernel of a bundle here: no torch, no GPU, no engine imported.

Installs BUNDLE with the command line into a cache directory, then, in a fresh process, hands each of its keys to
``triton.compile``, with kernels that stand where they stand in the engine's files. Each must be a hit. Prints a JSON
report; exits with 1 on any miss.

    scripts/check_lookups.py BUNDLE --engine DIRECTORY --cache-dir DIRECTORY

For Pythons that have a Triton and no torch; scripts/check_hits.py asks more, and needs torch.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import triton
from triton.compiler import ASTSource

from aotpack.bundle import Bundle, open_bundle
from aotpack.engines import find_engine
from aotpack.sourcekeys import SourceKeys
from aotpack.sources import EngineSources
from aotpack.toolchain import attrs_of, constexprs_of, gpu_target, signature_of


def look_up(bundle: Bundle, root: Path) -> dict[str, Any]:
    """Hand every key to Triton in this process; TRITON_CACHE_DIR says where it looks."""
    maker = SourceKeys(bundle.manifest.sources, EngineSources(root))
    hits = 0
    misses: list[str] = []
    found: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: found.append(cache_hit)
    for entry in bundle.manifest.entries:
        key = entry.key
        source = ASTSource(
            maker.stand_in(key.kernel), signature=signature_of(key), constexprs=constexprs_of(key), attrs=attrs_of(key)
        )
        found.clear()
        try:
            triton.compile(source, target=gpu_target(key.target), options=dict(key.options))
        except Exception as error:  # noqa: BLE001  # a stand-in cannot be compiled, so a miss ends in any error
            misses.append(f"{key.describe()}: {type(error).__name__}")
        else:
            hits += found == [True]
    return {
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "prefix": sys.prefix,
        "uid": os.getuid(),
        "cache": os.environ["TRITON_CACHE_DIR"],
        "keys": len(bundle.manifest.entries),
        "hits": hits,
        "misses": misses,
    }


def main() -> int:
    """Install, look up in a fresh process, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--engine", required=True, help="as for aotpack install")
    parser.add_argument("--cache-dir", required=True)
    parser.add_argument("--look-up", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look_up:
        report = look_up(open_bundle(options.bundle), find_engine(options.engine, print).root)
        print(json.dumps(report))
        return int(report["hits"] != report["keys"])
    environment = {**os.environ, "TRITON_CACHE_DIR": options.cache_dir}
    install = [sys.executable, "-m", "aotpack", "install", str(options.bundle), "--engine", options.engine]
    code = subprocess.run(install, env=environment, check=False).returncode
    if code:
        return code
    return subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--look-up"], env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
