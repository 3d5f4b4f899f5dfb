"""Commands that bring bundles to registries, and from there."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aotpack.cli.options import json_option, terminated
from aotpack.errors import UsageError

if TYPE_CHECKING:
    from aotpack.shipping import Remote

_F = TypeVar("_F", bound=Callable[..., Any])


class Digest(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A bundle's digest."""

    name = "digest"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The digest, checked."""
        from aotpack.digests import is_digest

        if not is_digest(value):
            self.fail(f"{value!r} is not sha256:<64 hex>, as aotpack inspect shows it", param, ctx)
        return str(value)


_SHARED = (
    click.option(
        "--oci-layout",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="An OCI image layout in place of a registry; REF is then the image's name in it, and may be left out.",
    ),
    click.option("--plain-http", is_flag=True, help="Speak HTTP, to a registry on this machine."),
    click.option(
        "--ca-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Certificates to trust in place of the system's, in PEM.",
    ),
    json_option,
)


def _remote_options(command: _F) -> _F:
    for option in reversed(_SHARED):
        command = option(command)
    return command


def _remote(
    reference: str | None, directory: Path | None, *, plain_http: bool, ca_file: Path | None
) -> "AbstractContextManager[Remote]":
    """Where the options say that the image is."""
    from aotpack.references import Reference
    from aotpack.shipping import layout, registry

    if directory is not None:
        if plain_http or ca_file is not None:
            raise UsageError("--oci-layout speaks with no registry; leave out --plain-http and --ca-file")
        return nullcontext(layout(directory, reference))
    if reference is None:
        raise UsageError("name the image, as registry.example/team/kernels:tag, or a directory with --oci-layout")
    return registry(Reference.parse(reference), plain_http=plain_http, ca_file=ca_file)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("reference", metavar="[REF]", required=False)
@_remote_options
def push(
    bundle: Path,
    reference: str | None,
    directory: Path | None,
    plain_http: bool,  # noqa: FBT001  # a click flag
    ca_file: Path | None,
    as_json: bool,  # noqa: FBT001  # a click flag
) -> None:
    """Push BUNDLE to a registry, as the image REF.

    The image is the bundle, byte for byte, so aotpack pull gives it back; mounted, as an image volume in Kubernetes,
    it is a store that AOTPACK_BUNDLE_PATH serves in place. A signature that lies beside the bundle goes with it. The
    tag is set once everything is there. The same bundle makes the same image. Credentials are those of docker login
    and podman login. Prints the image's name with its digest.

    \b
    Examples:
      aotpack push bundle.tar.zst registry.example/team/kernels:vllm-0.33.0-sm90
      aotpack push bundle.tar.zst localhost:5000/kernels:1 --plain-http
      aotpack push bundle.tar.zst vllm-0.33.0 --oci-layout layout/
    """
    from aotpack.bundle import open_bundle
    from aotpack.report.registry import show_pushed
    from aotpack.shipping import push_bundle

    signal.signal(signal.SIGTERM, terminated)
    with _remote(reference, directory, plain_http=plain_http, ca_file=ca_file) as remote:
        show_pushed(push_bundle(open_bundle(bundle), remote), as_json=as_json)


@click.command()
@click.argument("reference", metavar="[REF]", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The directory that gets the bundle. Default: here.",
)
@click.option(
    "--expect-digest",
    "expected",
    type=Digest(),
    metavar="DIGEST",
    help="Refuse any bundle but this one, by the digest that aotpack build and inspect show.",
)
@_remote_options
def pull(
    reference: str | None,
    output: Path,
    expected: str | None,
    directory: Path | None,
    plain_http: bool,  # noqa: FBT001  # a click flag
    ca_file: Path | None,
    as_json: bool,  # noqa: FBT001  # a click flag
) -> None:
    """Pull a bundle from a registry: the image REF, by its tag or by its digest.

    The file appears once its bytes have the digest that the image says and aotpack has read it; until then nothing
    does. By digest, the image is the one that was pushed, whoever runs the registry. Prints the bundle's path, and
    the image's name with its digest on stderr.

    \b
    Examples:
      aotpack pull registry.example/team/kernels:vllm-0.33.0-sm90 -o bundles/
      aotpack pull registry.example/team/kernels@sha256:<64 hex>
      aotpack pull vllm-0.33.0 --oci-layout layout/
    """
    from aotpack.report.registry import show_pulled
    from aotpack.shipping import pull_bundle

    signal.signal(signal.SIGTERM, terminated)
    with _remote(reference, directory, plain_http=plain_http, ca_file=ca_file) as remote:
        show_pulled(pull_bundle(remote, output, expected=expected), as_json=as_json)
