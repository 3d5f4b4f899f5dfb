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

from aotpack.bundle import open_bundle
from aotpack.engines import find_engine
from aotpack.families import load_families
from aotpack.install import install_bundle
from aotpack.documents import Node
from aotpack.models import Deployment
from aotpack.tracing import Tracer


def drive(bundle_path: Path, engine_spec: str | None) -> dict[str, Any]:
    """Drive every wrapper in this process; TRITON_CACHE_DIR says where Triton looks."""
    bundle = open_bundle(bundle_path)
    families = load_families(bundle.manifest.families)
    engine = find_engine(engine_spec, lambda line: print(line, file=sys.stderr))
    hits: set[str] = set()
    misses: list[dict[str, str]] = []
    for target in bundle.manifest.targets[:1]:
        from triton import knobs
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        launch, tune = JITFunction.run, Autotuner.run
        tracer = Tracer(engine, target, families)
        # Triton's own launch path again, up to the launch itself.
        JITFunction.run = lambda self, *args, grid, warmup, **kwargs: launch(  # noqa: ARG005
            self, *args, grid=grid, warmup=True, **kwargs
        )
        Autotuner.run = tune

        def listen(*, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
            del metadata_group, times
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
    expected = sum(entry.key.target == bundle.manifest.targets[0] for entry in bundle.manifest.entries)
    return {
        "triton": bundle.manifest.toolchain.triton,
        "python": sys.version.split()[0],
        "keys": expected,
        "hits": len(hits),
        "misses": misses,
    }


def main() -> int:
    """Install, drive in a fresh process, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--engine")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        print(json.dumps(drive(options.bundle, options.engine)))
        return 0
    with tempfile.TemporaryDirectory() as cache:
        install_bundle(open_bundle(options.bundle), Path(cache))
        command = [sys.executable, __file__, str(options.bundle), "--drive"]
        command += ["--engine", options.engine] if options.engine else []
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return done.returncode
    report = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(report, indent=2))
    return 1 if report["misses"] or report["hits"] != report["keys"] else 0


if __name__ == "__main__":
    sys.exit(main())
