"""Native helpers: the extension modules that Triton compiles with a C compiler where it launches kernels.

All releases have ``cuda_utils``, which loads machine code and asks the driver; releases up to 3.6 also have one
``__triton_launcher`` for each C text that a kernel's signature makes (triton/backends/nvidia/driver.py). They are
built ahead, for each Python asked for, and laid where this machine's Triton looks, so that a container needs no C
compiler.

Nothing of Triton's is written down again here: Triton's driver is asked for its sources and keys, with the
function that it would compile with, or its cache manager, replaced by one that notes what it was called with.
Compiling goes through Triton's own ``_build``, against a stub that defines the driver's symbols, since a build
machine has no driver.
"""

import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aotpack.digests import digest_bytes, hex_of
from aotpack.elf import glibc_baseline, release
from aotpack.errors import ToolchainError
from aotpack.findings import Finding
from aotpack.interpreters import Interpreter, find_interpreter, running_minor
from aotpack.keys import CompileKey
from aotpack.landing import Landing
from aotpack.manifest import Artifact, Helper
from aotpack.receipts import HELPERS
from aotpack.toolchain import constexprs_of, signature_of
from aotpack.tritoncache import directory_name

Launch = tuple[CompileKey, bytes]
"""A compile key and Triton's metadata for it: what decides its launcher."""

_DLFCN = ("dlclose", "dlerror", "dlopen", "dlsym")
_DLFCN_MOVED = (2, 34)
"""The glibc in which these moved from libdl to libc (its NEWS), and so got a new version beside the first one."""
_FIRST_VERSION = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}
"""The oldest symbol version of an architecture's glibc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperSource:
    """The C text of one helper.

    Attributes:
        name: of the module: ``cuda_utils`` or ``__triton_launcher``.
        text: the C text, as Triton hands it to the compiler.
    """

    name: str
    text: bytes

    @property
    def digest(self) -> str:
        """The digest of the text."""
        return digest_bytes(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltHelper:
    """A helper that was built.

    Attributes:
        helper: as the manifest lists it.
        content: the shared object.
    """

    helper: Helper
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a bundle's helpers go on this machine.

    Attributes:
        landings: the files, a landing each.
        refused: helpers that this machine cannot use.
        notes: what a user should know, without anything having been refused.
    """

    landings: tuple[Landing, ...] = ()
    refused: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


def choose_interpreters(minors: Sequence[str] | None) -> tuple[tuple[Interpreter, ...], tuple[Finding, ...]]:
    """The interpreters to build helpers for, found before any work is done.

    Args:
        minors: such as ``3.11``; none of them means no helpers. None means the running one, where it can be
            had: what it lacks is a finding then.

    Raises:
        ToolchainError: helpers for one of ``minors`` cannot be built here.
    """
    try:
        found = tuple(find_interpreter(minor) for minor in (minors if minors is not None else (running_minor(),)))
        if found:
            _require_compiler()
    except ToolchainError as error:
        if minors is not None:
            raise
        lacking = Finding(
            code="H101",
            subject=f"Python {running_minor()}",
            detail=f"the bundle gets no native helpers, so whoever serves it needs a C compiler: {error}",
        )
        return (), (lacking,)
    return found, ()


def c_compiler() -> str | None:
    """The C compiler that Triton would choose (triton/runtime/build.py), or None where there is none."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


def _require_compiler() -> None:
    if c_compiler() is None:
        raise ToolchainError(
            "native helpers are compiled with a C compiler, and neither gcc nor clang is on PATH, nor CC set; "
            "install gcc, or build with --python none"
        )


# What Triton asks for


class _Asked(BaseException):
    """Carries what Triton called a replaced function with out of Triton's code, past its own handlers."""

    def __init__(self, *values: Any) -> None:
        super().__init__()
        self.values = values


@contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What Triton's driver asks to be compiled.

    Attributes:
        source: the C text.
        compile: Triton's function that finds the module in its cache or compiles it.
        arguments: what the driver calls it with.
    """

    source: HelperSource
    compile: Callable[..., Any]
    arguments: dict[str, Any]


def _driver() -> Any:
    """Triton's NVIDIA driver module; loading it needs no driver of the GPU's."""
    try:
        from triton.backends.nvidia import driver
    except ImportError as error:
        raise ToolchainError(
            f"Triton's NVIDIA back end cannot be imported ({error}); run aotpack with the Python that serves"
        ) from None
    return driver


def _request(make: Callable[[Any], object], libcuda: Sequence[str] = ()) -> _Request:
    """What the driver asks for when ``make`` is called with it; nothing is compiled.

    Args:
        make: calls the driver.
        libcuda: the directories that the driver is to believe libcuda in.
    """
    driver = _driver()
    names = [name for name in ("compile_module_from_file", "compile_module_from_src") if hasattr(driver, name)]

    def ask(**arguments: Any) -> None:
        raise _Asked(arguments)

    with _replaced(
        driver,
        **dict.fromkeys(names, ask),
        libcuda_dirs=lambda: list(libcuda),
        library_dirs=driver.library_dirs.__wrapped__,  # past its cache
    ):
        try:
            make(driver)
        except _Asked as asked:
            (arguments,) = asked.values
        else:
            raise ToolchainError("this Triton builds its helpers in another way; this release needs a newer aotpack")
    name = "compile_module_from_src" if "src" in arguments else "compile_module_from_file"
    text = arguments["src"].encode() if "src" in arguments else Path(arguments["src_path"]).read_bytes()
    source = HelperSource(name=arguments["name"], text=text)
    return _Request(source=source, compile=getattr(driver, name), arguments=arguments)


def _utils(driver: Any) -> None:
    driver.CudaUtils.__init__(SimpleNamespace())  # not CudaUtils(), which would keep a half made singleton


def _requests(launches: Iterable[Launch], libcuda: Sequence[str] = ()) -> dict[str, _Request]:
    """What the driver asks for to launch kernels, by the digest of the C text."""
    found = [_request(_utils, libcuda)]
    if are_launchers_needed():
        seen = set()
        for key, metadata in launches:
            described = json.loads(metadata).get("tensordesc_meta")
            launch = (key.signature, key.constexprs, json.dumps(described))
            if launch not in seen:
                seen.add(launch)
                found.append(_launcher_request(key, described, libcuda))
    return {request.source.digest: request for request in found}


def are_launchers_needed() -> bool:
    """Whether this Triton compiles a launcher for kernels: up to 3.6; later ones launch through ``cuda_utils``.

    Raises:
        ToolchainError: Triton cannot be imported.
    """
    return hasattr(_driver(), "make_launcher")


def _launcher_request(key: CompileKey, described: Any, libcuda: Sequence[str]) -> _Request:
    source = SimpleNamespace(signature=signature_of(key), constants=constexprs_of(key))
    metadata = SimpleNamespace(tensordesc_meta=described)
    return _request(lambda driver: driver.CudaLauncher.__init__(SimpleNamespace(), source, metadata), libcuda)


def helper_sources(launches: Iterable[Launch]) -> tuple[HelperSource, ...]:
    """The C text of each helper that this Triton needs to launch some kernels, each once.

    Raises:
        ToolchainError: Triton cannot be imported, or builds its helpers in another way.
    """
    return tuple(request.source for request in _requests(launches).values())


# Building


def build_helper(source: HelperSource, interpreter: Interpreter) -> BuiltHelper:
    """Compile one helper for one Python, with Triton's own ``_build``.

    The bytes depend on the C text, the headers and the compiler, and on no directory. It needs as old a glibc as
    this machine can build for.

    Raises:
        ToolchainError: the compiler fails.
    """
    from triton.runtime.build import _build

    driver = _driver()
    with tempfile.TemporaryDirectory(prefix="aotpack-") as name:
        folder = Path(name)
        path = folder / f"{source.name}.c"
        path.write_bytes(source.text)
        includes = [str(interpreter.include), *driver.include_dirs]  # before the running Python's, which _build adds
        flags = ["-s", "-Wl,--build-id=none", *_pinned(folder, source.text)]
        flags += [f"-ffile-prefix-map={directory}=." for directory in (name, *includes)]
        try:
            _build_stub(folder, Path(driver.include_dirs[0]) / "cuda.h")
            built = Path(_build(source.name, str(path), name, [name], includes, driver.libraries, flags)).read_bytes()
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            raise ToolchainError(
                f"{source.name} for Python {interpreter.minor} could not be compiled with the headers in "
                f"{interpreter.include}: {error}; see the compiler's words above, or build with --python none"
            ) from None
    helper = Helper(
        name=source.name,
        source=source.digest,
        machine=platform.machine(),
        suffix=interpreter.suffix,
        glibc=glibc_baseline(built),
        artifact=Artifact(digest=digest_bytes(built), size=len(built)),
    )
    return BuiltHelper(helper=helper, content=built)


def _build_stub(folder: Path, header: Path) -> None:
    """A ``libcuda.so.1`` to link against: it defines every name that the driver's header has, and does nothing.

    So the helper needs libcuda by name, as one that is linked against a real driver does.
    """
    names = sorted(set(re.findall(r"\bcu[A-Z]\w*", header.read_text())))
    path = folder / "stub.c"
    path.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
    command = [
        c_compiler() or "gcc",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        str(path),
        "-o",
        str(folder / "libcuda.so.1"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def _pinned(folder: Path, text: bytes) -> list[str]:
    """Flags that take the oldest version of the functions that would need a new glibc for their place alone."""
    local, version = local_glibc(), _FIRST_VERSION.get(platform.machine())
    if local is None or release(local) < _DLFCN_MOVED or version is None:
        return []
    used = [name for name in _DLFCN if name.encode() in text]
    path = folder / "pinned.h"
    path.write_text("".join(f'__asm__(".symver {name},{name}@{version}");\n' for name in used))
    return ["-include", str(path)]


def local_glibc() -> str | None:
    """The glibc of this process, or None where it runs on another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" else None


# Placing


def place_helpers(
    helpers: Sequence[Helper],
    launches: Iterable[Launch],
    contents: Mapping[str, bytes],
    *,
    libcuda: Sequence[str] = (),
) -> Placed:
    """Where the helpers that launches need are to lie, for this machine's Triton and Python.

    Each goes under the keys that Triton computes with and without the program ``file`` (which decides what
    ``platform.architecture`` says), and, where the key holds it, for each place that libcuda may be in; and once
    where the load-time path finds it, whatever the key.

    Args:
        helpers: the bundle's.
        launches: what is installed; nothing will do where no launcher is needed.
        contents: of the bundle's artifacts, by digest.
        libcuda: directories, or lists of them joined by colons, that ``ldconfig -p`` will name libcuda in; none
            means what this machine knows.

    Raises:
        ToolchainError: Triton cannot be imported, or builds its helpers in another way.
    """
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    ours = {helper.source: helper for helper in helpers if helper.suffix == suffix}
    if not ours:
        return Placed(notes=(_without(helpers, suffix),))
    launches = list(launches)
    needed = _requests(launches)
    refused = [_unknown(request.source) for digest, request in needed.items() if digest not in ours]
    local = local_glibc()
    usable: dict[str, Helper] = {}
    for helper in (ours[digest] for digest in needed if digest in ours):
        if local is None or release(local) < release(helper.glibc):
            refused.append(_too_new(helper, local))
        else:
            usable[helper.source] = helper
    choices, known = _libcuda_choices(libcuda)
    keyed = len({key for choice in choices for key in _cache_keys(_request(_utils, choice))}) > len(_LINKAGES)
    if not keyed:  # up to 3.7 the key does not hold where libcuda is
        choices, known = choices[:1], True
    requests = [request for choice in choices for request in _requests(launches, choice).values()]
    places = [(directory_name(key), request.source.digest) for request in requests for key in _cache_keys(request)]
    places += [(f"{HELPERS}/{hex_of(digest)}", digest) for digest in usable]
    return Placed(
        landings=tuple(
            Landing(directory=directory, files=((usable[digest].file, contents[usable[digest].artifact.digest]),))
            for directory, digest in places
            if digest in usable
        ),
        refused=tuple(refused),
        notes=() if known or not usable else (_anywhere(choices),),
    )


_LINKAGES = ("ELF", "")
"""What ``platform.architecture`` says of this Python where the program ``file`` is, and where it is not."""


def _cache_keys(request: _Request) -> set[str]:
    """The keys, 64 hex digits, under which Triton looks for a module: one for each linkage."""
    from triton.runtime import build

    def manager(key: str) -> Any:
        raise _Asked(key)

    found: set[str] = set()
    for linkage in _LINKAGES:
        with _replaced(platform, architecture=lambda linkage=linkage: (f"{8 * struct.calcsize('P')}bit", linkage)):
            text = build.platform_key.__wrapped__()  # past its cache
        with _replaced(build, get_cache_manager=manager, platform_key=lambda text=text: text):
            try:
                request.compile(**request.arguments)
            except _Asked as asked:
                found.update(asked.values)
    return found


def _libcuda_choices(given: Sequence[str]) -> tuple[list[tuple[str, ...]], bool]:
    """The lists of directories that Triton may find libcuda in, and whether that is known and not guessed."""
    if given:
        return [tuple(text.split(":")) for text in given], True
    try:
        return [tuple(_driver().libcuda_dirs.__wrapped__())], True  # TRITON_LIBCUDA_PATH, else ldconfig
    except (AssertionError, OSError, subprocess.SubprocessError):
        return _usual_choices(), False


def _usual_choices() -> list[tuple[str, ...]]:
    """Where the NVIDIA container runtime puts libcuda, as ``ldconfig -p`` spells it.

    Debian and Ubuntu have it in the multiarch directory, the Red Hat family in /lib64, each by either name where
    /lib is a link; some hosts mount a directory of their own; a forward compatibility package comes before them.
    """
    debian, red_hat = f"/lib/{platform.machine()}-linux-gnu", "/lib64"
    compat = "/usr/local/cuda/compat"
    alone = (debian, f"/usr{debian}", red_hat, f"/usr{red_hat}", compat, "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")
    return [*((directory,) for directory in alone), (compat, debian), (compat, red_hat)]


def _without(helpers: Sequence[Helper], suffix: str) -> Finding:
    had = ", ".join(sorted({helper.suffix for helper in helpers})) or "none"
    return Finding(
        code="H102",
        subject=f"Python {running_minor()}",
        detail=f"the bundle has no native helpers for {suffix} (it has {had}): the first launch needs a C compiler",
        hint=f"build the bundle with --python {running_minor()}",
    )


def _unknown(source: HelperSource) -> Finding:
    return Finding(
        code="H103",
        subject=source.name,
        detail=f"Triton's C text here is {source.digest}, which the bundle's helpers were not built from: "
        "launches that need it need a C compiler",
        hint="build the bundle with the Triton that serves",
    )


def _too_new(helper: Helper, local: str | None) -> Finding:
    return Finding(
        code="H104",
        subject=helper.file,
        detail=f"needs glibc {helper.glibc}, and this machine has {f'glibc {local}' if local else 'none'}: "
        "launches that need it need a C compiler",
        hint="build the bundle on a machine with an older glibc",
    )


def _anywhere(choices: Sequence[tuple[str, ...]]) -> Finding:
    return Finding(
        code="H105",
        subject="cuda_utils",
        detail=f"Triton's key for it holds the directory of libcuda.so.1, which no driver here tells: it lies under "
        f"the keys of {len(choices)} usual places such as {choices[0][0]}, and aotpack.activate() serves it elsewhere",
        hint="to be certain, set TRITON_LIBCUDA_PATH here and where it serves, or give --libcuda-dir",
    )
