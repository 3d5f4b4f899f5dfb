"""Records: the launches that a running engine looked up in Triton's cache, as a file of JSON lines.

A line of today (see ``aotpack.listener``, which writes it) has a whole ``Launch``: the compile key, what the kernel's
source hashed to, and the Triton build, which a ``meta`` line before it spells once. A line of old has a kernel, its
signature, constexprs, attrs and options alone. Both tell which keys a run met; only the first tells why one missed.

Records come from other releases of Triton too, so keys are compared in a form that leaves out what differs between
releases and says nothing: arguments listed with empty attrs.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aotpack.digests import canonical_json, digest_json
from aotpack.documents import Node
from aotpack.errors import AotpackError, DocumentError
from aotpack.keys import CompileKey, read_target, spell_constant
from aotpack.targets import Target
from aotpack.toolchain import Toolchain


@dataclass(frozen=True, kw_only=True)
class Build:
    """The Triton build of one process.

    Attributes:
        toolchain: what identifies it, but for its Python minor.
        libtriton: the digest of its ``libtriton.so``, or "" where it is not known.
        python: its Python, for people.
    """

    toolchain: Toolchain
    libtriton: str
    python: str

    @cached_property
    def digest(self) -> str:
        """Its name in a file of records."""
        return digest_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The build as a JSON value; ``from_json`` undoes it."""
        return {"toolchain": self.toolchain.to_json(), "libtriton": self.libtriton, "python": self.python}

    @classmethod
    def from_json(cls, node: Node) -> "Build":
        """The build of a JSON value.

        Raises:
            DocumentError: a field is missing, or of the wrong kind.
        """
        return cls(
            toolchain=Toolchain.from_json(node.field("toolchain")),
            libtriton=node.field("libtriton").string(),
            python=node.field("python").string(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that a kernel's code comes from: the kernel itself, or a helper that it reaches.

    Attributes:
        name: ``module:qualname``.
        line: where it starts in its file.
        text: the digest of its text, as ``sources.Function.text``.
        constants: the constexpr globals that it reads, by its own spelling, and their ``repr``.
    """

    name: str
    line: int
    text: str
    constants: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the source of a launched kernel was.

    Attributes:
        cache_key: what Triton hashed of it, one of ``manifest.Kernel.cache_keys``.
        functions: the kernel first, then the helpers that it reaches.
    """

    cache_key: str
    functions: tuple[Function, ...]

    def to_json(self) -> dict[str, Any]:
        """The source as a JSON value; ``from_json`` undoes it."""
        return {
            "cache_key": self.cache_key,
            "functions": [
                {"name": item.name, "line": item.line, "text": item.text, "constants": dict(item.constants)}
                for item in self.functions
            ],
        }

    @classmethod
    def from_json(cls, node: Node) -> "Source":
        """The source of a JSON value.

        Raises:
            DocumentError: a field is missing, or of the wrong kind.
        """
        return cls(
            cache_key=node.field("cache_key").text(),
            functions=tuple(
                Function(
                    name=item.field("name").text(),
                    line=item.field("line").integer(),
                    text=item.field("text").digest(),
                    constants=tuple(sorted((name, value.string()) for name, value in item.field("constants").fields())),
                )
                for item in node.field("functions").items()
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel that a process looked up in Triton's cache: once for each key in a process.

    Attributes:
        kernel: ``module:qualname``.
        name: the stem of its files in the cache.
        cache_key: what Triton looked up, 64 hex digits.
        target: what it was compiled for.
        hit: whether the cache had it; else Triton compiled it.
        milliseconds: how long the lookup or the compile took.
        cache: the cache directory.
        key: the compile key; None where it cannot be spelled, and then ``problem`` says why.
        exact: whether the recorded parts hash to the cache key; else something enters it that is not recorded.
        problem: why there is no key, else "".
        source: the kernel's source.
        build: the Triton build.
    """

    kernel: str
    name: str
    cache_key: str
    target: Target
    hit: bool
    milliseconds: float
    cache: Path
    key: CompileKey | None
    exact: bool
    problem: str
    source: Source
    build: Build

    def to_json(self) -> dict[str, Any]:
        """The launch as a JSON value, its build by digest; ``from_json`` undoes it."""
        return {
            "kernel": self.kernel,
            "name": self.name,
            "cache_key": self.cache_key,
            "target": str(self.target),
            "hit": self.hit,
            "milliseconds": self.milliseconds,
            "cache": str(self.cache),
            "key": self.key.to_json() if self.key else None,
            "exact": self.exact,
            "problem": self.problem,
            "source": self.source.to_json(),
            "build": self.build.digest,
        }

    @classmethod
    def from_json(cls, node: Node, builds: dict[str, Build]) -> "Launch":
        """The launch of a JSON value.

        Args:
            node: the value.
            builds: by digest.

        Raises:
            DocumentError: a field is missing, or of the wrong kind.
        """
        build = node.field("build")
        if build.digest() not in builds:
            raise build.error("a build that a line before has")
        return cls(
            kernel=node.field("kernel").text(),
            name=node.field("name").text(),
            cache_key=node.field("cache_key").text(),
            target=read_target(node.field("target")),
            hit=node.field("hit").boolean(),
            milliseconds=node.field("milliseconds").number(),
            cache=Path(node.field("cache").string()),
            key=CompileKey.from_json(node.field("key")) if node.has("key") else None,
            exact=node.field("exact").boolean(),
            problem=node.field("problem").string(),
            source=Source.from_json(node.field("source")),
            build=builds[build.digest()],
        )


def spell_build(build: Build) -> dict[str, Any]:
    """The line that goes before the first launch of a build."""
    return {"meta": {"build": build.to_json()}}


def spell_launch(launch: Launch) -> dict[str, Any]:
    """The line of a launch."""
    return {"launch": launch.to_json()}


def read_launches(path: Path) -> tuple[Launch, ...]:
    """The launches of a file of records, in its order; lines of old tell none.

    Raises:
        AotpackError: the file cannot be read, a line of it is no record, or no line tells a launch.
    """
    builds: dict[str, Build] = {}
    found = []
    old = False
    for number, line in _lines(path):
        try:
            record = dict(json.loads(line))  # not as documents are read: lines of old have Infinity in them
            if "launch" in record:
                found.append(Launch.from_json(Node(record["launch"], "launch"), builds))
            elif "build" in dict(record.get("meta", ())):
                build = Build.from_json(Node(record["meta"]["build"], "meta.build"))
                builds[build.digest] = build
            else:
                old |= "meta" not in record
        except (ValueError, TypeError, RecursionError, DocumentError) as error:
            raise AotpackError(f"{path}: line {number} is not a recorded launch: {error}") from None
    if old and not found:
        raise AotpackError(
            f"{path}: holds keys alone, and not what their cache keys were made of; record the run again with "
            "aotpack.listener.listen"
        )
    return tuple(found)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        return enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    except (OSError, UnicodeDecodeError) as error:
        raise AotpackError(f"{path}: cannot be read: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedKey:
    """One key that a run met, in the form in which keys are compared.

    Attributes:
        kernel: ``module:qualname``.
        form: every field of the key, empty attrs aside, in one canonical line.
    """

    kernel: str
    form: str


def comparable(key: CompileKey) -> RecordedKey:
    """A key in the form in which keys are compared."""
    return _recorded(
        key.kernel,
        {
            "signature": dict(key.to_json()["signature"]),
            "constexprs": [[list(path), value] for path, value in key.constexprs],
            "attrs": key.to_json()["attrs"],
            "options": key.to_json()["options"],
        },
    )


def read_records(path: Path) -> tuple[RecordedKey, ...]:
    """The keys of a file of records, each once, in its order; keys that cannot be spelled are left out.

    Raises:
        AotpackError: the file cannot be read, or a line of it is no record; the message says which.
    """
    found = []
    for number, line in _lines(path):
        try:
            record = json.loads(line)
            if "launch" in record:
                if record["launch"]["key"] is not None:
                    found.append(comparable(CompileKey.from_json(Node(record["launch"]["key"]))))
            elif "meta" not in record:
                found.append(_recorded(_with_colon(Node(record["kernel"], "kernel").text()), record))
        except (ValueError, KeyError, TypeError, RecursionError, DocumentError) as error:
            raise AotpackError(f"{path}: line {number} is not a recorded key: {error!r}") from None
    return tuple(dict.fromkeys(found))


def _with_colon(kernel: str) -> str:
    """``module:qualname``, of a name that has dots alone."""
    if ":" in kernel:
        return kernel
    module, _, name = kernel.rpartition(".")
    return f"{module}:{name}"


def _recorded(kernel: str, record: dict[str, Any]) -> RecordedKey:
    form = {
        "kernel": kernel,
        "signature": record["signature"],
        "constexprs": sorted(([path, spell_constant(value)] for path, value in record["constexprs"]), key=str),
        "attrs": sorted([path, attrs] for path, attrs in record["attrs"] if attrs),
        "options": record["options"],
    }
    return RecordedKey(kernel=kernel, form=canonical_json(form))
