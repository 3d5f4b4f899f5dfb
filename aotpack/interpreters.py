"""Interpreters: the Pythons of this machine whose headers native helpers can be built with."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aotpack.errors import ToolchainError

_ASK = """
import json, sys, sysconfig
print(json.dumps([
    "%d.%d" % sys.version_info[:2],
    sysconfig.get_paths("posix_prefix")["include"],
    sysconfig.get_config_var("EXT_SUFFIX"),
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One Python that extension modules can be built for.

    Attributes:
        minor: its release without the patch: ``3.11``.
        include: the directory of its ``Python.h``.
        suffix: what its extension modules' file names end in: ``.cpython-311-x86_64-linux-gnu.so``.
    """

    minor: str
    include: Path
    suffix: str


def running_minor() -> str:
    """The minor of the Python that runs this: ``3.11``."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def find_interpreter(minor: str) -> Interpreter:
    """An interpreter of this minor with its headers.

    Looked for in this order: the running one, PATH, pyenv's versions, uv's, those of manylinux images.

    Args:
        minor: such as ``3.11``.

    Raises:
        ToolchainError: there is none; the message says where was looked.
    """
    headless = []
    for executable in _candidates(minor):
        try:
            done = subprocess.run(  # noqa: S603
                [executable, "-I", "-c", _ASK], capture_output=True, text=True, check=True, timeout=30
            )
            found, include, suffix, free_threaded = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            continue  # pyenv has a shim for each minor on PATH, which fails where that minor is not chosen
        if found != minor or free_threaded:
            continue
        if (Path(include) / "Python.h").is_file():
            return Interpreter(minor=minor, include=Path(include), suffix=suffix)
        headless.append(str(executable))
    lacking = f"{', '.join(headless)} has no Python.h beside it" if headless else "no such interpreter was found"
    raise ToolchainError(
        f"native helpers for Python {minor} need its headers: {lacking} (looked at this interpreter, PATH, "
        f"{_pyenv()}, {_uv()}, /opt/python); install python{minor} with its -dev package, or leave it out of --python"
    )


def _pyenv() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


def _uv() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def _candidates(minor: str) -> Iterator[Path]:
    name = f"python{minor}"
    if minor == running_minor():
        yield Path(sys.executable)
    for directory in os.get_exec_path():
        if found := shutil.which(name, path=directory):
            yield Path(found)
    yield from sorted(_pyenv().glob(f"{minor}*/bin/{name}"))
    yield from sorted(_uv().glob(f"*/bin/{name}"))
    yield from sorted(Path("/opt/python").glob(f"cp{minor.replace('.', '')}-*/bin/python"))
