"""Archives that aotpack would not write: made member by member, for tests of what is refused."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import zstandard


def tar_of(path: Path) -> bytes:
    """The tar inside an archive."""
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return bytes(reader.read())


def members_of(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """An archive's members and their contents."""
    with tarfile.open(fileobj=io.BytesIO(tar_of(path))) as archive:
        return [(member, (archive.extractfile(member) or io.BytesIO()).read()) for member in archive]


def spelled(document: dict[str, Any]) -> bytes:
    """A manifest as the format spells it, whatever it says."""
    rest = {name: value for name, value in document.items() if name != "format"}
    fields = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return f'{{"format":{document["format"]},{fields[1:]}\n'.encode()


def write_members(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """An archive of any members, in one frame."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    path.write_bytes(zstandard.compress(buffer.getvalue()))
    return path


def tree(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Every path below a folder with its mode and content: what a failed install must leave as it was."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else "",
        )
        for path in sorted(folder.rglob("*"))
    }
