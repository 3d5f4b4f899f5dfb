"""The toolchain: the Triton build whose identity enters every cache key, and the keys it asks for.

``Toolchain`` is a plain value, kept in manifests. The functions below it ask the Triton of this process, which
they import when called and never before: Triton's own code computes each key here, no rule of it is repeated.

A cache key hashes (triton/runtime/cache.py, ``get_cache_key``): ``triton_key`` (Triton's version, the sources of
its compiler, and libtriton.so), the source's hash, the back end's hash (ptxas's own version text and the
architecture), the options' hash (libdevice by content), and the environment variables that change code.
libtriton.so is left out of ``Toolchain`` on purpose: its bytes differ between the Python minors of one release,
and the code that it generates does not.
"""

import hashlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aotpack.digests import PREFIX, digest_file
from aotpack.documents import Node
from aotpack.errors import ToolchainError
from aotpack.keys import CompileKey, Constant, DType
from aotpack.targets import Target

LIBTRITON = "libtriton"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One part in which two toolchains differ.

    Attributes:
        part: "triton", "sources", "libdevice", "assembler" or "environment".
        subject: the target whose assembler differs, else "".
        text: both values, for people.
    """

    part: str
    text: str
    subject: str = ""

    def __str__(self) -> str:
        """The text."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What identifies a Triton build, but for its Python minor.

    Attributes:
        triton: its release.
        sources: digests of the compiler's Python sources by module, as ``triton_key`` walks them.
        libdevice: digest of the libdevice bitcode that kernels are linked with.
        assemblers: what the back end hashes of its assembler, by target: ptxas's own version text.
        environment: the environment variables that enter the key and were set.
    """

    triton: str
    sources: tuple[tuple[str, str], ...]
    libdevice: str
    assemblers: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """The toolchain as a JSON value; ``from_json`` undoes it."""
        return {
            "triton": self.triton,
            "sources": dict(self.sources),
            "libdevice": self.libdevice,
            "assemblers": dict(self.assemblers),
            "environment": dict(self.environment),
        }

    @classmethod
    def from_json(cls, node: Node) -> "Toolchain":
        """The toolchain of a JSON value.

        Raises:
            DocumentError: a field is missing, unknown, or of the wrong kind; the message says where.
        """
        node.only("triton", "sources", "libdevice", "assemblers", "environment")
        return cls(
            triton=_read_release(node.field("triton")),
            sources=tuple(sorted((name, value.digest()) for name, value in node.field("sources").fields())),
            libdevice=node.field("libdevice").digest(),
            assemblers=tuple(sorted((name, value.text()) for name, value in node.field("assemblers").fields())),
            environment=tuple(sorted((name, _setting(value)) for name, value in node.field("environment").fields())),
        )

    def differences(self, local: "Toolchain") -> Iterator[Difference]:
        """What makes kernels of this toolchain unfit for the local one, part by part; nothing where they fit.

        Args:
            local: the toolchain of the machine that would use the kernels. Targets that it was not asked for are
                not compared.
        """
        if self.triton != local.triton:
            text = f"built with Triton {self.triton}, this environment has {local.triton}"
            yield Difference(part="triton", text=text)
            return
        ours, theirs = dict(self.sources), dict(local.sources)
        changed = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            text = f"Triton {self.triton}'s own sources differ here: {changed[0]}{more}"
            yield Difference(part="sources", text=text)
        if self.libdevice != local.libdevice:
            text = f"libdevice differs: built with {self.libdevice}, found {local.libdevice}"
            yield Difference(part="libdevice", text=text)
        built = dict(self.assemblers)
        for target, found in local.assemblers:
            if built.get(target, found) != found:
                text = (
                    f"the assembler for {target} differs: built with {_release(built[target])}, "
                    f"found {_release(found)} (TRITON_PTXAS_PATH?)"
                )
                yield Difference(part="assembler", subject=target, text=text)
        if self.environment != local.environment:
            text = (
                "environment variables that change compiled code differ: "
                f"built with {_assignments(self.environment)}, found {_assignments(local.environment)}"
            )
            yield Difference(part="environment", text=text)


def _read_release(node: Node) -> str:
    # It becomes a part of file names.
    if re.fullmatch(r"\w[\w.+-]*", node.text(), re.ASCII) is None:
        raise node.error("a release such as 3.8.0")
    return node.text()


def _setting(node: Node) -> str:
    return node.line() if node.string() else ""


def _release(text: str) -> str:
    for line in text.splitlines():
        if "release" in line:
            text = line.rpartition("release ")[2]
            break
    return "".join(character if character.isprintable() else " " for character in text.strip())


def _assignments(environment: tuple[tuple[str, str], ...]) -> str:
    return " ".join(f"{name}={value}" for name, value in environment) or "none"


def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise ToolchainError(
            f"Triton cannot be imported in this environment ({error}); run aotpack with the Python that serves, "
            "or install the Triton that the engine uses"
        ) from None
    return triton


def require_compiler() -> None:
    """Make sure, without importing them, that what building needs is installed.

    Raises:
        ToolchainError: torch, Triton or NumPy is not.
    """
    missing = [name for name in ("torch", "triton", "numpy") if find_spec(name) is None]
    if missing:
        listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        raise ToolchainError(
            f"building traces the engine's own code and needs {listed}, which this environment "
            "lacks; install aotpack[build] (a CPU build of torch is enough)"
        )


def gpu_target(target: Target) -> Any:
    """Triton's own ``GPUTarget`` for a target."""
    _triton()
    from triton.backends.compiler import GPUTarget

    return GPUTarget(target.backend, target.arch, target.warp_size)


def backend_of(target: Target) -> Any:
    """Triton's compiler back end for a target.

    Raises:
        ToolchainError: this Triton has none.
    """
    _triton()
    from triton.compiler.compiler import make_backend

    try:
        return make_backend(gpu_target(target))
    except RuntimeError as error:
        raise ToolchainError(f"this Triton cannot compile for {target}: {error}") from None


def local_toolchain(targets: Iterable[Target], *, ignored_environment: Iterable[str] = ()) -> Toolchain:
    """The toolchain of this process, for some targets.

    Args:
        targets: what to ask the assemblers for.
        ignored_environment: variables not to count, since whoever asks sets them only to compile.

    Raises:
        ToolchainError: Triton cannot be imported, or one of its tools does not answer.
    """
    triton = _triton()
    from triton._C.libtriton import get_cache_invalidating_env_vars

    assemblers = []
    for target in sorted(set(targets)):
        try:
            text = str(backend_of(target).hash())
        except OSError as error:
            raise ToolchainError(f"the assembler for {target} does not answer: {error}") from None
        assemblers.append((str(target), text))
    ignored = set(ignored_environment)
    environment = {name: value for name, value in get_cache_invalidating_env_vars().items() if name not in ignored}
    return Toolchain(
        triton=str(triton.__version__),
        sources=tuple(sorted((name, digest) for name, digest in _walk(triton) if name != LIBTRITON)),
        libdevice=_libdevice(triton),
        assemblers=tuple(sorted(assemblers)),
        environment=tuple(sorted(environment.items())),
    )


def local_libtriton() -> str:
    """The digest of this process's ``libtriton.so``, which enters every cache key beside the toolchain.

    Raises:
        ToolchainError: Triton cannot be imported.
    """
    return dict(_walk(_triton()))[LIBTRITON]


def _walk(triton: Any) -> Iterator[tuple[str, str]]:
    """What ``triton_key`` hashes, by name, in its own order (triton/runtime/cache.py)."""
    from triton.runtime.cache import triton_key

    root = Path(triton.__file__).parent
    names = ["triton.runtime.cache"]
    for package in ("compiler", "backends"):
        names += [found.name for found in pkgutil.walk_packages([str(root / package)], prefix=f"triton.{package}.")]
    names.append(LIBTRITON)
    names += [found.name for found in pkgutil.walk_packages([str(root / "language")], prefix="triton.language.")]
    digests = triton_key().removeprefix(str(triton.__version__)).split("-")
    if len(names) != len(digests):
        raise ToolchainError(
            f"Triton {triton.__version__} hashes {len(digests)} files into its keys where aotpack knows "
            f"{len(names)}; this release needs a newer aotpack"
        )
    return ((name, PREFIX + digest) for name, digest in zip(names, digests, strict=True))


def _libdevice(triton: Any) -> str:
    path = triton.knobs.nvidia.libdevice_path
    default = Path(triton.__file__).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
    try:
        return digest_file(Path(path) if path else default)
    except OSError as error:
        raise ToolchainError(f"libdevice cannot be read: {error}") from None


def to_triton(value: Constant) -> Any:
    """A constexpr's value as Triton is handed it."""
    match value:
        case DType(name):
            from triton.language import dtype

            return dtype(name)
        case tuple():
            return tuple(to_triton(item) for item in value)
        case _:
            return value


def signature_of(key: CompileKey) -> dict[str, Any]:
    """The key's signature as ``ASTSource`` takes it."""
    return dict(key.signature)


def constexprs_of(key: CompileKey) -> dict[tuple[int, ...], Any]:
    """The key's constexprs as ``ASTSource`` takes them."""
    return {path: to_triton(value) for path, value in key.constexprs}


def attrs_of(key: CompileKey) -> dict[tuple[int, ...], list[list[Any]]]:
    """The key's attrs as ``ASTSource`` takes them."""
    return _spell_attrs(key.attrs)


def _spell_attrs(
    attrs: Iterable[tuple[tuple[int, ...], Iterable[Iterable[Any]]]],
) -> dict[tuple[int, ...], list[list[Any]]]:
    return {path: [list(attr) for attr in listed] for path, listed in attrs}


class KeyMaker:
    """Computes the cache keys that this process's Triton will ask for.

    The source's hash is Triton's own ``ASTSource.hash``, given the kernel's recorded ``cache_key`` in place of
    the kernel; nothing of the engine is imported.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Load Triton's parts.

        Args:
            environment: the variables that enter the key and are set; None means those of this process.

        Raises:
            ToolchainError: Triton cannot be imported.
        """
        _triton()
        from triton._C.libtriton import get_cache_invalidating_env_vars
        from triton.compiler.compiler import ASTSource
        from triton.runtime.cache import get_cache_key

        self._source_hash = ASTSource.hash
        self._get_cache_key = get_cache_key
        self._environment = get_cache_invalidating_env_vars() if environment is None else dict(environment)
        self._backends: dict[Target, Any] = {}
        self._hashes: dict[str, str] = {}
        # Keys of a manifest share their parts. What is kept holds each part, so that its id stays its own.
        self._made: dict[int, tuple[Any, Any]] = {}

    def key_of(self, key: CompileKey, kernel_cache_key: str) -> str:
        """The cache key, 64 hex digits, of one compile key.

        Args:
            key: the compile key.
            kernel_cache_key: ``JITFunction.cache_key`` of its kernel.

        Raises:
            ToolchainError: an option would not be what the key has, so the code would not be either; or Triton cannot
                make anything of the key.
        """
        try:
            return self._key_of(key, kernel_cache_key)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ToolchainError(
                f"{key.kernel}: Triton makes nothing of a compile key of it: {type(error).__name__}: {error}; "
                "build the bundle again"
            ) from None

    def _key_of(self, key: CompileKey, kernel_cache_key: str) -> str:
        backend = self._backends.get(key.target)
        if backend is None:
            backend = self._backends[key.target] = backend_of(key.target)
        source = SimpleNamespace(
            fn=SimpleNamespace(cache_key=kernel_cache_key),
            signature=self._shared(key.signature, dict),
            attrs=self._shared(key.attrs, _spell_attrs),
            constants=constexprs_of(key),
        )
        source.hash = lambda: self._source_hash(source)
        text = self._get_cache_key(source, backend, self._options(key, backend), env_vars=self._environment)
        return hashlib.sha256(text.encode()).hexdigest()

    def _shared(self, part: Any, make: Callable[[Any], Any]) -> Any:
        """What is made of a part of keys, made once for all keys that share it."""
        if id(part) not in self._made:
            self._made[id(part)] = (part, make(part))
        return self._made[id(part)][1]

    def _options(self, key: CompileKey, backend: Any) -> Any:
        """The back end's options of a key, as far as its cache key asks for them.

        Their hash reads libdevice each time, and most keys share it.
        """
        # Equal options of other types, 1 and True, are others to Triton.
        spelled = f"{key.target} {self._shared(key.options, repr)}"
        if spelled not in self._hashes:
            options = backend.parse_options(dict(key.options))
            wanted = dict(key.options)
            for name, value in vars(options).items():
                if name != "extern_libs" and wanted.get(name) != value:
                    raise ToolchainError(
                        f"{key.kernel}: option {name} was {wanted.get(name)!r} at the build and is {value!r} here; "
                        "unset what changes it (PTXAS_OPTIONS?)"
                    )
            self._hashes[spelled] = options.hash()
        found = self._hashes[spelled]
        return SimpleNamespace(hash=lambda: found)
