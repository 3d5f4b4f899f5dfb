"""Writers: who may change what lies at a path, since what a process loads from there runs as that process.

A path is as safe as the least safe step on the way to it: whoever may write in a directory may put another file or
directory under any name in it, and whoever owns one may let himself write. So each directory, file and symbolic link
that the system passes is looked at. A step is sound where it belongs to root or to this process's user, and where
nobody else may write in it. That leaves the machines that there are:

- Sticky directories such as ``/tmp`` are sound: nobody there can touch what belongs to another.
- A group may write where it is root's (OpenShift gives every container that group, and images let it write for that),
  and where this process is in it and nobody else is known to be: the private group of a user, or one without an entry
  in the group file, as Kubernetes' ``fsGroup`` is. Access lists count as the group's bits, where Linux shows them.
- On a mount that is read-only in this process nobody writes through it: an ``emptyDir``, which every user may write
  in, is sound where it is mounted with ``readOnly: true``.
- What is above our own code is taken as it is, and so is an owner of it: whoever may write there is this process.
- What ``AOTPACK_TRUST_PATH`` lists, directories joined by colons, is taken as it is with all below.

After such a path was found sound, only root, this user, or whoever could alter our own code can change what lies
there; nobody else can swap a file between the check of its digest and the moment when Triton reads it.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

TRUST_PATH = "AOTPACK_TRUST_PATH"

_OUR_CODE = Path(__file__).resolve().parent
_MOST_LINKS = 40
"""That Linux follows (path_resolution(7))."""


def objection(path: Path, sound: set[Path] | None = None) -> str:
    """Why others may change what lies at ``path``, in a few words; "" where they may not.

    Args:
        path: what is to be read; it need not be absolute.
        sound: paths that are not looked at again, nor what is on the way to them; those found sound are added.

    Raises:
        OSError: a step on the way is not there, or may not be looked at.
    """
    return _objection(path if path.is_absolute() else Path.cwd() / path, set() if sound is None else sound)


def _objection(path: Path, sound: set[Path]) -> str:
    if path in sound:
        return ""
    if path.parent != path and (found := _objection(path.parent, sound)):
        return found
    seen = path.lstat()
    if path.name == ".." or stat.S_ISLNK(seen.st_mode):
        found = next(filter(None, map(objection_to, steps(path))), "")
    else:
        found = _objection_to(path, seen)
    if not found:
        sound.add(path)
    return found


def steps(path: Path) -> Iterator[Path]:
    """Every directory and link that the system passes on its way to ``path``, from the root on, and what lies there.

    Raises:
        OSError: one is not there, or there are too many links.
    """
    at = Path("/")
    ahead = [*reversed((Path.cwd() / path).parts[1:])]
    links = 0
    yield at
    while ahead:
        part = ahead.pop()
        if part == "..":
            at = at.parent
            continue
        step = at / part
        yield step
        if not step.is_symlink():
            at = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        at = Path("/") if target.is_absolute() else at
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def objection_to(step: Path) -> str:
    """Why others may change one directory, file or link, whatever is above it; "" where they may not.

    Raises:
        OSError: it is not there, or may not be looked at.
    """
    return _objection_to(step, step.lstat())


def _objection_to(step: Path, seen: os.stat_result) -> str:
    found = _by_owner(seen) or _by_mode(seen)
    return f"{step} {found}" if found and not _is_taken_as_it_is(step) else ""


def _by_owner(seen: os.stat_result) -> str:
    if seen.st_uid in {0, os.geteuid()} or seen.st_uid == _owner_of_our_code():
        return ""
    return f"belongs to {_name_of_user(seen.st_uid)}, who may change it"


def _by_mode(seen: os.stat_result) -> str:
    if stat.S_ISLNK(seen.st_mode) or (stat.S_ISDIR(seen.st_mode) and seen.st_mode & stat.S_ISVTX):
        return ""
    if seen.st_mode & stat.S_IWOTH:
        return "may be written by every user"
    if seen.st_mode & stat.S_IWGRP and not _is_private(seen.st_gid):
        return f"may be written by {_name_of_group(seen.st_gid)}"
    return ""


def _is_private(group: int) -> bool:
    """Whether nobody but root and this user is known to be in a group."""
    if group == 0:
        return True
    if group != os.getegid() and group not in os.getgroups():
        return False
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return True
    me = _entry_of(os.geteuid())
    return me is not None and entry.gr_name == me.pw_name and set(entry.gr_mem) <= {me.pw_name}


def _is_taken_as_it_is(step: Path) -> bool:
    if _OUR_CODE.is_relative_to(step):
        return True
    place = step.parent if step.is_symlink() else step
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return True
    trusted = [Path(os.path.realpath(given)) for given in os.environ.get(TRUST_PATH, "").split(":") if given]
    return any(step.is_relative_to(directory) for directory in trusted)


@lru_cache(maxsize=1)
def _owner_of_our_code() -> int | None:
    with suppress(OSError):  # in an archive
        return _OUR_CODE.stat().st_uid
    return None


def _entry_of(user: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(user)
    except KeyError:
        return None


def _name_of_user(user: int) -> str:
    entry = _entry_of(user)
    return f"user {user}" + (f" ({entry.pw_name})" if entry else "")


def _name_of_group(group: int) -> str:
    try:
        return f"group {group} ({grp.getgrgid(group).gr_name})"
    except KeyError:
        return f"group {group}"
