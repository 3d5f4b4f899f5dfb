"""What tests of shipping have in common: images laid into layouts, and mounted as container runtimes do."""

import gzip
import json
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import zstandard
from click.testing import Result

from aotpack.bundle import Bundle
from aotpack.digests import digest_bytes
from tests.test_cli import one_error, run


def lay(bundle: Bundle, layout: Path, *name: str) -> str:
    done = run("push", bundle.path, *name, "--oci-layout", layout)
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


def refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 3, result.output
    error = one_error(result)
    for part in parts:
        assert part in error
    assert "/.aotpack-" not in error


def layers(layout: Path, digest: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """An image's layers and the tars in them, as a container runtime reads them."""
    blobs = layout / "blobs/sha256"
    manifest = json.loads((blobs / digest.partition(":")[2]).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"].partition(":")[2]).read_bytes())
    assert len(config["rootfs"]["diff_ids"]) == len(manifest["layers"])
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        data = (blobs / layer["digest"].partition(":")[2]).read_bytes()
        assert (digest_bytes(data), len(data)) == (layer["digest"], layer["size"])
        if layer["mediaType"].endswith("+gzip"):
            tar = gzip.decompress(data)
        else:
            tar = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        assert digest_bytes(tar) == diff_id
        yield layer, tar


def mount(layout: Path, digest: str, directory: Path) -> Path:
    """Lay an image's layers over each other, as a container runtime does for an image volume."""
    for _, tar in layers(layout, digest):
        with tarfile.open(fileobj=BytesIO(tar)) as archive:
            for member in archive:
                assert not member.name.startswith("/")
                assert (member.uid, member.gid, member.mtime) == (0, 0, 0)
                archive.extract(member, directory, set_attrs=not member.issym())
    return directory
