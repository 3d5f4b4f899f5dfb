"""Whatever a bundle's manifest is changed to, reading it ends well or says what is wrong."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotpack.build import Built
from aotpack.errors import AotpackError
from aotpack.manifest import read_manifest

odd = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just([]), st.just({}), st.just([[]]))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, the first of each list standing for the rest."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name in value:
            found += places(value[name], (*path, name))
    elif isinstance(value, list) and value:
        found += places(value[0], (*path, 0))
    return found


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_field_may_be_anything(built: Built, data: st.DataObject) -> None:
    text = built.bundle.manifest.to_bytes()
    document = json.loads(text)
    place = data.draw(st.sampled_from(places(document)))
    value = data.draw(odd)
    inner = document
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    changed = (json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n").encode()
    with suppress(AotpackError):
        read_manifest(changed)
