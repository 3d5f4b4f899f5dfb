#!/usr/bin/env python3
"""Prove that Triton itself finds every kernel of a bundle: no compile, no GPU.

Installs BUNDLE into an empty cache directory, then, in a fresh process, drives the engine's wrappers for every
deployment of the bundle through Triton's own launch path as far as the launch, with a compilation listener. Each
lookup must be a hit. Prints a JSON report; exits with 1 on any miss.

    scripts/check_hits BUNDLE [--engine ENGINE]

Run it with the Python whose Triton the bundle was built for.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.jit import JITFunction

from aotpack.bundle import Bundle, open_bundle
from aotpack.deployments import Deployment
from aotpack.documents import Node
from aotpack.engines import Engine, find_engine
from aotpack.families import load_families
from aotpack.install import install_bundle
from aotpack.targets import Target
from aotpack.tracing import Tracer


def drive(bundle: Bundle, engine: Engine, target: Target) -> dict[str, Any]:
    """Drive every wrapper for one target in this process; TRITON_CACHE_DIR says where Triton looks."""
    families = load_families(bundle.manifest.families)
    launch = JITFunction.run
    tracer = Tracer(engine, target, families)
    # Triton's own launch path again, up to the launch itself.
    JITFunction.run = lambda self, *args, **kwargs: launch(self, *args, **{**kwargs, "warmup": True})
    hits: set[str] = set()
    misses: list[dict[str, str]] = []

    def listen(*, src: Any, metadata: Any, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            hits.add(metadata["hash"])
        else:
            misses.append({"kernel": src.name, "hash": metadata["hash"]})

    knobs.compilation.listener = listen
    for document in bundle.manifest.deployments:
        deployment = Deployment.from_json(Node(document))
        for family in families:
            if family.serves(deployment):
                family.drive(tracer, deployment)
    return {
        "triton": bundle.manifest.toolchain.triton,
        "python": sys.version.split()[0],
        "target": str(target),
        "keys": sum(entry.key.target == target for entry in bundle.manifest.entries),
        "hits": len(hits),
        "misses": misses,
    }


def main() -> int:
    """Install, drive in a fresh process for each target, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--engine", help="as for aotpack build; default: the bundle's own release")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args()
    bundle = open_bundle(options.bundle)
    spec = options.engine or f"{bundle.manifest.engine}=={bundle.manifest.engine_version}"
    if options.drive:
        engine = find_engine(spec, lambda line: print(line, file=sys.stderr))
        print(json.dumps(drive(bundle, engine, Target.parse(options.drive))))
        return 0
    failed = False
    engine = find_engine(spec, lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory() as cache:
        install_bundle(bundle, Path(cache), engine=engine)
        for target in bundle.manifest.targets:
            command = [sys.executable, __file__, str(options.bundle), "--engine", spec, "--drive", str(target)]
            environment = {**os.environ, "TRITON_CACHE_DIR": cache}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                return done.returncode
            report = json.loads(done.stdout.splitlines()[-1])
            print(json.dumps(report))
            failed |= bool(report["misses"]) or report["hits"] != report["keys"]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
