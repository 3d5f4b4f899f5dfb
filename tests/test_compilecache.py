"""The compile cache gives back what was put, never anything else, and never makes a build fail."""

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from aotpack.compilecache import CompileCache
from aotpack.digests import digest_bytes
from aotpack.findings import CODES

NAMES = [digest_bytes(str(number).encode()) for number in range(40)]


def test_what_is_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    CompileCache(root=tmp_path / "new" / "cache").put(NAMES[0], b"cubin\n\0")
    later = CompileCache(root=tmp_path / "new" / "cache")
    assert later.get(NAMES[0]) == b"cubin\n\0"
    assert later.get(NAMES[1]) is None
    assert (later.hits, later.misses, later.findings()) == (1, 1, [])


def test_a_damaged_file_counts_as_not_there_and_is_told(tmp_path: Path) -> None:
    cache = CompileCache(root=tmp_path)
    for damage in (b"", b"x", b"\n", None):
        cache.put(NAMES[0], b"content")
        path = cache.path(NAMES[0])
        data = path.read_bytes()
        path.write_bytes(data[:-1] if damage is None else damage + data[1:])
        assert cache.get(NAMES[0]) is None
    (finding,) = cache.findings()
    assert finding.code == "C101"
    assert finding.code in CODES
    assert "damaged, 4 of the files" in finding.detail
    cache.put(NAMES[0], b"content")
    assert cache.get(NAMES[0]) == b"content"


def test_a_whole_file_under_anothers_name_counts_as_not_there(tmp_path: Path) -> None:
    cache = CompileCache(root=tmp_path)
    cache.put(NAMES[0], b"content")
    cache.path(NAMES[1]).parent.mkdir(exist_ok=True)
    shutil.copy(cache.path(NAMES[0]), cache.path(NAMES[1]))
    assert cache.get(NAMES[1]) is None
    assert cache.damaged == [cache.path(NAMES[1])]


def test_where_nothing_can_be_written_it_says_so_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CompileCache(root=tmp_path / "file" / "cache")
    cache.put(NAMES[0], b"content")
    assert cache.get(NAMES[0]) is None
    cache.prune()
    (finding,) = cache.findings()
    assert (finding.code, "Not a directory" in finding.detail) == ("C102", True)


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    CompileCache(root=tmp_path / "cache").put(NAMES[0], b"content")
    (tmp_path / "cache").chmod(0o777)
    cache = CompileCache(root=tmp_path / "cache")
    assert cache.get(NAMES[0]) is None
    cache.put(NAMES[1], b"content")
    assert not cache.path(NAMES[1]).exists()
    (finding,) = cache.findings()
    assert finding.code == "C102"
    assert f"{tmp_path / 'cache'}" in finding.detail
    (tmp_path / "cache").chmod(0o755)
    assert CompileCache(root=tmp_path / "cache").get(NAMES[0]) == b"content"


def test_pruning_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = CompileCache(root=tmp_path, limit=10 * 1100)
    for age, name in enumerate(NAMES):
        cache.put(name, bytes(1024))
        os.utime(cache.path(name), (1_000_000 - age, 1_000_000 - age))
    assert cache.get(NAMES[-1]) is not None  # the oldest one, which is thereby used
    cache.prune()
    left = [name for name in NAMES if cache.path(name).is_file()]
    assert left == [*NAMES[:8], NAMES[-1]]
    assert sum(cache.path(name).stat().st_size for name in left) <= 10 * 1100


def test_pruning_leaves_a_cache_within_its_limit_alone(tmp_path: Path) -> None:
    cache = CompileCache(root=tmp_path)
    cache.put(NAMES[0], b"content")
    cache.prune()
    assert cache.get(NAMES[0]) == b"content"


def test_what_a_killed_process_left_half_written_is_removed_in_time(tmp_path: Path) -> None:
    cache = CompileCache(root=tmp_path)
    cache.put(NAMES[0], b"content")
    folder = cache.path(NAMES[0]).parent
    old, new = folder / ".old.partial", folder / ".new.partial"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (1_000_000, 1_000_000))
    cache.prune()
    assert sorted(path.name for path in folder.iterdir()) == [".new.partial", cache.path(NAMES[0]).name]


def _put_and_get(root: Path) -> int:
    cache = CompileCache(root=root, limit=20_000)
    wrong = 0
    for _ in range(5):
        for name in NAMES:
            cache.put(name, name.encode() * 20)
            wrong += cache.get(name) not in (name.encode() * 20, None)
        cache.prune()
    return wrong + len(cache.damaged) + bool(cache.unusable)


def test_many_processes_share_a_directory(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as executor:
        assert list(executor.map(_put_and_get, [tmp_path] * 3)) == [0, 0, 0]
