"""Preload what is installed in TRITON_CACHE_DIR, in several ways, in a process that the fake libcuda serves.

    python -m tests.preloads BUNDLE ENGINE

Prints a JSON object: for each way what ``Preloaded`` counts, and what else the test asks of it.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aotpack.bundle import open_bundle
from aotpack.cachedirectory import effective_directory
from aotpack.engines import find_engine
from aotpack.families import load_families
from aotpack.runtime.preload import Preloaded, Preloader, preload
from aotpack.tracing import Tracer
from tests.launches import PLAIN, arguments_of, key_of


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


class Ways:
    """A process as it is when a model is loaded, and the ways to preload in it; each starts with nothing ready."""

    def __init__(self, bundle_path: str, engine: str) -> None:
        bundle = open_bundle(Path(bundle_path))
        self.manifest = bundle.manifest
        self.tracer = Tracer(
            find_engine(engine, print), bundle.manifest.targets[0], load_families(bundle.manifest.families)
        )
        from triton.backends.nvidia.driver import CudaDriver
        from triton.runtime import driver

        driver.set_active(CudaDriver())
        self.log: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self.log.append(f"{record.levelname}: {record.getMessage()}")  # type: ignore[method-assign]
        logging.getLogger("aotpack").addHandler(handler)
        logging.getLogger("aotpack").setLevel(logging.INFO)

    def of_what_is_installed(self) -> Any:
        return preload()

    def twice(self) -> Any:
        return [preload(), preload()]

    def of_a_manifest(self) -> Any:
        return preload([self.manifest])

    def of_two_bundles_with_the_same_keys(self) -> Any:
        return preload([self.manifest, self.manifest])

    def of_a_module_that_comes_later(self) -> Any:
        name = self.manifest.entries[0].key.module
        module, preloader = sys.modules.pop(name), Preloader()
        first = preloader.run()
        sys.modules[name] = module
        return [first, preloader.run(), preloader.run()]

    def without_time(self) -> Any:
        return preload(seconds=0.0)

    def with_the_variables_of_no_time(self) -> Any:
        with variable("AOTPACK_PRELOAD_SECONDS", "0"):
            return preload()

    def with_a_time_that_is_no_number(self) -> Any:
        with variable("AOTPACK_PRELOAD_SECONDS", "soon"):
            return preload()

    def switched_off(self) -> Any:
        with variable("AOTPACK_DISABLE", "1"):
            return preload()

    def where_triton_compiles_always(self) -> Any:
        with variable("TRITON_ALWAYS_COMPILE", "1"):
            return preload()

    def with_a_variable_that_changes_keys(self) -> Any:
        with variable("TRITON_DISABLE_LINE_INFO", "1"):
            return preload()

    def with_a_knob_that_changes_keys(self) -> Any:
        from triton import knobs

        knobs.runtime.debug = True  # what TRITON_DEBUG=1 does, which Triton reads when it is imported
        done = preload()
        knobs.runtime.debug = False
        return done

    def with_one_key_taken_out(self) -> Any:
        taken = next(effective_directory().glob("*/__grp__*")).parent
        aside = Path(f"{taken}-aside")
        taken.rename(aside)
        before = sorted(effective_directory().iterdir())
        done = preload()
        same = sorted(effective_directory().iterdir()) == before
        aside.rename(taken)
        return [done, same]

    @contextmanager
    def _damaged(self) -> Iterator[None]:
        cubin = next(effective_directory().glob("*/*.cubin"))
        content = cubin.read_bytes()
        cubin.write_bytes(b"no machine code")
        yield
        cubin.write_bytes(content)

    def with_one_damaged(self) -> Any:
        with self._damaged():
            return preload()

    def with_one_damaged_strictly(self) -> Any:
        with self._damaged(), variable("AOTPACK_STRICT", "1"):
            try:
                return preload()
            except RuntimeError as error:
                return str(error)

    def with_a_manifest_that_is_another(self) -> Any:
        (path,) = (effective_directory() / ".aotpack" / "manifests").iterdir()
        content = path.read_bytes()
        path.write_bytes(content[:-10])
        done = preload()
        path.write_bytes(content)
        return done

    def recorded_in_two_spellings(self) -> Any:
        # The recorder still stands in for Triton's launch.
        key = key_of([entry.key for entry in self.manifest.entries], PLAIN)
        warps, stages = (dict(key.options)[name] for name in ("num_warps", "num_stages"))
        for given in ({"num_warps": warps}, {"num_stages": stages, "num_warps": warps}):
            self.tracer.function(key.kernel)[(1,)](*arguments_of(key, {}), **given)
        (recorded,) = self.tracer._recorder.take()
        assert recorded.key == key
        return [[name for name, _ in launch] for launch in recorded.launches]

    def run(self, way: str) -> dict[str, Any]:
        for entry in self.manifest.entries:
            self.tracer.function(entry.key.kernel).device_caches.clear()
        self.log.clear()
        result = getattr(self, way)()
        ready = {
            id(kernel)
            for name in {entry.key.kernel for entry in self.manifest.entries}
            for kernel in self.tracer.function(name).device_caches[0][0].values()
        }
        return {"result": result, "kernels": len(ready), "log": list(self.log)}


def main(bundle: str, engine: str) -> None:
    ways = Ways(bundle, engine)
    names = [name for name in vars(Ways) if not name.startswith("_") and name != "run"]

    def spell(value: Any) -> Any:
        if isinstance(value, Preloaded):
            return {name: count for name, count in asdict(value).items() if count and name != "seconds"}
        raise TypeError(value)

    print(json.dumps({name: ways.run(name) for name in names}, default=spell))


if __name__ == "__main__":
    main(*sys.argv[1:])
