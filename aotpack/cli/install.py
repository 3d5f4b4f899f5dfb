"""Commands on what is installed in a cache directory."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aotpack.cli.options import (
    archs_option,
    cache_option,
    flatten,
    json_option,
    signature_option,
    terminated,
    trusting,
)
from aotpack.errors import UsageError
from aotpack.targets import Target

if TYPE_CHECKING:
    from aotpack.engines import Engine


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@cache_option
@archs_option("Only these architectures of the bundle.")
@click.option(
    "--engine",
    "spec",
    metavar="ENGINE",
    help="The engine that will serve, whose files the kernels are compared with: a directory, a wheel, or a release. "
    "Default: the one that is installed in this environment, if any.",
)
@click.option(
    "--other-ptxas",
    metavar="REASON",
    help="Install although the ptxas here is not the one that compiled; the reason is kept in the receipt.",
)
@click.option(
    "--libcuda-dir",
    "libcuda",
    multiple=True,
    metavar="DIR",
    help="Where the driver's libcuda.so.1 will be, as ldconfig -p names it; several directories joined by colons; "
    "repeatable for several machines. Default: TRITON_LIBCUDA_PATH, else where it is here, else the usual places.",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="The GPU that will serve, named as its driver does ('NVIDIA H200'), for results of autotuned kernels. "
    "Default: this machine's GPU, else the only one that the bundle has results for.",
)
@click.option(
    "--packed",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Put BUNDLE into DIR as it is, instead of laying its kernels into the cache: processes serve from it where "
    "AOTPACK_BUNDLE_PATH names DIR. Needs no Triton, and no longer than to copy a file.",
)
@trusting
@signature_option
def install(
    bundle: Path,
    cache_dir: Path | None,
    archs: Sequence[tuple[Target, ...]],
    spec: str | None,
    other_ptxas: str | None,
    libcuda: tuple[str, ...],
    devices: tuple[str, ...],
    packed: Path | None,
    required: bool,  # noqa: FBT001  # a click flag
    trusted: tuple[Path, ...],
    signature: Path | None,
) -> None:
    """Lay the kernels of BUNDLE into the Triton cache.

    Needs the Triton that will serve, and no GPU, no network, no compiler. Every digest is checked before anything
    appears there; installing twice changes nothing. The engine's files are read, never imported: a kernel that stands
    in other lines gets the key that Triton will ask for, and one whose source differs is refused by name while the
    others are installed; the exit code is then 1. So it is for native helpers that this machine cannot use.
    Where a signature is demanded, by an option or by a policy, the bundle's is checked before all else, and it goes
    along into the cache for the processes that serve.

    With --packed the file is copied, every byte held against the digests in its manifest, and nothing is unpacked. A
    process that has AOTPACK_BUNDLE_PATH=DIR takes from it what fits its Triton, its engine and its GPUs. To take it
    out again, remove the file.

    \b
    Examples:
      aotpack install bundle.tar.zst
      aotpack install bundle.tar.zst --cache-dir /opt/triton-cache --arch sm90
      aotpack install bundle.tar.zst --require-signature
      aotpack install bundle.tar.zst --trusted-key release-2026.pub --trusted-key release-2027.pub
      aotpack install bundle.tar.zst --engine /opt/vllm/lib/python3.12/site-packages
      aotpack install bundle.tar.zst --packed /opt/aotpack
    """
    from aotpack.policy import demands_here

    signal.signal(signal.SIGTERM, terminated)
    demands = demands_here(required=required, trusted=trusted)
    if packed is not None:
        from aotpack.packed import keep_packed
        from aotpack.report.summary import show_kept

        if any([cache_dir, spec, other_ptxas, archs, libcuda, devices]):
            raise UsageError(
                "--packed keeps a bundle as it is, and the process that serves chooses what fits it; leave out "
                "--cache-dir, --arch, --engine, --other-ptxas, --libcuda-dir and --device"
            )
        show_kept(keep_packed(bundle, packed, demands=demands, signature=signature))
        return

    from aotpack.cachedirectory import effective_directory
    from aotpack.report.summary import show_installed
    from aotpack.stamps import ask, find_stamp

    asked = ask(
        bundle,
        effective_directory(cache_dir),
        demands=demands,
        signature=signature,
        targets=flatten(archs),
        engine=spec,
        other_ptxas=other_ptxas,
        libcuda=libcuda,
        devices=devices,
    )
    summary = find_stamp(asked)
    if summary is None:
        from aotpack.engines import find_engine, installed_engine
        from aotpack.install import install_as_asked
        from aotpack.report.words import Words

        def engine(name: str) -> "Engine | None":
            return find_engine(spec, Words(quiet=False).say) if spec else installed_engine(name)

        summary = install_as_asked(asked, engine, demands, signature)
    show_installed(summary)
    sys.exit(1 if summary.refused else 0)


@click.command()
@click.argument("bundle")
@cache_option
def uninstall(bundle: str, cache_dir: Path | None) -> None:
    """Take out what an install wrote, and nothing else.

    BUNDLE is the file's name, or the start of the bundle's digest. Files that another installed bundle shares
    stay, and so do files that are no longer what was installed; those are named, and the exit code is 1.

    \b
    Examples:
      aotpack uninstall 3f9c2a71d004
      aotpack uninstall bundle.tar.zst --cache-dir /opt/triton-cache
    """
    from aotpack.cachedirectory import effective_directory
    from aotpack.install import uninstall as remove
    from aotpack.receipts import find_receipt
    from aotpack.report.install import show_removed

    removed = remove(find_receipt(effective_directory(cache_dir), bundle))
    show_removed(removed)
    sys.exit(1 if removed.findings else 0)


@click.command()
@click.argument("bundle", required=False)
@cache_option
@click.option("--fix", is_flag=True, help="Make what is broken in the cache directory whole, or take it out.")
@click.option(
    "--bundle",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --fix: where to take from what is broken. Default: where the bundle was when it was installed.",
)
@trusting
@signature_option
@json_option
def verify(
    bundle: str | None,
    cache_dir: Path | None,
    fix: bool,  # noqa: FBT001  # a click flag
    source: Path | None,
    required: bool,  # noqa: FBT001  # a click flag
    trusted: tuple[Path, ...],
    signature: Path | None,
    as_json: bool,  # noqa: FBT001  # a click flag
) -> None:
    """Check a bundle file, or what was installed.

    Given a BUNDLE file, every digest in it, its metadata, and the architecture of its machine code. Otherwise what
    the receipts of the cache directory say was installed; BUNDLE, a file's name or the start of a digest, limits it
    to one. Needs neither torch nor Triton. The exit code is 1 where anything is wrong, and 4 to 8 where it is that a
    signature which is demanded, by an option or by a policy, is not there or does not hold.

    --fix lays anew what is broken, and writes the group files of a cache directory that was moved. What it cannot
    restore, since the bundle is not at hand, it takes out, so that Triton compiles it instead of failing on it.

    \b
    Examples:
      aotpack verify bundle.tar.zst
      aotpack verify bundle.tar.zst --trusted-key release-2027.pub
      aotpack verify
      aotpack verify --cache-dir /opt/triton-cache --fix
      aotpack verify --fix --bundle bundle.tar.zst
    """
    from aotpack.bundle import open_bundle
    from aotpack.cachedirectory import effective_directory
    from aotpack.heal import heal
    from aotpack.policy import demands_here
    from aotpack.report.install import show_checked, show_healed
    from aotpack.verify import verify_bundle, verify_cache

    signal.signal(signal.SIGTERM, terminated)
    if source is not None and not fix:
        raise UsageError("--bundle says where --fix takes from what is broken; add --fix")
    is_file = bundle is not None and cache_dir is None and not fix and Path(bundle).is_file()
    if signature is not None and not is_file:
        raise UsageError("--signature goes with a bundle's file; what was installed has its signature beside it")
    demands = demands_here(required=required, trusted=trusted)
    if bundle is not None and is_file:
        checked = verify_bundle(Path(bundle), demands=demands, signature=signature)
        show_checked(checked, as_json=as_json)
    elif fix:
        cache = effective_directory(cache_dir)
        healed = heal(cache, bundle=open_bundle(source) if source else None, wanted=bundle, demands=demands)
        checked = healed.after
        show_healed(healed, as_json=as_json)
    else:
        checked = verify_cache(effective_directory(cache_dir), bundle, demands=demands)
        show_checked(checked, as_json=as_json)
    sys.exit(checked.exit_code)
