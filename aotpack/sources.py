"""Sources: what kernels are made of in an engine's files, read without importing the engine.

``Function`` is what a build records of each function that its kernels reach: where it starts, the digest of its
text, what it calls, and the global values that it reads. ``EngineSources`` reads the files of an engine that may
be another one, patched or newer, and says of each kernel whether the recorded code is still its code: ``Same``,
``Shifted`` to other lines, or ``Changed``. A text counts as changed unless it is the same to the last character,
and a global value unless the statements that define it are: wrong code is worse than a compile.

A global that Triton's key ignores (a dtype, a constexpr reached through a module attribute, a default value) is
compared all the same: with it unnoticed, a changed value would hit the old code.
"""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aotpack.digests import digest_bytes, digest_file, digest_json
from aotpack.documents import Node

_FLOW = (ast.If, ast.Try, ast.With, ast.For, ast.While)


@dataclass(frozen=True, slots=True, kw_only=True)
class Global:
    """A global value that a function reads.

    Attributes:
        spelling: how the function spells it: ``_SALT``, or ``limits.SALT``.
        shown: the value's ``repr`` at the build.
        keyed: whether Triton's ``cache_key`` holds it; else a change of it would go unnoticed.
        definition: digest of the statements that define it.
    """

    spelling: str
    shown: str
    keyed: bool
    definition: str

    def to_json(self) -> dict[str, Any]:
        """The global as a JSON value; ``from_json`` undoes it."""
        return {
            "spelling": self.spelling,
            "shown": self.shown,
            "keyed": self.keyed,
            "definition": self.definition,
        }

    @classmethod
    def from_json(cls, node: Node) -> "Global":
        """The global of a JSON value.

        Raises:
            DocumentError: a field is missing, unknown, or of the wrong kind.
        """
        node.only("spelling", "shown", "keyed", "definition")
        return cls(
            spelling=_read_spelling(node.field("spelling")),
            shown=node.field("shown").string(),
            keyed=node.field("keyed").boolean(),
            definition=node.field("definition").digest(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A kernel, or a function that one reaches.

    Attributes:
        name: ``module:qualname``.
        line: where it starts, decorators included, counted from 1: what Triton's ``cache_key`` holds.
        text: digest of its text as Triton hashes it, see ``hashed_text``.
        noinline: whether calls of it are kept as calls, as its decorator was given it: Triton hashes None and False
            apart.
        calls: each callable that it refers to, by the function's own spelling, and its ``module:qualname``.
        globals: the global values that it reads.
    """

    name: str
    line: int
    text: str
    noinline: bool | None
    calls: tuple[tuple[str, str], ...]
    globals: tuple[Global, ...]

    @property
    def module(self) -> str:
        """The module that defines it."""
        return self.name.partition(":")[0]

    def at(self, line: int) -> "Function":
        """The same function in another place."""
        return replace(self, line=line)

    def to_json(self) -> dict[str, Any]:
        """The function as a JSON value, but for its name; ``from_json`` undoes it."""
        return {
            "line": self.line,
            "text": self.text,
            "noinline": self.noinline,
            "calls": [list(call) for call in self.calls],
            "globals": [value.to_json() for value in self.globals],
        }

    @classmethod
    def from_json(cls, name: str, node: Node) -> "Function":
        """The function of a JSON value.

        Raises:
            DocumentError: a field is missing, unknown, or of the wrong kind.
        """
        node.only("line", "text", "noinline", "calls", "globals")
        return cls(
            name=name,
            line=node.field("line").integer(low=1),
            text=node.field("text").digest(),
            noinline=node.field("noinline").boolean() if node.has("noinline") else None,
            calls=tuple(_read_call(call) for call in node.field("calls").items()),
            globals=tuple(Global.from_json(value) for value in node.field("globals").items()),
        )


def _read_spelling(node: Node) -> str:
    if not all(part.isidentifier() for part in node.text().split(".")):
        raise node.error("a name as a function spells it")
    return node.text()


def _read_call(node: Node) -> tuple[str, str]:
    parts = list(node.items())
    if len(parts) != 2:  # noqa: PLR2004
        raise node.error("a spelling and a function")
    return _read_spelling(parts[0]), parts[1].text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What kernels are made of, as a build found it.

    Attributes:
        functions: the kernels and all that they reach in their engine, by name.
        modules: every file that this rests on, by module, and its digest.
    """

    functions: tuple[Function, ...]
    modules: tuple[tuple[str, str], ...]

    def closure(self, name: str) -> tuple[Function, ...]:
        """A function and what it reaches, each once, callers first.

        Raises:
            KeyError: there is no function of that name.
        """
        by_name = {function.name: function for function in self.functions}
        found = {name: by_name[name]}
        waiting = [name]
        for caller in waiting:
            for _, called in by_name[caller].calls:
                if called in by_name and called not in found:
                    found[called] = by_name[called]
                    waiting.append(called)
        return tuple(found.values())

    def digest(self, name: str) -> str:
        """The identity of a function's source without any line number."""
        return digest_json(
            [
                [
                    function.name.rpartition(":")[2],
                    function.text,
                    bool(function.noinline),
                    sorted([value.spelling, value.shown] for value in function.globals if value.keyed),
                ]
                for function in self.closure(name)
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """The sources as a JSON value; ``from_json`` undoes it."""
        return {
            "functions": {function.name: function.to_json() for function in self.functions},
            "modules": dict(self.modules),
        }

    @classmethod
    def from_json(cls, node: Node) -> "Sources":
        """The sources of a JSON value.

        Raises:
            DocumentError: a field is missing, unknown, or of the wrong kind.
        """
        node.only("functions", "modules")
        return cls(
            functions=tuple(
                sorted(
                    (Function.from_json(name, value) for name, value in node.field("functions").fields()),
                    key=lambda function: function.name,
                )
            ),
            modules=tuple(sorted((name, value.digest()) for name, value in node.field("modules").fields())),
        )


@dataclass(frozen=True, slots=True)
class Same:
    """The kernel stands where it stood, with the same text, helpers and globals."""


@dataclass(frozen=True, slots=True)
class Shifted:
    """Nothing but line numbers differs.

    Attributes:
        lines: where each function starts now, by name.
    """

    lines: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """The recorded code is not this kernel's code.

    Attributes:
        what: what differs, for people: "the text of vllm.a:helper".
    """

    what: str


Comparison = Same | Shifted | Changed


class EngineSources:
    """The Python files of an engine, read as text."""

    def __init__(self, root: Path) -> None:
        """Prepare; files are read when they are needed.

        Args:
            root: the directory that holds the engine's package.
        """
        self.root = root
        self._read: dict[str, _Module | None] = {}

    def _module(self, name: str) -> "_Module | None":
        if name not in self._read:
            path = self.path(name)
            self._read[name] = _Module(path) if path else None
        return self._read[name]

    def path(self, module: str) -> Path | None:
        """The file of a module, or None where the engine does not have it."""
        return next((path for path in self._places(module) if path.is_file()), None)

    def _places(self, module: str) -> tuple[Path, Path]:
        place = self.root.joinpath(*module.split("."))
        return place.with_suffix(".py"), place / "__init__.py"

    def candidates(self, recorded: Sources) -> list[Path]:
        """Where the files of what was recorded would lie, whether or not they are there."""
        return [path for name, _ in recorded.modules for path in self._places(name)]

    @property
    def modules(self) -> tuple[tuple[str, str], ...]:
        """The modules that were read so far, by name, and the digests of their files."""
        return tuple(sorted((name, module.digest) for name, module in self._read.items() if module))

    def holds(self, recorded: Sources) -> bool:
        """Whether every file that was recorded is here unchanged; then every comparison would give ``Same``."""
        try:
            return all((path := self.path(name)) and digest_file(path) == digest for name, digest in recorded.modules)
        except OSError:
            return False

    def compare(self, functions: Iterable[Function]) -> Comparison:
        """Whether a kernel's recorded code is its code here.

        Args:
            functions: the kernel and all that it reaches, see ``Sources.closure``. Those of other packages are left
                to whoever compares those packages.
        """
        lines: list[tuple[str, int]] = []
        shifted = False
        for function in functions:
            if not self._owns(function.module):
                continue
            line = self.line_of(function)
            if line is None:
                return Changed(f"the text of {function.name}")
            for value in function.globals:
                if self.definition(function.module, value.spelling) != value.definition:
                    return Changed(f"the definition of {value.spelling} that {function.name} reads")
            lines.append((function.name, line))
            shifted |= line != function.line
        return Shifted(tuple(lines)) if shifted else Same()

    def _owns(self, module: str) -> bool:
        return (self.root / module.partition(".")[0]).is_dir()

    def line_of(self, function: Function) -> int | None:
        """Where a function with the recorded name and text starts here, or None where there is none."""
        module = self._module(function.module)
        starts = module.starts(function.name) if module else []
        here = [line for line in starts if module and module.text_at(line) == function.text]
        return function.line if function.line in here else next(iter(here), None)

    def definition(self, module: str, spelling: str) -> str:
        """Digest of the statements that define what a module's code means by a name.

        Followed are names that the statements read, in the same module and through imports within the engine;
        what lies outside of it, or cannot be resolved by reading, counts by its name alone.
        """
        lines: dict[str, None] = {}
        self._define(module, spelling, lines, set())
        return digest_json(sorted(lines))

    def _define(self, module: str, spelling: str, lines: dict[str, None], seen: set[tuple[str, str]]) -> None:
        name, _, rest = spelling.partition(".")
        if (module, spelling) in seen:
            return
        seen.add((module, spelling))
        found = self._module(module)
        statements = found.bindings.get(name, []) if found else []
        if not statements:
            lines[f"{module}:{spelling}"] = None
        for statement in statements:
            assert found is not None
            imported = _imported(statement, name, found.package(module))
            if imported is None:
                lines[f"{name} in {found.text_of(statement)}"] = None
                for read in _reads(statement):
                    if read in found.bindings:
                        self._define(module, read, lines, seen)
                continue
            origin, attribute = imported
            inside = f"{origin}.{attribute}" if attribute else origin
            if attribute and self._module(inside) is None:
                self._define(origin, f"{attribute}.{rest}" if rest else attribute, lines, seen)
            else:
                self._define(inside, rest or "", lines, seen)


class _Module:
    """One file: its lines, and what its top level binds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes()
        self.digest = digest_bytes(data)
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            self._lines = list(io.TextIOWrapper(io.BytesIO(data + b"\n"), encoding))
            self._body = ast.parse(data).body
        except (SyntaxError, UnicodeDecodeError, ValueError):
            self._lines, self._body = [], []  # nothing can be found in it, so whatever was recorded of it has changed

    @cached_property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """The top level's statements by each name that they bind."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self._body:
            for name in sorted(_binds(statement)):
                found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def _starts(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for qualname, node in _functions(self._body, ""):
            found.setdefault(qualname, []).append(_first_line(node))
        return found

    def package(self, module: str) -> str:
        """The package from which relative imports of this file, as module ``module``, count."""
        return module if self.path.name == "__init__.py" else module.rpartition(".")[0]

    def text_of(self, statement: ast.stmt) -> str:
        """A statement as it stands in the file; not unparsed, which differs between Python minors."""
        return "".join(self._lines[_first_line(statement) - 1 : statement.end_lineno])

    def starts(self, name: str) -> list[int]:
        """The lines where functions of a ``module:qualname`` start, decorators included."""
        return self._starts.get(name.partition(":")[2].replace(".<locals>", ""), [])

    def text_at(self, line: int) -> str | None:
        """The digest of the text of the function that starts in a line, or None where none does."""
        try:
            return digest_bytes(hashed_text(inspect.getblock(self._lines[line - 1 :])).encode())
        except (AttributeError, IndexError, SyntaxError, tokenize.TokenError):
            return None


def hashed_text(lines: list[str]) -> str:
    """The text that Triton hashes of a function: from ``def`` on, without indentation.

    As ``JITCallable.__init__`` does (triton/runtime/jit.py) with what ``inspect.getsourcelines`` gives.

    Raises:
        AttributeError: there is no ``def`` in it.
    """
    text = textwrap.dedent("".join(lines))
    start = re.search(r"^def\s+\w+\s*\(", text, re.MULTILINE)
    return text[start.start() :]  # type: ignore[union-attr]  # raised as the docstring says


def _first_line(node: ast.stmt) -> int:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.decorator_list:
        return min(node.lineno, node.decorator_list[0].lineno)
    return node.lineno


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, _FLOW):
            for inner in _blocks(node):
                yield from _functions(inner, prefix)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        yield getattr(node, field, [])
    for handler in getattr(node, "handlers", []):
        yield handler.body


def _binds(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    stored = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
    if isinstance(node, _FLOW):
        for block in _blocks(node):
            for inner in block:
                stored |= _binds(inner)
    return stored


def _reads(node: ast.stmt) -> list[str]:
    return sorted(
        {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)}
    )


def _imported(statement: ast.stmt, name: str, package: str) -> tuple[str, str] | None:
    """The module, and the attribute of it or "", that an import statement binds to a name; None where it is none."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if (alias.asname or alias.name.partition(".")[0]) == name:
                return (alias.name if alias.asname else name), ""
    if isinstance(statement, ast.ImportFrom):
        base = package.rsplit(".", statement.level - 1)[0] if statement.level else ""
        origin = ".".join(part for part in (base, statement.module) if part)
        for alias in statement.names:
            if (alias.asname or alias.name) == name:
                return origin, alias.name
    return None
