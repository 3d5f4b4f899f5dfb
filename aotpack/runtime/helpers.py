"""Helpers at load time: served to Triton by their C text, whatever key Triton looks for them under.

From Triton 3.8 on the key of ``cuda_utils`` holds the directory of libcuda, which an install without a driver
cannot know, and a store knows no keys at all. Triton then asks for a compile, and may be answered with a file
(triton/knobs.py, ``build.impl``).
"""

import inspect
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aotpack.digests import digest_file
from aotpack.runtime.trouble import tolerated

BuildImpl = Callable[[str, str, str, list[str], list[str], list[str]], str]
"""Compiles a C file: module name, file, output directory, library and include directories, libraries."""


def build_impl(find: Callable[[str, str], Path | None], before: BuildImpl | None) -> BuildImpl:
    """What Triton is to ask for its compiles of C files.

    What is not found goes the way that it went before: to what was asked then, else to Triton's own compile.

    Args:
        find: a helper by the digest of its C text and its file name, or None.
        before: the ``triton.knobs.build.impl`` that was set.
    """

    def impl(
        name: str, src: str, srcdir: str, library_dirs: list[str], include_dirs: list[str], libraries: list[str]
    ) -> str:
        with tolerated(f"{name} is not served"):
            file = f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
            found = find(digest_file(Path(src)), file)
            if found is not None:
                return str(shutil.copyfile(found, Path(srcdir) / file))  # to where a compile would leave it
        arguments = (name, src, srcdir, library_dirs, include_dirs, libraries)
        return before(*arguments) if before is not None else _compile(*arguments)

    return impl


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
