"""Keys, signatures and policies for tests, on disk where those who sign and trust would have them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from aotpack.bundle import Bundle
from aotpack.signatures import Signatures, now, sign
from aotpack.signingkeys import PublicKey, make_key_pair, read_private_key

YESTERDAY = now().replace(microsecond=0) - timedelta(days=1)
IN_A_YEAR = now().replace(microsecond=0) + timedelta(days=365)


@dataclass(frozen=True)
class Pair:
    """A key pair's files."""

    private: Path
    public: Path
    key: PublicKey

    def signed(self, bundle: str, *, before: Signatures | None = None, expires: datetime | None = None) -> Signatures:
        """A bundle's signatures by this key, by the bundle's digest; they may have expired already."""
        return sign(bundle, read_private_key(self.private), before=before, expires=expires)


def make_pair(folder: Path, name: str) -> Pair:
    folder.mkdir(parents=True, exist_ok=True)
    key = make_key_pair(folder / name)
    return Pair(private=folder / name, public=folder / f"{name}.pub", key=key)


def put_beside(bundle: Bundle, signatures: Signatures) -> Path:
    """Where ``aotpack sign`` would have written them."""
    path = bundle.path.with_name(f"{bundle.path.name}.sig")
    path.write_bytes(signatures.to_bytes())
    return path


def write_policy(
    folder: Path, *, keys: Iterable[Path] = (), required: bool = True, expires: str = "", name: str = "policy.toml"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(f'"{key}"' for key in keys)
    lines = ["format = 1", f"require-signature = {str(required).lower()}", f"trusted-keys = [{listed}]"]
    lines += [f"expires = {expires}"] if expires else []
    path = folder / name
    path.write_text("\n".join([*lines, ""]))
    return path
