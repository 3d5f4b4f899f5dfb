"""Credentials: found where docker and podman keep them, and never told."""

import base64
import json
from pathlib import Path

import pytest

from aotpack.credentials import find_credentials
from aotpack.errors import RegistryError

HOST = "registry.example"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def auth(user: str, secret: str = "secret") -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}


def found(host: str = HOST, repository: str = "team/kernels") -> tuple[str, str] | None:
    credentials = find_credentials(host, repository)
    return (credentials.user, credentials.secret) if credentials else None


def test_the_first_file_that_knows_the_registry_decides(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found() is None
    write(home / ".docker/config.json", {"auths": {HOST: auth("docker")}})
    assert found() == ("docker", "secret")
    write(home / ".config/containers/auth.json", {"auths": {"other.example": auth("other")}})
    assert found() == ("docker", "secret")
    write(home / ".config/containers/auth.json", {"auths": {HOST: auth("podman", "a:b")}})
    assert found() == ("podman", "a:b")
    write(home / "run/containers/auth.json", {"auths": {HOST: auth("runtime")}})
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    assert found() == ("runtime", "secret")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(write(home / "mine.json", {"auths": {HOST: auth("mine")}})))
    assert found() == ("mine", "secret")


def test_the_closest_name_decides(home: Path) -> None:
    names = {HOST: auth("all"), f"{HOST}/team": auth("team"), f"{HOST}/team/kernels": auth("kernels")}
    write(home / ".docker/config.json", {"auths": names})
    assert found() == ("kernels", "secret")
    assert found(repository="team/other") == ("team", "secret")
    assert found(repository="other") == ("all", "secret")
    assert found("other.example") is None


def test_docker_has_other_names_for_its_own_registry(home: Path) -> None:
    names = {"https://index.docker.io/v1/": auth("hub"), f"https://{HOST}/v1/": auth("old")}
    write(home / ".docker/config.json", {"auths": names})
    assert found("docker.io") == ("hub", "secret")
    assert found() == ("old", "secret")


@pytest.mark.parametrize(
    "document",
    [{"credsStore": "mine", "auths": {HOST: {}}}, {"credsStore": "mine"}, {"credHelpers": {HOST: "mine"}}],
)
def test_a_helper_is_asked_as_docker_asks_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, document: dict[str, object]
) -> None:
    write(home / ".docker/config.json", document)
    with pytest.raises(RegistryError, match=r"docker-credential-mine: No such file or directory; install it"):
        find_credentials(HOST, "kernels")
    helper = home / "docker-credential-mine"
    monkeypatch.setenv("PATH", str(home), prepend=":")

    def answer(script: str) -> None:
        helper.write_text(f"#!/bin/sh\n{script}\n")
        helper.chmod(0o755)

    answer('[ "$1" = get ] && read host; echo "{\\"Username\\":\\"$host\\",\\"Secret\\":\\"secret\\"}"')
    assert found() == (HOST, "secret")
    answer("echo credentials not found in native keychain; exit 1")
    assert found() is None
    answer("echo secret; exit 1")
    with pytest.raises(RegistryError, match=r"docker-credential-mine failed with exit code 1; log in again$"):
        find_credentials(HOST, "kernels")
    answer("echo secret")
    with pytest.raises(RegistryError, match=r"expected a user and a secret in JSON, found something else$"):
        find_credentials(HOST, "kernels")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected JSON"),
        (json.dumps({"auths": {HOST: {"auth": "c2VjcmV0"}}}), "expected a user and a password joined by a colon"),
        (json.dumps({"auths": {HOST: {"auth": "secret!"}}}), "expected a user and a password joined by a colon"),
        (json.dumps({"auths": {HOST: {"identitytoken": "secret"}}}), "holds an identity token"),
        (json.dumps({"credsStore": "../secret"}), "names no credential helper"),
        (json.dumps({"auths": []}), "auths: expected an object"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_its_secret_is_not(home: Path, text: str, said: str) -> None:
    path = home / ".docker/config.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(RegistryError, match=said) as caught:
        find_credentials(HOST, "kernels")
    assert str(path) in str(caught.value)
    assert "secret!" not in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)


def test_a_secret_does_not_show_in_a_representation(home: Path) -> None:
    write(home / ".docker/config.json", {"auths": {HOST: auth("user", "hidden")}})
    assert "hidden" not in repr(find_credentials(HOST, "kernels"))
