"""Probe of what is demanded of signatures here, of what satisfies it, and of who may write where bundles lie."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from aotpack.admission import admit_bundle, admit_installed, admit_store
from aotpack.archive import MANIFEST
from aotpack.bundle import Bundle
from aotpack.doctor.sections import Section
from aotpack.errors import AotpackError, CacheError, SignatureError
from aotpack.findings import Finding
from aotpack.policy import Demand, demands_here
from aotpack.receipts import Receipt
from aotpack.runtime.candidates import find_candidates
from aotpack.runtime.stores import store_of
from aotpack.runtime.trust import refuse_writers
from aotpack.store import open_store


def probe_trust(receipts: Iterable[Receipt], bundle: Bundle | None) -> Section:
    """What is demanded here, and which of the bundles that lie here a process that is activated would not serve.

    Args:
        receipts: of the cache directory.
        bundle: the bundle that is to be installed, if any.
    """
    try:
        demands = demands_here()
    except SignatureError as error:
        return _without(Finding(code=error.finding, subject="policy", detail=str(error)))
    except AotpackError as error:
        return _without(Finding(code="D120", subject="policy", detail=str(error)))
    rows = [("demanded", f"a signature by one of {len(one.keys)} keys ({one.source})") for one in demands]
    findings = [*_judge_installed(receipts, demands), *_judge_wheels(demands)]
    if bundle is not None:
        findings += _judge(str(bundle.path), lambda: admit_bundle(bundle, demands))
    return Section(title="trust", rows=tuple(rows) or (("demanded", "nothing"),), findings=tuple(findings))


def _without(finding: Finding) -> Section:
    return Section(
        title="trust", rows=(("demanded", "what cannot be told, so nothing is served"),), findings=(finding,)
    )


def _judge_installed(receipts: Iterable[Receipt], demands: tuple[Demand, ...]) -> Iterator[Finding]:
    for receipt in receipts:
        yield from _judge_place(receipt.path)
        yield from _judge(receipt.name, lambda receipt=receipt: admit_installed(receipt, demands))  # type: ignore[misc]


def _judge_wheels(demands: tuple[Demand, ...]) -> Iterator[Finding]:
    for point in find_candidates().wheels:
        try:
            store = open_store(store_of(point))
        except AotpackError:
            continue  # a finding of the wheels' section
        yield from _judge_place(store.directory / MANIFEST)
        yield from _judge(point.value, lambda store=store: admit_store(store, demands))  # type: ignore[misc]


def _judge_place(path: Path) -> Iterator[Finding]:
    try:
        refuse_writers(path)
    except CacheError as error:
        yield Finding(code="D208", subject=path.name, detail=str(error))


def _judge(subject: str, admit: Callable[[], object]) -> Iterator[Finding]:
    try:
        admit()
    except SignatureError as error:
        yield Finding(code=error.finding, subject=subject, detail=str(error))
    except AotpackError as error:
        yield Finding(code="D120", subject=subject, detail=str(error))
