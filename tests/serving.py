"""A process that serves, for tests: it has Triton look kernels up, and says what was found.

    python -c "from tests.serving import *; serving = Serving(); ..." BUNDLE ENGINE

It knows the kernels of a bundle without importing their engine. No GPU is needed.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import triton
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.cache import FileCacheManager, triton_key

from aotpack.bundle import open_bundle
from aotpack.sourcekeys import SourceKeys
from aotpack.sources import EngineSources
from aotpack.targets import Target
from aotpack.toolchain import attrs_of, backend_of, constexprs_of, gpu_target, signature_of

SM = GPUTarget("cuda", 90, 32)
ANOTHER = 54321
"""A user without a passwd entry."""


@triton.jit  # type: ignore[untyped-decorator]
def own(out, value: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  # Triton's language
    tl.store(out, value)


class Counting(FileCacheManager):  # type: ignore[misc]  # triton has no stubs
    """A manager that someone configured."""

    made: ClassVar[list[str]] = []

    def __init__(self, key: str, *args: Any, **kwargs: Any) -> None:
        Counting.made.append(key)
        super().__init__(key, *args, **kwargs)


class Remote:
    """A remote cache that is not far away."""

    kept: ClassVar[dict[tuple[str, str], bytes]] = {}

    def __init__(self, key: str) -> None:
        self._key = key

    def get(self, names: list[str]) -> dict[str, bytes]:
        return {name: self.kept[self._key, name] for name in names if (self._key, name) in self.kept}

    def put(self, name: str, data: bytes) -> None:
        self.kept[self._key, name] = data


Remote.__name__ = "RemoteCacheBackend"  # Triton asks for the name, in the class or above it


class Serving:
    """The process."""

    def __init__(self) -> None:
        bundle, engine = map(Path, sys.argv[1:])
        self.entries = open_bundle(bundle).manifest.entries
        maker = SourceKeys(open_bundle(bundle).manifest.sources, EngineSources(engine))
        self._sources = [
            ASTSource(
                maker.stand_in(entry.key.kernel),
                signature=signature_of(entry.key),
                constexprs=constexprs_of(entry.key),
                attrs=attrs_of(entry.key),
            )
            for entry in self.entries
        ]

    def look_up(self, count: int | None = None) -> dict[str, Any]:
        """What Triton finds of the bundle's keys, or of the first ones; what it does not find ends in an error."""
        found: list[Path] = []
        errors: list[str] = []
        for source, entry in list(zip(self._sources, self.entries, strict=True))[:count]:
            try:
                kernel = triton.compile(source, target=gpu_target(entry.key.target), options=dict(entry.key.options))
            except Exception as error:  # noqa: BLE001  # a stand-in cannot be compiled
                errors.append(f"{type(error).__name__}: {error}")
            else:
                found += [Path(path) for path in kernel.metadata_group.values()]
        return {"found": len(found) // 2, "errors": errors, "in": sorted({str(path.parent) for path in found})}

    def compile_own(self, value: int = 1) -> str:
        """The directory of a kernel that no bundle has, which is compiled where it is not found."""
        source = ASTSource(own, {"out": "*i32", "value": "constexpr"}, constexprs={(1,): value}, attrs={})
        kernel = triton.compile(source, target=SM)
        (directory,) = {str(Path(path).parent) for path in kernel.metadata_group.values()}
        return directory

    def become_another_user(self) -> None:
        """Go on as another user; what root alone may read is read before."""
        for module in ("engines", "fitting", "helpers", "runtime.helpers", "runtime.overlay", "runtime.stores"):
            import_module(f"aotpack.{module}")
        assert triton_key()
        assert backend_of(Target("cuda", 90)).hash()
        os.setgroups([])
        os.setgid(ANOTHER)
        os.setuid(ANOTHER)


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)
