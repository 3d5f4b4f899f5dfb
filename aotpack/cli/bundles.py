"""Commands that take a bundle, and nothing of the machine that they run on."""

import signal
from collections.abc import Sequence
from pathlib import Path

import click

from aotpack.cli.options import Minors, Size, archs_option, flatten, signature_option, terminated
from aotpack.targets import Target


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole manifest as JSON.")
def inspect(bundle: Path, as_json: bool) -> None:  # noqa: FBT001  # a click flag
    """Show what BUNDLE holds, reading its manifest alone.

    Needs neither torch nor Triton.

    \b
    Examples:
      aotpack inspect aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst
      aotpack inspect --json bundle.tar.zst | jq .manifest.toolchain
    """
    from aotpack.bundle import open_bundle
    from aotpack.report.bundles import show_bundle

    show_bundle(open_bundle(bundle), as_json=as_json)


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The differences as JSON.")
@click.pass_context
def diff(ctx: click.Context, a: Path, b: Path, as_json: bool) -> None:  # noqa: FBT001  # a click flag
    """Show in what the bundles A and B differ, reading their manifests alone.

    Engine, toolchain, deployments, helpers, and each key: had by one side alone, or by both with other options, other
    machine code or other metadata. A directory that a bundle was unpacked to, as a wheel carries one, will do as well.
    Exits with 1 where they differ. Needs neither torch nor Triton.

    \b
    Examples:
      aotpack diff yesterday.tar.zst today.tar.zst
      aotpack diff --json yesterday.tar.zst today.tar.zst | jq .only_b
    """
    from aotpack.diff import compare, open_side
    from aotpack.report.bundles import show_diff

    found = compare(open_side(a), open_side(b))
    show_diff(found, as_json=as_json)
    if not found.same:
        ctx.exit(1)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The directory that gets the wheels. Default: here.",
)
@archs_option("Only these architectures of the bundle.")
@click.option(
    "--python",
    "minors",
    type=Minors(),
    metavar="MINORS",
    help="Pythons whose native helpers go in, a comma list such as 3.11,3.12, or none. Default: all of the bundle's.",
)
@click.option(
    "--max-size",
    type=Size(),
    metavar="SIZE",
    help="Write nothing where a wheel would be larger: 100MB, 2GiB. PyPI takes 100MiB unless asked for more.",
)
@signature_option
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and warnings.")
def wheel(
    bundle: Path,
    output: Path,
    archs: Sequence[tuple[Target, ...]],
    minors: tuple[str, ...] | None,
    max_size: int | None,
    signature: Path | None,
    quiet: bool,  # noqa: FBT001  # a click flag
) -> None:
    """Make wheels that carry BUNDLE, for pip to install.

    aotpack.activate() finds and serves them in the process; nothing is laid into a cache. Needs neither torch nor
    Triton. A wheel is named after the engine and the architectures, and numbered after the releases of engine and
    Triton: 0.33.0.post30800 is for 0.33.0 with Triton 3.8.0. Kernels serve every Python; native helpers just theirs,
    so a bundle that has some makes a wheel for each Python. The bundle's signatures go along. Prints the wheels' paths.

    \b
    Examples:
      aotpack wheel bundle.tar.zst
      aotpack wheel bundle.tar.zst --arch sm90 --python none -o dist/ --max-size 100MB
    """
    from aotpack.bundle import open_bundle
    from aotpack.report.bundles import show_wheels
    from aotpack.report.words import Words
    from aotpack.wheel import write_wheels

    signal.signal(signal.SIGTERM, terminated)
    with Words(quiet=quiet) as words:
        wheels = write_wheels(
            open_bundle(bundle),
            output,
            targets=flatten(archs),
            minors=minors,
            max_size=max_size,
            signature=signature,
        )
        show_wheels(wheels, words)
