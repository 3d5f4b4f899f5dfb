"""Mounts: which file system a path lies on, out of tables as Linux writes them."""

from pathlib import Path

import pytest

from aotpack.mounts import mount_of, read_table

TABLE = """\
overlay / overlay rw,relatime,lowerdir=/l 0 0
tmpfs /tmp tmpfs rw,nosuid,nodev,noexec,size=102400k 0 0
server:/export /data nfs4 rw,vers=4.2 0 0
/dev/sda1 /data/local ext4 ro,relatime 0 0
server:/b /with\\040space nfs rw 0 0
/dev/sdb1 /twice ext4 rw 0 0
tmpfs /twice tmpfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "point", "kind"),
    [
        ("/home/user/.triton", "/", "overlay"),
        ("/tmp", "/tmp", "tmpfs"),
        ("/tmpfoo", "/", "overlay"),
        ("/data/cache", "/data", "nfs4"),
        ("/data/local/cache", "/data/local", "ext4"),
        ("/with space/x", "/with space", "nfs"),
        ("/twice/x", "/twice", "tmpfs"),
    ],
)
def test_a_path_lies_on_the_deepest_and_latest_mount_above_it(path: str, point: str, kind: str) -> None:
    mount = mount_of(Path(path), TABLE)
    assert mount is not None
    assert (mount.point, mount.kind) == (point, kind)


def test_the_options_are_those_of_the_mount() -> None:
    mount = mount_of(Path("/tmp/cache"), TABLE)
    assert mount is not None
    assert {"rw", "noexec"} <= set(mount.options)


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        *(
            (kind, True)
            for kind in ("nfs", "nfs4", "lustre", "gpfs", "ceph", "cifs", "fuse.sshfs", "fuse.juicefs", "fuse")
        ),
        *((kind, False) for kind in ("ext4", "xfs", "overlay", "tmpfs", "btrfs", "fuse.fuse-overlayfs", "fuseblk")),
    ],
)
def test_network_file_systems_are_known_by_their_type(kind: str, network: bool) -> None:
    mount = mount_of(Path("/x"), f"any / {kind} rw 0 0\n")
    assert mount is not None
    assert mount.network == network


def test_without_a_table_nothing_is_said() -> None:
    assert mount_of(Path("/x"), "") is None


def test_this_machine_s_own_table_knows_the_root() -> None:
    assert mount_of(Path("/"), read_table()) is not None
