"""Leftovers: entries of Triton's cache that no install wrote, and what they tell of the launch that compiled them.

The metadata of an entry has the target, every option, the variables of the environment that entered its cache key,
and the Triton release. Its code, in MLIR, has the arguments by name with their types and what the compiler took for a
multiple of 16, and the file of the kernel unless line info was off. Constants are folded into the code, and sources
and the Triton build are hashed: these it does not tell.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aotpack.errors import AotpackError
from aotpack.keys import CompileKey
from aotpack.receipts import read_receipts
from aotpack.targets import Target
from aotpack.tritoncache import GROUP_PREFIX, stem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """An entry that Triton compiled into a cache directory, and what it tells.

    Attributes:
        directory: the entry.
        name: the stem of its files.
        cache_key: from its metadata, 64 hex digits.
        target: what it was compiled for.
        triton: the release that compiled it.
        options: the back end's options among its metadata, by name, and more that the compile added.
        environment: the variables that entered its key.
        arguments: name, MLIR type, and whether it is a multiple of 16, of each argument that is no constant; None
            where the code is not there.
        file: the file of the kernel's source, or "" where the code does not say.
    """

    directory: Path
    name: str
    cache_key: str
    target: Target
    triton: str
    options: tuple[tuple[str, Any], ...]
    environment: tuple[tuple[str, str], ...]
    arguments: tuple[tuple[str, str, bool], ...] | None
    file: str


def read_leftover(directory: Path) -> Leftover:
    """What an entry of a cache directory tells.

    Raises:
        AotpackError: it is no entry of Triton's cache, or is damaged.
    """
    try:
        group = next(directory.glob(f"{GROUP_PREFIX}*.json"))
        name = _stem(group)
        metadata = {key: _tuples(value) for key, value in json.loads((directory / f"{name}.json").read_bytes()).items()}
        told = metadata.pop("target")
        codes = [directory / f"{name}.{kind}" for kind in ("source", "ttir")]
        code = next((path.read_text(encoding="utf-8") for path in codes if path.exists()), "")
        file = re.search(r'^#loc = loc\("([^"]+)":\d+:\d+\)', code, re.MULTILINE)
        return Leftover(
            directory=directory,
            name=name,
            cache_key=str(metadata["hash"]),
            target=Target(told["backend"], int(told["arch"]), int(told["warp_size"])),
            triton=str(metadata["triton_version"]),
            options=tuple(sorted(metadata.items())),
            # Options and what the compile adds are in lower case, variables of the environment in upper.
            environment=tuple(sorted((key, str(value)) for key, value in metadata.items() if key.isupper())),
            arguments=_arguments(code),
            file=file[1] if file else "",
        )
    except StopIteration:
        raise AotpackError(f"{directory}: is no entry of Triton's cache: it has no {GROUP_PREFIX}*.json") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AotpackError(f"{directory}: cannot be read as an entry of Triton's cache: {error!r}") from None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _arguments(code: str) -> tuple[tuple[str, str, bool], ...] | None:
    """The arguments of the public function of a module in MLIR."""
    head = re.search(r"tt\.func public @[^(]*\((.*?)\) attributes", code)
    if head is None:
        return None
    listed = re.finditer(r"%([\w.]+): (!tt\.\w+<[^{]*?>|\w+)(?: \{([^}]*)\})?(?: loc\(|,|$)", head[1])
    return tuple((item[1], item[2], "tt.divisibility = 16" in (item[3] or "")) for item in listed)


def find_leftovers(cache: Path, names: Iterable[str]) -> list[Leftover]:
    """The entries of a cache directory that no install wrote, by the names of their kernels.

    Args:
        cache: the cache directory.
        names: stems of files; other entries are left out.

    Raises:
        CacheError: a receipt there is damaged.
        AotpackError: an entry is.
    """
    wanted = set(names)
    installed = {file.path.partition("/")[0] for receipt in read_receipts(cache) for file in receipt.files}
    groups = sorted(cache.glob(f"*/{GROUP_PREFIX}*.json"))
    return [
        read_leftover(group.parent) for group in groups if group.parent.name not in installed and _stem(group) in wanted
    ]


def _stem(group: Path) -> str:
    return stem_of(group.name)


def is_of(left: Leftover, kernel: str) -> bool:
    """Whether an entry can be that of a kernel, by the kernel's file, wherever the engine was installed.

    Args:
        left: the entry.
        kernel: ``module:qualname``.
    """
    return not left.file or left.file.endswith(_files_of(kernel))


def root_of(left: Leftover, kernel: str) -> Path | None:
    """The directory that holds the package of the kernel that an entry was compiled from, where it is still there."""
    files = (file for file in _files_of(kernel) if left.file.endswith(file) and Path(left.file).is_file())
    return next((Path(left.file.removesuffix(file)) for file in files), None)


def _files_of(kernel: str) -> tuple[str, str]:
    stem = "/" + kernel.partition(":")[0].replace(".", "/")
    return f"{stem}.py", f"{stem}/__init__.py"


def guess_key(key: CompileKey, left: Leftover) -> CompileKey:
    """A key of a bundle, with everything that an entry tells in place of what the bundle's has.

    Where the two differ in what the entry does not tell, this is not the key that was compiled; its hash says so.
    """
    told = dict(left.options)
    key = replace(key, target=left.target, options=tuple((name, told.get(name, value)) for name, value in key.options))
    if left.arguments is None or any(isinstance(type_, tuple) for _, type_ in key.signature):
        return key
    arguments = {name: (type_, divisible) for name, type_, divisible in left.arguments}
    signature, constexprs, attrs = [], dict(key.constexprs), dict(key.attrs)
    # From 3.7 on attrs list constants too (triton/runtime/jit.py, ``_pack_args``).
    lists_constants = tuple(map(int, left.triton.split(".")[:2])) >= (3, 7)
    for index, (name, ours) in enumerate(key.signature):
        place = (index,)
        type_ = str(ours)
        if name not in arguments and type_ != "constexpr":
            constexprs[place] = None if type_.startswith("*") else 1
            type_ = "constexpr"
            attrs.pop(place, None)
            if lists_constants:
                attrs[place] = ()
        elif name in arguments:
            mlir, divisible = arguments[name]
            constexprs.pop(place, None)
            type_ = type_ if _to_mlir(type_) == mlir else _from_mlir(mlir)
            if divisible or place in attrs or str(ours) == "constexpr":
                attrs[place] = (("tt.divisibility", 16),) if divisible else ()
        signature.append((name, type_))
    return replace(
        key,
        signature=tuple(signature),
        constexprs=tuple(sorted(constexprs.items())),
        attrs=tuple(sorted(attrs.items())),
    )


# Triton's names of element types and MLIR's (triton/language/core.py, ``dtype.to_ir``); MLIR has no signs.
_FLOATS = {
    "fp16": "f16",
    "fp32": "f32",
    "fp64": "f64",
    "fp8e4nv": "f8E4M3FN",
    "fp8e5": "f8E5M2",
    "fp8e4b8": "f8E4M3FNUZ",
    "fp8e5b16": "f8E5M2FNUZ",
}


def _to_mlir(type_: str) -> str:
    if type_.startswith("*"):
        return f"!tt.ptr<{_to_mlir(type_.lstrip('*k'))}>"
    return _FLOATS.get(type_) or re.sub(r"^u(?=\d)", "i", type_)


def _from_mlir(mlir: str) -> str:
    pointer = re.fullmatch(r"!tt\.ptr<(.*)>", mlir)
    if pointer:
        return "*" + _from_mlir(pointer[1])
    return next((name for name, spelled in _FLOATS.items() if spelled == mlir), mlir)
