"""Helpers at load time: served to Triton by their C text, whatever key Triton looks for them under.

From Triton 3.8 on the key of ``cuda_utils`` holds the directory of libcuda, which an install without a driver
cannot know. Triton then asks for a compile, and may be answered with a file (triton/knobs.py, ``build.impl``).
"""

import inspect
import os
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aotpack.digests import digest_bytes, digest_file, hex_of
from aotpack.receipts import HELPERS, read_receipts

BuildImpl = Callable[[str, str, str, list[str], list[str], list[str]], str]
"""Compiles a C file: module name, file, output directory, library and include directories, libraries."""


def serve_helpers(cache: Path) -> None:
    """Answer Triton's compiles of helpers with those that were installed in a cache directory.

    What is not among them, or is not what was installed, goes the way that it went before: to the
    ``triton.knobs.build.impl`` that was set, else to Triton's own compile.

    Raises:
        ImportError: there is no Triton.
    """
    from triton import knobs

    before: BuildImpl | None = knobs.build.impl

    def impl(
        name: str, src: str, srcdir: str, library_dirs: list[str], include_dirs: list[str], libraries: list[str]
    ) -> str:
        try:
            found = _find(cache, name, Path(src), Path(srcdir))
        except Exception as error:  # a damaged cache must not end serving
            if os.environ.get("AOTPACK_STRICT", "") not in {"", "0"}:
                raise
            warnings.warn(f"aotpack does not serve {name}: {error}", RuntimeWarning, stacklevel=2)
            found = None
        if found is not None:
            return found
        arguments = (name, src, srcdir, library_dirs, include_dirs, libraries)
        return before(*arguments) if before is not None else _compile(*arguments)

    knobs.build.impl = impl


def _find(cache: Path, name: str, source: Path, output: Path) -> str | None:
    """A helper that was installed for this C text and this Python, copied to where a compile would leave it."""
    file = f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    path = f"{HELPERS}/{hex_of(digest_file(source))}/{file}"
    installed = {listed.digest for receipt in read_receipts(cache) for listed in receipt.files if listed.path == path}
    if not installed:
        return None
    content = (cache / path).read_bytes()
    if digest_bytes(content) not in installed:
        raise ValueError(f"{cache / path} is not what was installed; install the bundle again")
    (output / file).write_bytes(content)
    return str(output / file)


def _compile(name: str, src: str, *arguments: Any) -> str:
    """Triton's own compile, which it would have done had nobody answered for it."""
    from triton import knobs
    from triton.runtime import build

    options: dict[str, Any] = {"ccflags": []}
    if "language" in inspect.signature(build._build).parameters:  # noqa: SLF001  # from 3.8 on
        options["language"] = build._language_from_filename(src)  # noqa: SLF001
    ours, knobs.build.impl = knobs.build.impl, None
    try:
        return str(build._build(name, src, *arguments, **options))  # noqa: SLF001
    finally:
        knobs.build.impl = ours
