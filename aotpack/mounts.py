"""Mounts: the file system that a path lies on, as the kernel's own table says (proc_pid_mounts(5))."""

import re
from dataclasses import dataclass
from pathlib import Path

_NETWORK = re.compile(
    r"nfs4?|lustre|gpfs|ceph|cifs|smb3?|smbfs|afs|beegfs|orangefs|pvfs2|glusterfs|wekafs|panfs|gfs2|ocfs2|fuse(\..+)?"
)
_LOCAL_FUSE = ("fuse.fuse-overlayfs", "fuse.lxcfs", "fuseblk", "fusectl")
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of the table.

    Attributes:
        point: the directory that it is mounted on.
        kind: the type of file system: "ext4", "nfs4", "fuse.sshfs".
        options: as mounted: "ro", "noexec".
    """

    point: str
    kind: str
    options: tuple[str, ...]

    @property
    def network(self) -> bool:
        """Whether other machines may share it, and renames and locks go over a network."""
        return self.kind not in _LOCAL_FUSE and _NETWORK.fullmatch(self.kind) is not None


def read_table() -> str:
    """This process's mounts; "" where /proc is not there."""
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def mount_of(path: Path, table: str) -> Mount | None:
    """The mount that a path lies on, or None where the table does not say.

    Args:
        path: absolute and without symbolic links; it need not exist.
        table: what ``read_table`` gives.
    """
    found = None
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:  # noqa: PLR2004  # device, point, kind, options
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[1])
        # Of two mounts on one point the later hides the earlier.
        if path.is_relative_to(point) and (found is None or len(point) >= len(found.point)):
            found = Mount(point=point, kind=fields[2], options=tuple(fields[3].split(",")))
    return found
