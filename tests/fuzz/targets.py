"""Targets: everything that reads bytes from outside, and what must hold whatever the bytes are.

Nothing but an ``AotpackError`` may leave a reader, and its message is one line that a terminal can be shown. Nothing is
written but below the directory that a reader is given. What is read at all is what it claims to be.

To add one, write its reader and name it in ``TARGETS``; its seeds go to ``corpus/<name>``.
"""

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from aotpack import selftest
from aotpack.bundle import Bundle, bundle_name, open_bundle
from aotpack.digests import digest_bytes
from aotpack.documents import parse_document
from aotpack.elf import cuda_architecture, glibc_baseline
from aotpack.errors import AotpackError
from aotpack.install import uninstall
from aotpack.manifest import read_manifest
from aotpack.policy import POLICY, policies_in_force
from aotpack.receipts import read_receipt, receipt_path
from aotpack.record import read_launches, read_records
from aotpack.report.bundles import show_bundle
from aotpack.signatures import parse_signatures
from aotpack.store import kinds_of, open_store, unpack_store
from aotpack.verify import verify_bundle, verify_cache
from aotpack.wheel import wheel_version
from tests.fuzz.mutators import Mutator, mutate_archive, mutate_bytes, mutate_document, mutate_lines
from tests.fuzz.watch import writes_elsewhere

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that reads bytes from outside.

    Attributes:
        name: of it, and of the directory of its seeds.
        read: reads the bytes; it may use the directory, which is empty, and fails where something does not hold.
        mutate: changes bytes that it was given before.
    """

    name: str
    read: Callable[[bytes, Path], None]
    mutate: Mutator

    def seeds(self) -> list[Path]:
        """The corpus, by name."""
        return sorted((CORPUS / self.name).iterdir())


def attempt(target: Target, data: bytes, scratch: Path) -> None:
    """Let a target read bytes, and hold it to what it promises.

    Args:
        target: the target.
        data: the bytes.
        scratch: a directory of this call's own; it is emptied.

    Raises:
        AssertionError: something that was promised does not hold.
        Exception: what should not have left the target.
    """
    _clear(scratch)
    with writes_elsewhere(scratch) as elsewhere, refused():
        target.read(data, scratch)
    assert not elsewhere, f"written outside of the scratch directory: {elsewhere}"


def _clear(scratch: Path) -> None:
    for path in scratch.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def refused() -> Iterator[None]:
    """Errors of ours are fine, as long as they can be shown in one line."""
    message = None
    try:
        yield
    except AotpackError as error:
        message = str(error)
    if message is not None:
        assert message, "an error without a message"
        check_shown(message)


def check_shown(text: str) -> None:
    """What is shown is one line, without anything that would steer a terminal.

    Raises:
        AssertionError: it is not.
    """
    assert text.isprintable(), f"not to be shown in one line: {text!r}"


# Readers


def read_archive(data: bytes, scratch: Path) -> None:
    """An archive: its manifest, its blobs, its store, and what a check says of it."""
    path = scratch / "bundle.tar.zst"
    path.write_bytes(data)
    for finding in verify_bundle(path).findings:
        check_shown(str(finding))
    bundle = open_bundle(path)
    blobs = dict(bundle.blobs())
    listed = kinds_of(bundle.manifest)
    assert blobs.keys() == listed.keys()
    assert all(digest == f"sha256:{hashlib.sha256(content).hexdigest()}" for digest, content in blobs.items())
    store = unpack_store(bundle, scratch / "store")
    assert store.manifest == bundle.manifest
    expected = {f"{digest.removeprefix('sha256:')}.{kind}" for digest, kinds in listed.items() for kind in kinds}
    assert {found.name for found in (store.directory / "blobs").iterdir()} == expected


def _look_at(bundle: Bundle) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(shown):
        show_bundle(bundle, as_json=False)
    shown.seek(0)
    for line in shown.read().splitlines():
        check_shown(line)
    with suppress(AotpackError):  # not every engine's name is one of a package
        wheel_version(bundle)


def read_manifest_bytes(data: bytes, scratch: Path) -> None:
    """A manifest: it has one spelling, and what becomes the name of a file is one."""
    manifest = read_manifest(data)
    assert manifest.to_bytes() == data
    assert manifest.digest == digest_bytes(data)
    assert sum(len(frame) for frame in manifest.frames()) == len(kinds_of(manifest))
    for name in (
        bundle_name(manifest),
        *(entry.name for entry in manifest.entries),
        *(helper.file for helper in manifest.helpers),
    ):
        assert name == Path(name).name, f"not the name of a file: {name!r}"
        assert not name.startswith("."), f"a hidden file: {name!r}"
        check_shown(name)
    _look_at(Bundle(path=scratch / "bundle.tar.zst", manifest=manifest, digest=manifest.digest, size=len(data)))


def read_store(data: bytes, scratch: Path) -> None:
    """A store as a wheel carries it: a line that is its manifest, and one that says what it carries."""
    manifest, _, carries = data.partition(b"\n")
    (scratch / "blobs").mkdir()
    (scratch / "manifest.json").write_bytes(manifest + b"\n")
    if carries:
        (scratch / "carries.json").write_bytes(carries)
        with suppress(OSError, LookupError, TypeError, ValueError):  # as its docstring says
            selftest.check_store(scratch)
    store = open_store(scratch)
    assert store.digest == digest_bytes(manifest + b"\n")
    assert store.identity
    for digest, kinds in kinds_of(store.manifest).items():
        for kind in kinds:
            assert (scratch / "blobs" / f"{digest.removeprefix('sha256:')}.{kind}").parent == scratch / "blobs"


def read_receipt_bytes(data: bytes, scratch: Path) -> None:
    """A receipt, which a check and an uninstall then act on: below the cache directory, and nowhere else."""
    cache = scratch / "cache"
    path = receipt_path(cache, "sha256:" + "0" * 64)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with writes_elsewhere(cache) as elsewhere:
        for finding in verify_cache(cache).findings:
            check_shown(str(finding))
        receipt = read_receipt(path, cache)
        for file in receipt.files:
            assert (cache / file.path).resolve().is_relative_to(cache), f"outside of the cache: {file.path!r}"
        path.write_bytes(receipt.to_bytes())
        assert read_receipt(path, cache) == receipt
        uninstall(receipt)
    assert not elsewhere, f"written outside of the cache directory: {elsewhere}"


def read_document(data: bytes, _scratch: Path) -> None:
    """A document, every value of which is asked for as every kind."""
    waiting = [parse_document(data)]
    while waiting:
        node = waiting.pop()
        for ask in (
            node.text,
            node.string,
            node.integer,
            node.number,
            node.boolean,
            node.digest,
            lambda node=node: node.one_of("a", "b"),
            lambda node=node: node.field("a"),
            lambda node=node: node.only("a"),
        ):
            with refused():
                ask()
        with refused():
            waiting += node.items()
        with refused():
            waiting += [inner for _, inner in node.fields()]


def read_record(data: bytes, scratch: Path) -> None:
    """A file of records, as a listener writes it."""
    path = scratch / "records.jsonl"
    path.write_bytes(data)
    with refused():
        read_records(path)
    read_launches(path)


def read_elf(data: bytes, _scratch: Path) -> None:
    """A cubin or a shared object."""
    cuda_architecture(data)
    glibc_baseline(data)


def read_signature_file(data: bytes, _scratch: Path) -> None:
    """Signatures beside a bundle: they have one spelling."""
    assert parse_signatures(data).to_bytes() == data


def read_policy(data: bytes, scratch: Path) -> None:
    """A policy: it is in force as it was read, or refuses."""
    path = scratch / "policy.toml"
    path.write_bytes(data)
    before = os.environ.get(POLICY)
    os.environ[POLICY] = str(path)
    try:
        assert list(policies_in_force())
    finally:
        os.environ.pop(POLICY)
        if before is not None:
            os.environ[POLICY] = before


TARGETS = {
    target.name: target
    for target in (
        Target(name="archive", read=read_archive, mutate=mutate_archive),
        Target(name="manifest", read=read_manifest_bytes, mutate=mutate_document),
        Target(name="store", read=read_store, mutate=mutate_lines),
        Target(name="receipt", read=read_receipt_bytes, mutate=mutate_document),
        Target(name="document", read=read_document, mutate=mutate_document),
        Target(name="record", read=read_record, mutate=mutate_lines),
        Target(name="elf", read=read_elf, mutate=mutate_bytes),
        Target(name="signatures", read=read_signature_file, mutate=mutate_document),
        Target(name="policy", read=read_policy, mutate=mutate_bytes),
    )
}
"""By name."""
