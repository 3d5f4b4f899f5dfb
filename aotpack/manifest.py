"""The manifest: a bundle's index, and its identity.

It lists every digest in the bundle, so its own digest names the bundle. Its first bytes are its format; another one is
refused by number before anything else is read. What is read is checked to the last field, and an error names the
place: ``entries[4].artifacts.cubin.digest: expected "sha256:<64 hex>", found ""``. Each manifest has one spelling
alone (see ``to_bytes``), so that a digest means one thing.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aotpack.canonical import CanonicalReader, Form, Part
from aotpack.digests import canonical_json, digest_bytes
from aotpack.documents import Node, spell_name
from aotpack.errors import DocumentError, UnsupportedFormatError
from aotpack.keys import (
    CompileKey,
    LaunchOptions,
    read_attrs,
    read_constexpr,
    read_kernel,
    read_launch_options,
    read_options,
    read_signature,
    read_target,
    spell_attrs,
    spell_constexpr,
    spell_launch_options,
    spell_options,
    spell_signature,
)
from aotpack.sources import Sources
from aotpack.targets import Target
from aotpack.toolchain import Toolchain
from aotpack.tuning import Result, in_order

FORMAT = 1

_BEGINNING = re.compile(rb'\{"format":(0|[1-9]\d{0,8}),')
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_FUNCTION = re.compile(rf"{_MODULE.pattern}:[^\W\d][\w.<>]*")

MAX_ARTIFACT = 16 << 20
"""Bytes that one artifact may have, since each is held in memory: the largest of the known kernels has 222 kB."""

MAX_CONTENT = 512 << 20
"""Bytes that all artifacts may have, since a wheel and a repair hold them in memory; all presets on one architecture:
14 MB."""

ARTIFACT_KINDS = ("cubin", "json")
"""What a compile leaves that launching needs: the machine code, and Triton's metadata for its launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file that a compile left.

    Attributes:
        digest: of its content.
        size: in bytes.
    """

    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One zstd frame of a bundle's file behind the manifest's own, as it is packed.

    The digests of artifacts say what it unpacks to; this one says, without unpacking it, that the file has it as it
    was written.

    Attributes:
        digest: of its bytes in the file.
        size: how many these are.
    """

    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of the engine, and the identity of its source.

    Attributes:
        name: ``module:qualname``.
        family: the family that drives it.
        cache_keys: what Triton hashes of its source, its helpers, its constexpr globals, and its line number
            (triton/runtime/jit.py, ``JITCallable.cache_key``): in a fresh process first, then as other histories
            of a process make it (see ``aotpack.sourcekeys``).
    """

    name: str
    family: str
    cache_keys: tuple[str, ...]

    @property
    def cache_key(self) -> str:
        """What a fresh process hashes."""
        return self.cache_keys[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """An input that reaches a key: the proof that the key is needed.

    Attributes:
        deployment: which of the manifest's deployments.
        input: the run-time quantities that were tried, by name.
    """

    deployment: int
    input: tuple[tuple[str, int | str | bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One compile key and what its compile left.

    Attributes:
        key: the compile key.
        name: the stem of the files in Triton's cache: the kernel's name, cut to 150 characters.
        reached: an input that reaches the key.
        launches: the options of the launches that ask for the key, as they spell them: what a process needs to have
            the kernel ready before its first launch, see ``aotpack.memorykeys``.
        artifacts: by kind, see ``ARTIFACT_KINDS``.
    """

    key: CompileKey
    name: str
    reached: Reached
    launches: tuple[LaunchOptions, ...]
    artifacts: tuple[tuple[str, Artifact], ...]

    @property
    def cubin(self) -> Artifact:
        """The machine code."""
        return dict(self.artifacts)["cubin"]

    @property
    def metadata(self) -> Artifact:
        """Triton's metadata, without the cache key and without paths of the build machine."""
        return dict(self.artifacts)["json"]


HELPER_NAMES = ("__triton_launcher", "cuda_utils")
"""The extension modules that Triton compiles to launch kernels (triton/backends/nvidia/driver.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """One native helper: an extension module that Triton would compile where it launches kernels.

    Attributes:
        name: of the module, see ``HELPER_NAMES``.
        source: digest of its C text.
        machine: what it runs on, as ``platform.machine`` says it: ``x86_64``.
        suffix: the Python that loads it, as its ``EXT_SUFFIX``: ``.cpython-311-x86_64-linux-gnu.so``.
        glibc: the oldest glibc that it runs with.
        artifact: the shared object.
    """

    name: str
    source: str
    machine: str
    suffix: str
    glibc: str
    artifact: Artifact

    @property
    def file(self) -> str:
        """Its file name in Triton's cache."""
        return self.name + self.suffix

    @property
    def order(self) -> tuple[str, str, str]:
        """Where it stands in a manifest: those of a module stand together, then those of a Python."""
        return self.name, self.suffix, self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """What was measured of an autotuned kernel on a device, and the file in which Triton would have kept it.

    Attributes:
        result: what was measured.
        name: of the file, see ``aotpack.autotuner``.
        artifact: the file; where Triton looks for it is known where the bundle is installed.
    """

    result: Result
    name: str
    artifact: Artifact


TUNED_SUFFIX = ".autotune.json"
"""The end of such a file's name (triton/runtime/autotuner.py, ``check_disk_cache``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A key that the bundle should hold and does not.

    Attributes:
        key: the compile key.
        reason: why it could not be compiled, in the compiler's own words.
    """

    key: CompileKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A value that only the serving machine fixes, and that was not given: keys that depend on it are not packed.

    Attributes:
        family: the family whose keys depend on it.
        name: what the value is; ``--set NAME=VALUE`` gives it.
        fixed_by: what fixes it on the serving machine.
    """

    family: str
    name: str
    fixed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A bundle's index.

    Attributes:
        engine: the engine's name.
        engine_version: its release.
        toolchain: the Triton build that compiled.
        targets: what was compiled for, ascending.
        families: the families covered, by name.
        deployments: the deployments covered, as JSON values; what they hold is the families' business.
        kernels: the kernels covered, by name.
        sources: what they are made of in the engine's files.
        entries: what the bundle holds, by kernel and key.
        helpers: native helpers, in their ``order``.
        missing: what it should hold and does not.
        unknowns: values that decide further keys and were not given.
        built_by: the aotpack release that built it.
        results: what was measured of autotuned kernels, in order.
        devices: those that the bundle is for alone: configurations that lose on each of them are not in it. None
            where it holds all.
        archive: the frames of the bundle's file behind the manifest's own, in their order. None where that is not
            known, as in a manifest that ``aotpack.bundle.write_bundle`` has not written yet.
    """

    engine: str
    engine_version: str
    toolchain: Toolchain
    targets: tuple[Target, ...]
    families: tuple[str, ...]
    deployments: tuple[dict[str, Any], ...]
    kernels: tuple[Kernel, ...]
    sources: Sources
    entries: tuple[Entry, ...]
    helpers: tuple[Helper, ...]
    missing: tuple[Missing, ...]
    unknowns: tuple[Unknown, ...]
    built_by: str
    results: tuple[KeptResult, ...] = ()
    devices: tuple[str, ...] = ()
    archive: tuple[Frame, ...] = ()

    def to_bytes(self) -> bytes:
        """The manifest in its one spelling, which ``read_manifest`` undoes: canonical JSON, with the format first."""
        document = self.to_json()
        number = document.pop("format")
        return f'{{"format":{number},{canonical_json(document)[1:]}\n'.encode()

    @property
    def digest(self) -> str:
        """The digest of the canonical spelling: the bundle's identity."""
        return digest_bytes(self.to_bytes())

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name."""
        return next(kernel for kernel in self.kernels if kernel.name == name)

    def blobs(self, target: Target) -> list[Artifact]:
        """The artifacts of a target's frame in the bundle, in their order there.

        Cubins first, then metadata, each by kernel and key: what is alike stands together; last the results. A blob
        that an earlier target's frame has is not repeated.
        """
        return dict(zip(self.targets, self.frames(), strict=False)).get(target, [])

    def frames(self) -> list[list[Artifact]]:
        """The artifacts of each frame in the bundle, in their order there: one a target, and one of the helpers."""
        by_target: dict[Target, list[Artifact]] = {target: [] for target in self.targets}
        for kind in ARTIFACT_KINDS:
            for entry in self.entries:
                by_target[entry.key.target].append(dict(entry.artifacts)[kind])
        for kept in self.results:
            by_target[kept.result.tuning.target].append(kept.artifact)
        seen: set[str] = set()
        frames = []
        for artifacts in (*by_target.values(), [helper.artifact for helper in self.helpers]):
            mine = {artifact.digest: artifact for artifact in artifacts if artifact.digest not in seen}
            seen |= mine.keys()
            frames.append(list(mine.values()))
        return frames

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON value."""
        return {
            "format": FORMAT,
            "engine": _spell_engine((self.engine, self.engine_version)),
            "toolchain": self.toolchain.to_json(),
            "targets": [str(target) for target in self.targets],
            "families": list(self.families),
            "deployments": list(self.deployments),
            "kernels": _spell_kernels(self.kernels),
            "sources": self.sources.to_json(),
            "entries": [_spell_entry(entry) for entry in self.entries],
            "helpers": [_spell_helper(helper) for helper in self.helpers],
            "missing": [_spell_missing(item) for item in self.missing],
            "unknowns": [_spell_unknown(item) for item in self.unknowns],
            "provenance": _spell_provenance(self.built_by),
            "devices": list(self.devices),
            "results": [_spell_result(kept) for kept in self.results],
            "archive": [_spell_artifact(frame) for frame in self.archive],
        }


def _spell_engine(engine: tuple[str, str]) -> dict[str, Any]:
    return {"name": engine[0], "version": engine[1]}


def _spell_kernels(kernels: Iterable[Kernel]) -> dict[str, Any]:
    return {kernel.name: {"family": kernel.family, "cache_keys": list(kernel.cache_keys)} for kernel in kernels}


def _spell_result(kept: KeptResult) -> dict[str, Any]:
    return {"result": kept.result.to_json(), "name": kept.name, "artifact": _spell_artifact(kept.artifact)}


def _spell_missing(item: Missing) -> dict[str, Any]:
    return {"key": item.key.to_json(), "reason": item.reason}


def _spell_unknown(item: Unknown) -> dict[str, Any]:
    return {"family": item.family, "name": item.name, "fixed_by": item.fixed_by}


def _spell_provenance(built_by: str) -> dict[str, Any]:
    return {"aotpack": built_by}


def _spell_entry(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key.to_json(),
        "name": entry.name,
        "reached": _spell_reached(entry.reached),
        "launches": _spell_launches(entry.launches),
        "artifacts": {kind: _spell_artifact(artifact) for kind, artifact in entry.artifacts},
    }


def _spell_helper(helper: Helper) -> dict[str, Any]:
    return {
        "name": helper.name,
        "source": helper.source,
        "machine": helper.machine,
        "suffix": helper.suffix,
        "glibc": helper.glibc,
        "artifact": _spell_artifact(helper.artifact),
    }


def _spell_artifact(artifact: Artifact | Frame) -> dict[str, Any]:
    return {"digest": artifact.digest, "size": artifact.size}


def narrow(manifest: Manifest, targets: Collection[Target], suffix: str | None) -> Manifest:
    """What a manifest says of some targets, and of the native helpers of one Python.

    Args:
        manifest: the whole.
        targets: whose entries stay, of its targets.
        suffix: of the helpers that stay; None keeps none.
    """
    return replace(
        manifest,
        targets=tuple(target for target in manifest.targets if target in targets),
        entries=tuple(entry for entry in manifest.entries if entry.key.target in targets),
        helpers=tuple(helper for helper in manifest.helpers if helper.suffix == suffix),
        missing=tuple(item for item in manifest.missing if item.key.target in targets),
        results=tuple(kept for kept in manifest.results if kept.result.tuning.target in targets),
    )


def read_manifest(data: bytes) -> Manifest:
    """The manifest of a bundle's first member.

    Raises:
        UnsupportedFormatError: it is of another format.
        DocumentError: it is no manifest; the message says where.
    """
    manifest = _read(_begin(data))
    _check(manifest)
    return manifest


def read_frames(data: bytes) -> tuple[Frame, ...]:
    """What a manifest says of its bundle's frames; nothing else of it is read, so that it takes no time to tell.

    Raises:
        UnsupportedFormatError, DocumentError: as ``read_manifest``, as far as it was read.
    """
    return _read_archive(_begin(data))


def _begin(data: bytes) -> CanonicalReader:
    """A manifest of this format, to be read from its first field on.

    Raises:
        UnsupportedFormatError, DocumentError: as ``read_manifest``.
    """
    beginning = _BEGINNING.match(data)
    if beginning is None:
        shown = canonical_json(data[:40].decode("ascii", "replace"))
        raise DocumentError(f'expected the canonical spelling, which begins with {{"format":{FORMAT}, found {shown}')
    number = int(beginning[1])
    if number != FORMAT:
        age = "newer" if number > FORMAT else "older"
        raise UnsupportedFormatError(
            f"format {number} is {age} than this aotpack reads ({FORMAT}); "
            + ("upgrade aotpack" if number > FORMAT else "build the bundle again")
        )
    return CanonicalReader(data, beginning.end())


def _read_archive(document: CanonicalReader) -> tuple[Frame, ...]:
    return document.items("archive", _read_frame, _spell_artifact)


def _read(document: CanonicalReader) -> Manifest:
    # In the order of the canonical spelling, which is that of the names.
    archive = _read_archive(document)
    deployments = document.items("deployments", _read_plain_object, lambda value: value)
    devices = document.items("devices", Node.line, str)
    engine, engine_version = document.value("engine", _read_engine, _spell_engine)
    entries = document.items("entries", _read_entry, _spell_entry, longest=None, form=_ENTRY)
    families = document.items("families", Node.line, str)
    helpers = document.items("helpers", _read_helper, _spell_helper)
    kernels = document.value("kernels", _read_kernels, _spell_kernels)
    missing = document.items("missing", _read_missing, _spell_missing, longest=None)
    built_by = document.value(
        "provenance", lambda node: node.only("aotpack").field("aotpack").line(), _spell_provenance
    )
    results = document.items("results", _read_result, _spell_result, longest=None)
    sources = document.value("sources", Sources.from_json, Sources.to_json)
    targets = document.items("targets", read_target, str)
    toolchain = document.value("toolchain", Toolchain.from_json, Toolchain.to_json)
    unknowns = document.items("unknowns", _read_unknown, _spell_unknown)
    document.end()
    return Manifest(
        engine=engine,
        engine_version=engine_version,
        toolchain=toolchain,
        targets=targets,
        families=families,
        deployments=deployments,
        kernels=kernels,
        sources=sources,
        entries=entries,
        helpers=helpers,
        missing=missing,
        unknowns=unknowns,
        built_by=built_by,
        results=results,
        devices=devices,
        archive=archive,
    )


def _read_plain_object(node: Node) -> dict[str, Any]:
    """An object that only its owner understands: of the depth that documents may have, and of strings in one line."""
    waiting = [value for _, value in node.fields()]
    while waiting:
        value = waiting.pop()
        if isinstance(value.value, str) and value.value:
            value.line()
        elif isinstance(value.value, list):
            waiting += value.items()
        elif isinstance(value.value, dict):
            waiting += (inner for _, inner in value.fields())
    return dict(node.value)


def _read_engine(node: Node) -> tuple[str, str]:
    node.only("name", "version")
    return _file_safe(node.field("name")), _file_safe(node.field("version"))


def _file_safe(node: Node) -> str:
    text = node.text()
    if re.fullmatch(r"[\w+-][\w.+-]{0,99}", text) is None:
        raise node.error("a name or release of at most 100 letters, digits, '.', '_', '+' and '-'")
    return text


def _read_kernels(node: Node) -> tuple[Kernel, ...]:
    return tuple(_read_kernel(name, kernel) for name, kernel in node.fields())


def _read_kernel(name: str, node: Node) -> Kernel:
    node.only("family", "cache_keys")
    cache_keys = tuple(_read_cache_key(key) for key in node.field("cache_keys").items())
    if not cache_keys or len(set(cache_keys)) != len(cache_keys):
        raise node.field("cache_keys").error("at least one key, each once")
    return Kernel(name=name, family=node.field("family").line(), cache_keys=cache_keys)


def _read_cache_key(node: Node) -> str:
    if len(node.text()) != 64 or not set(node.text()) <= set("0123456789abcdef"):  # noqa: PLR2004
        raise node.error("64 hex digits")
    return node.text()


def _read_entry(node: Node) -> Entry:
    node.only("key", "name", "reached", "launches", "artifacts")
    artifacts = node.field("artifacts").only(*ARTIFACT_KINDS)
    return Entry(
        key=CompileKey.from_json(node.field("key")),
        name=_read_name(node.field("name")),
        reached=_read_reached(node.field("reached")),
        launches=_read_launches(node.field("launches")),
        artifacts=tuple((kind, _read_artifact(artifacts.field(kind))) for kind in ARTIFACT_KINDS),
    )


def _spell_reached(reached: Reached) -> dict[str, Any]:
    return {"deployment": reached.deployment, "input": dict(reached.input)}


def _read_reached(node: Node) -> Reached:
    node.only("deployment", "input")
    return Reached(
        deployment=node.field("deployment").integer(),
        input=tuple(sorted((name, _read_quantity(value)) for name, value in node.field("input").fields())),
    )


def launches_in_order(launches: Iterable[LaunchOptions]) -> tuple[LaunchOptions, ...]:
    """Launches' options each once, in the order of a manifest."""
    return tuple(sorted(set(launches), key=lambda launch: canonical_json(spell_launch_options(launch))))


def _spell_launches(launches: Iterable[LaunchOptions]) -> list[Any]:
    return [spell_launch_options(launch) for launch in launches]


def _read_launches(node: Node) -> tuple[LaunchOptions, ...]:
    launches = tuple(read_launch_options(launch) for launch in node.items())
    if launches != launches_in_order(launches):
        raise node.error("each launch once, in canonical order")
    return launches


def _read_name(node: Node) -> str:
    # It becomes a file name in the cache, so it is a Python name and nothing else.
    name = node.text()
    if not name.isidentifier() or name.startswith("__grp__") or len(name) > 150 or len(name.encode()) > 200:  # noqa: PLR2004
        raise node.error("a Python name of at most 150 characters and 200 bytes")
    return node.text()


def _read_quantity(node: Node) -> int | str | bool:
    if isinstance(node.value, bool | int | str):
        return node.value
    raise node.error("a number, a string, or true or false")


def _read_artifact(node: Node) -> Artifact:
    node.only("digest", "size")
    return Artifact(digest=node.field("digest").digest(), size=_read_size(node.field("size")))


def _read_frame(node: Node) -> Frame:
    node.only("digest", "size")
    return Frame(digest=node.field("digest").digest(), size=node.field("size").integer(low=1, high=MAX_CONTENT))


def _read_size(node: Node) -> int:
    return node.integer(low=1, high=MAX_ARTIFACT)


_KEY_PARTS = (
    Part(before=b'{"attrs":', read=read_attrs, spell=spell_attrs, depth=2),
    Part(before=b',"constexprs":', read=read_constexpr, spell=spell_constexpr, depth=2, joint=b",[["),
    Part(before=b',"kernel":', read=read_kernel, spell=str, depth=2),
    Part(before=b',"options":', read=read_options, spell=spell_options, depth=2),
    Part(before=b',"signature":', read=read_signature, spell=spell_signature, depth=2),
    Part(before=b',"target":', read=read_target, spell=str, depth=2),
)

_SPELLED_DIGEST = re.compile(rb'"(sha256:[0-9a-f]{64})"')


def _glance_at_digest(text: bytes) -> str | None:
    found = _SPELLED_DIGEST.fullmatch(text)
    return found[1].decode() if found else None


_ARTIFACT_PARTS = (
    Part(before=b'{"artifacts":{"cubin":{"digest":', read=Node.digest, spell=str, depth=3, glance=_glance_at_digest),
    Part(before=b',"size":', read=_read_size, spell=int, depth=3),
    Part(before=b'},"json":{"digest":', read=Node.digest, spell=str, depth=3, glance=_glance_at_digest),
    Part(before=b',"size":', read=_read_size, spell=int, depth=3),
)


def _put_entry(values: Sequence[Any], texts: Sequence[bytes]) -> Entry:
    """An entry by what its parts mean, in the order of ``_ENTRY``."""
    cubin, cubin_size, metadata, metadata_size = values[: len(_ARTIFACT_PARTS)]
    attrs, constexprs, kernel, options, signature, target, launches, name, reached = values[len(_ARTIFACT_PARTS) :]
    key = CompileKey(
        kernel=kernel, target=target, signature=signature, constexprs=constexprs, attrs=attrs, options=options
    )
    spelled = texts[len(_ARTIFACT_PARTS) :]
    line = b"".join(part.before + text for part, text in zip(_KEY_PARTS, spelled, strict=False)) + b"}"
    return Entry(
        key=key.known_by(line),
        name=name,
        reached=reached,
        launches=launches,
        artifacts=(
            ("cubin", Artifact(digest=cubin, size=cubin_size)),
            ("json", Artifact(digest=metadata, size=metadata_size)),
        ),
    )


_ENTRY = Form(
    parts=(
        *_ARTIFACT_PARTS,
        replace(_KEY_PARTS[0], before=b'}},"key":' + _KEY_PARTS[0].before),
        *_KEY_PARTS[1:],
        Part(before=b'},"launches":', read=_read_launches, spell=_spell_launches),
        Part(before=b',"name":', read=_read_name, spell=str),
        Part(before=b',"reached":', read=_read_reached, spell=_spell_reached),
    ),
    after=b"}}}",
    within=len(b"}}"),
    put=_put_entry,
)


def _read_helper(node: Node) -> Helper:
    node.only("name", "source", "machine", "suffix", "glibc", "artifact")
    return Helper(
        name=node.field("name").one_of(*HELPER_NAMES),
        source=node.field("source").digest(),
        machine=_file_safe(node.field("machine")),
        suffix=_matching(node.field("suffix"), r"\.[\w.-]{1,99}\.so", "the end of an extension module's file name"),
        glibc=_matching(node.field("glibc"), r"\d{1,9}(\.\d{1,9}){0,3}", "a release of glibc"),
        artifact=_read_artifact(node.field("artifact")),
    )


def _read_result(node: Node) -> KeptResult:
    node.only("result", "name", "artifact")
    name = node.field("name")
    return KeptResult(
        result=Result.from_json(node.field("result")),
        name=_read_name(Node(_stem(name), name.place)) + TUNED_SUFFIX,
        artifact=_read_artifact(node.field("artifact")),
    )


def _stem(node: Node) -> str:
    if not node.text().endswith(TUNED_SUFFIX):
        raise node.error(f"a file name that ends in {TUNED_SUFFIX}")
    return node.text().removesuffix(TUNED_SUFFIX)


def _matching(node: Node, pattern: str, expected: str) -> str:
    if re.fullmatch(pattern, node.text(), re.ASCII) is None:
        raise node.error(expected)
    return node.text()


def _read_missing(node: Node) -> Missing:
    node.only("key", "reason")
    return Missing(key=CompileKey.from_json(node.field("key")), reason=node.field("reason").line())


def _read_unknown(node: Node) -> Unknown:
    node.only("family", "name", "fixed_by")
    return Unknown(
        family=node.field("family").line(), name=node.field("name").line(), fixed_by=node.field("fixed_by").line()
    )


def _check(manifest: Manifest) -> None:
    """Hold the parts of a manifest against each other."""
    for problem in _problems(manifest):
        raise DocumentError(problem)


def _problems(manifest: Manifest) -> Iterator[str]:
    if list(manifest.targets) != sorted(set(manifest.targets)):
        yield "targets: expected each once, ascending"
    yield from _strange_names(manifest)
    yield from _stray_keys(manifest, "entries", [entry.key for entry in manifest.entries])
    yield from _stray_keys(manifest, "missing", [item.key for item in manifest.missing])
    digests = [entry.key.digest for entry in manifest.entries]
    if len(set(digests)) != len(digests):
        yield "entries: expected each key once"
    for index, entry in enumerate(manifest.entries):
        if entry.reached.deployment >= len(manifest.deployments):
            yield f"entries[{index}].reached.deployment: there are {len(manifest.deployments)} deployments"
    order = [helper.order for helper in manifest.helpers]
    if order != sorted(set(order)):
        yield "helpers: expected each once, by name, suffix and source"
    yield from _stray_results(manifest)
    yield from _other_sizes(manifest)


def _strange_names(manifest: Manifest) -> Iterator[str]:
    """Names that are none, of what becomes a path in the engine's files."""
    functions = {function.name for function in manifest.sources.functions}
    for name in functions:
        if _FUNCTION.fullmatch(name) is None:
            yield f"sources.functions.{spell_name(name)}: expected module:qualname"
    for name, _ in manifest.sources.modules:
        if _MODULE.fullmatch(name) is None:
            yield f"sources.modules.{spell_name(name)}: expected the name of a module"
    for kernel in manifest.kernels:
        if kernel.name not in functions:
            yield f"kernels.{spell_name(kernel.name)}: is not among the functions of the sources"


def _stray_results(manifest: Manifest) -> Iterator[str]:
    results = [kept.result for kept in manifest.results]
    if list(in_order(results)) != results or len({(r.tuning, r.device) for r in results}) != len(results):
        yield "results: expected each once, in order"
    kernels = {kernel.name for kernel in manifest.kernels}
    for index, result in enumerate(results):
        place, tuning = f"results[{index}].result.tuning", result.tuning
        if tuning.target not in manifest.targets:
            yield f"{place}.target: {tuning.target} is not among the bundle's targets"
        if tuning.kernel not in kernels:
            yield f"{place}.kernel: {tuning.kernel} is not among the bundle's kernels"


def _other_sizes(manifest: Manifest) -> Iterator[str]:
    sizes: dict[str, int] = {}
    for index, entry in enumerate(manifest.entries):
        for kind, artifact in entry.artifacts:
            if sizes.setdefault(artifact.digest, artifact.size) != artifact.size:
                yield f"entries[{index}].artifacts.{kind}.size: another entry gives this digest another size"
    for index, helper in enumerate(manifest.helpers):
        if sizes.setdefault(helper.artifact.digest, helper.artifact.size) != helper.artifact.size:
            yield f"helpers[{index}].artifact.size: another artifact gives this digest another size"
    for index, kept in enumerate(manifest.results):
        if sizes.setdefault(kept.artifact.digest, kept.artifact.size) != kept.artifact.size:
            yield f"results[{index}].artifact.size: another artifact gives this digest another size"
    if sum(sizes.values()) > MAX_CONTENT:
        yield f"entries: expected artifacts of at most {MAX_CONTENT} bytes, found {sum(sizes.values())}"


def _stray_keys(manifest: Manifest, place: str, keys: list[CompileKey]) -> Iterator[str]:
    assembled = {target for target, _ in manifest.toolchain.assemblers}
    targets = {target for target in manifest.targets if str(target) in assembled}
    kernels = {kernel.name for kernel in manifest.kernels}
    for index, key in enumerate(keys):
        if key.target not in targets:
            yield f"{place}[{index}].key.target: {key.target} is not among the bundle's targets"
        if key.kernel not in kernels:
            yield f"{place}[{index}].key.kernel: {spell_name(key.kernel)} is not among the bundle's kernels"
