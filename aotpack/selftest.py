"""Whether the kernels in this package are whole: their number against the manifest, and every digest.

aotpack puts this file into each wheel that it makes, as ``__main__``, so it needs the standard library alone.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

CARRIES = "carries.json"
"""The file beside a wheel's manifest that says which of its artifacts the wheel carries: those of ``targets``
(``cuda:90``), and the native helpers whose ``suffix`` is ``helpers``, none where that is null. ``bundle`` is the
digest of the manifest."""


def check_store(store: Path) -> tuple[str, list[str]]:
    """What a wheel's store carries, and what is wrong with it, a line each.

    Raises:
        OSError: a file cannot be read.
        LookupError, TypeError, ValueError: a document is damaged.
    """
    carries: Any = json.loads((store / CARRIES).read_bytes())
    data = (store / "manifest.json").read_bytes()
    if _digest(data) != carries["bundle"]:
        raise ValueError(f"manifest.json: altered: expected {carries['bundle']}, found {_digest(data)}")
    manifest = json.loads(data)
    entries = [entry for entry in manifest["entries"] if entry["key"]["target"] in carries["targets"]]
    helpers = [helper for helper in manifest["helpers"] if helper["suffix"] == carries["helpers"]]
    listed = [named for entry in entries for named in entry["artifacts"].items()]
    listed += [("so", helper["artifact"]) for helper in helpers]
    results = [one for one in manifest["results"] if one["result"]["tuning"]["target"] in carries["targets"]]
    listed += [("autotune.json", result["artifact"]) for result in results]
    expected = {f"{artifact['digest'].partition(':')[2]}.{kind}": artifact["digest"] for kind, artifact in listed}
    found = {path.name for path in (store / "blobs").iterdir()}
    wrong = [f"blobs/{name}: missing" for name in sorted(expected.keys() - found)]
    wrong += [f"blobs/{name}: not among what the wheel carries" for name in sorted(found - expected.keys())]
    for name in sorted(expected.keys() & found):
        digest = _digest((store / "blobs" / name).read_bytes())
        if digest != expected[name]:
            wrong.append(f"blobs/{name}: altered: its content has the digest {digest}")
    held = f"{len(entries)} entries for {', '.join(carries['targets'])}, {len(helpers)} native helpers"
    return f"{held}, in {len(expected)} files", wrong


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def main() -> int:
    """Say it of the package that this file lies in; 1 where anything is wrong."""
    package = Path(__file__).resolve().parent
    try:
        held, wrong = check_store(package / "store")
    except (OSError, LookupError, TypeError, ValueError) as error:
        held, wrong = "", [str(error)]
    for line in wrong:
        print(f"{package.name}: {line}", file=sys.stderr)
    if not wrong:
        print(f"{package.name}: {held}: all is well")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
