"""Writers: whose directories are safe to load from, with real owners, modes, links and mounts."""

import grp
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aotpack.writers import objection, steps
from tests.conftest import ROOT

STRANGER = 54321

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files away and to become others")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may read, as those of pytest are not, with a file in a directory in it."""
    directory = Path(tempfile.mkdtemp(prefix="aotpack-test-")).resolve()
    directory.chmod(0o755)
    (directory / "store").mkdir(mode=0o755)
    (directory / "store" / "file").write_text("")
    yield directory
    shutil.rmtree(directory)


AS_ANOTHER = """
import os, sys
from pathlib import Path
from aotpack.writers import objection
user, group, *groups = map(int, sys.argv[2:])
os.setgroups(groups); os.setgid(group); os.setuid(user)
print(objection(Path(sys.argv[1])))
"""


def as_another(path: Path, user: int, group: int, *groups: int, **variables: str) -> str:
    """What another user objects to."""
    command = [sys.executable, "-c", AS_ANOTHER, str(path), *map(str, (user, group, *groups))]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_only_root_and_this_user_may_write_is_sound(place: Path) -> None:
    assert objection(place / "store" / "file") == ""


@needs_root
def test_what_is_roots_is_sound_for_everyone(place: Path) -> None:
    assert as_another(place / "store" / "file", STRANGER, STRANGER) == ""


@pytest.mark.parametrize("step", [".", "store", "store/file"])
def test_one_step_that_every_user_may_write_is_named(place: Path, step: str) -> None:
    (place / step).chmod(0o777)
    assert objection(place / "store" / "file") == f"{place / step} may be written by every user"


def test_a_sticky_directory_is_sound_and_a_sticky_file_is_not(place: Path) -> None:
    (place / "store").chmod(0o1777)
    assert objection(place / "store" / "file") == ""
    (place / "store" / "file").chmod(0o1666)
    assert "file may be written by every user" in objection(place / "store" / "file")


@needs_root
@pytest.mark.parametrize("step", [".", "store", "store/file"])
def test_what_belongs_to_someone_else_is_named_though_only_he_may_write(place: Path, step: str) -> None:
    os.chown(place / step, STRANGER, STRANGER)
    (place / step).chmod(0o555)
    assert objection(place / "store" / "file") == f"{place / step} belongs to user {STRANGER}, who may change it"


@needs_root
def test_a_user_trusts_himself_and_not_another_in_a_directory_for_all(place: Path) -> None:
    (place / "store").chmod(0o1777)
    os.chown(place / "store" / "file", STRANGER, STRANGER)
    assert as_another(place / "store" / "file", STRANGER, STRANGER) == ""
    assert "belongs to user 54321" in as_another(place / "store" / "file", STRANGER + 1, STRANGER)


@needs_root
def test_the_group_of_root_may_write_as_images_for_openshift_let_it(place: Path) -> None:
    (place / "store").chmod(0o775)
    assert as_another(place / "store" / "file", 1000800000, 0) == ""


@needs_root
def test_a_group_that_nobody_else_is_known_to_be_in_may_write_as_fsgroup_does(place: Path) -> None:
    os.chown(place / "store", 0, 61234)
    (place / "store").chmod(0o2775)
    assert as_another(place / "store" / "file", STRANGER, STRANGER, 61234) == ""
    assert as_another(place / "store" / "file", STRANGER, 61234) == ""
    assert "store may be written by group 61234" in as_another(place / "store" / "file", STRANGER, STRANGER)


@needs_root
def test_a_group_that_has_a_name_of_its_own_may_not_write(place: Path) -> None:
    users = grp.getgrnam("users").gr_gid
    os.chown(place / "store", 0, users)
    (place / "store").chmod(0o775)
    assert f"store may be written by group {users} (users)" in as_another(place / "store", STRANGER, users)


def has_a_group_of_his_own(user: pwd.struct_passwd) -> bool:
    try:
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return False
    return user.pw_uid != 0 and (group.gr_name, group.gr_mem) == (user.pw_name, [])


@needs_root
def test_the_private_group_of_a_user_may_write(place: Path) -> None:
    user = next(filter(has_a_group_of_his_own, pwd.getpwall()), None)
    if user is None:
        pytest.skip("no user here has a group of his own")
    os.chown(place / "store", user.pw_uid, user.pw_gid)
    (place / "store").chmod(0o775)
    assert as_another(place / "store" / "file", user.pw_uid, user.pw_gid) == ""


def test_links_are_followed_and_what_holds_them_is_looked_at_too(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open" / "link").symlink_to(place / "store")
    (place / "way").symlink_to("open/link")
    passed = list(steps(place / "way" / "file"))
    for step in ("way", "open", "open/link", "store", "store/file"):
        assert place / step in passed
    assert objection(place / "way" / "file") == ""
    (place / "open").chmod(0o777)
    assert objection(place / "way" / "file") == f"{place / 'open'} may be written by every user"


@needs_root
def test_a_link_of_someone_else_in_a_sticky_directory_is_named(place: Path) -> None:
    place.chmod(0o1777)
    (place / "link").symlink_to("store")
    os.chown(place / "link", STRANGER, STRANGER, follow_symlinks=False)
    assert objection(place / "link" / "file") == f"{place / 'link'} belongs to user {STRANGER}, who may change it"


def test_two_dots_are_gone_through_and_not_folded_away(place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    (place / "link").symlink_to("a/b")
    (place / "a" / "file").write_text("")
    assert place / "a" / "file" in list(steps(place / "link" / ".." / "file"))


def test_a_loop_and_what_is_not_there_are_errors_of_the_system(place: Path) -> None:
    (place / "loop").symlink_to("loop")
    for path in (place / "loop" / "file", place / "none"):
        with pytest.raises(OSError, match=r"loop|none"):
            objection(path)


def test_a_path_from_here_is_one_from_the_root(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (place / "store").chmod(0o777)
    assert objection(Path("store/file")) == f"{place / 'store'} may be written by every user"


def test_what_was_found_sound_is_not_looked_at_again(place: Path) -> None:
    sound: set[Path] = set()
    assert objection(place / "store" / "file", sound) == ""
    (place / "store").chmod(0o777)
    assert objection(place / "store" / "file", sound) == ""
    assert objection(place / "store" / "file") != ""


def test_nor_is_the_way_to_it_but_what_else_lies_there_is(place: Path) -> None:
    (place / "store" / "another").write_text("")
    (place / "store" / "open").write_text("")
    (place / "store" / "open").chmod(0o666)
    (place / "way").symlink_to("store")
    sound: set[Path] = set()
    assert objection(place / "way" / "file", sound) == ""
    (place / "store").chmod(0o777)
    assert objection(place / "way" / "another", sound) == ""
    assert objection(place / "way" / "open", sound) == f"{place / 'way' / 'open'} may be written by every user"


@pytest.mark.parametrize("name", ["file", "."])
def test_a_link_is_no_sound_way_where_what_it_leads_to_is_none(place: Path, name: str) -> None:
    (place / "store").chmod(0o777)
    (place / "way").symlink_to("store")
    (place / "direct").symlink_to("store/file")
    sound: set[Path] = set()
    for path in (place / "way" / name, place / "direct", place / "way" / "file", place / "way"):
        assert objection(path, sound) == f"{place / 'store'} may be written by every user"


def test_a_path_that_someone_vouches_for_is_taken_as_it_is_with_what_is_below(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "store").chmod(0o777)
    (place / "store" / "file").chmod(0o666)
    (place / "link").symlink_to("store")
    monkeypatch.setenv("AOTPACK_TRUST_PATH", f"/nowhere::{place / 'link'}")
    assert objection(place / "store" / "file") == ""
    monkeypatch.setenv("AOTPACK_TRUST_PATH", str(place / "store" / "file"))
    assert objection(place / "store" / "file") == f"{place / 'store'} may be written by every user"


@needs_root
def test_what_is_above_our_own_code_is_taken_as_it_is_and_so_is_its_owner(place: Path) -> None:
    copied = place / "site"
    shutil.copytree(ROOT / "aotpack", copied / "aotpack", ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "store").mkdir()
    for path in (copied, *copied.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    copied.chmod(0o777)
    script = (
        f"import sys; sys.path.insert(0, {str(copied)!r})\n"
        "from pathlib import Path; from aotpack.writers import objection\n"
        f"print([objection(Path(p)) for p in ({str(copied / 'store')!r}, {str(place / 'store')!r})])"
    )
    os.chown(place / "store", STRANGER + 1, 0)
    done = subprocess.run([sys.executable, "-c", script], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(["", f"{place / 'store'} belongs to user {STRANGER + 1}, who may change it"])


ON_A_MOUNT = """
set -e
mount --bind "$1" "$1"
{remount}
exec "$2" -c "{code}" "$1"
"""
CODE = (
    "import sys; from pathlib import Path; from aotpack.writers import objection; print(objection(Path(sys.argv[1])))"
)


@needs_root
@pytest.mark.parametrize(
    ("remount", "expected"),
    [("true", "may be written by every user"), ('mount -o remount,bind,ro "$1"', "")],
    ids=["writable", "read-only"],
)
def test_a_volume_for_all_is_sound_where_it_is_mounted_read_only(place: Path, remount: str, expected: str) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs to mount, which this container may not")
    (place / "store").chmod(0o777)  # as kubelet makes an emptyDir
    script = ON_A_MOUNT.format(remount=remount, code=CODE)
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(place / "store"), sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().removeprefix(f"{place / 'store'} ") == expected
