"""References: every spelling reads back, and what names nothing in particular is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotpack.errors import UsageError
from aotpack.references import TAG, Reference

HEX = "0123456789abcdef"
hosts = st.sampled_from(["registry.example", "localhost", "localhost:5000", "127.0.0.1:1", "[::1]:5000", "a-b.c:443"])
repositories = st.from_regex(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+){0,2}(/[a-z0-9]+(-[a-z0-9]+)?){0,3}", fullmatch=True)
tags = st.from_regex(TAG, fullmatch=True)
digests = st.text(HEX, min_size=64, max_size=64).map("sha256:{}".format)


@given(hosts, repositories, st.none() | tags, st.none() | digests)
def test_a_reference_reads_back(host: str, repository: str, tag: str | None, digest: str | None) -> None:
    reference = Reference(host=host, repository=repository, tag=tag, digest=digest)
    if tag is None and digest is None:
        with pytest.raises(UsageError, match="names neither a tag nor a digest"):
            Reference.parse(str(reference))
    else:
        assert Reference.parse(str(reference)) == reference


@given(st.text())
def test_any_text_is_a_reference_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert str(Reference.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kernels:1",
        "team/kernels:1",
        "registry.example/",
        "registry.example/Kernels:1",
        "registry.example/../kernels:1",
        "registry.example/a//b:1",
        "registry.example/kernels:",
        "registry.example/kernels:a b",
        "registry.example/kernels@sha256:12",
        "registry.example/kernels@",
        "registry.example/kernels:1?x=y",
        "user@registry.example/kernels:1",
        "https://registry.example/kernels:1",
        "registry.example:port/kernels:1",
        f"registry.example/{'a' * 256}:1",
    ],
)
def test_what_names_nothing_in_particular_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Reference.parse(text)


def test_a_pinned_reference_has_its_digest_alone() -> None:
    digest = f"sha256:{'0' * 64}"
    assert str(Reference.parse("localhost:5000/a/b:1").pinned(digest)) == f"localhost:5000/a/b@{digest}"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.8.8.8", True),
        ("[::1]:5000", True),
        ("10.0.0.1:5000", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("[fe80::1]", False),
    ],
)
def test_only_a_registry_of_this_machine_is_on_it(host: str, *, loopback: bool) -> None:
    assert Reference.parse(f"{host}/kernels:1").loopback == loopback
