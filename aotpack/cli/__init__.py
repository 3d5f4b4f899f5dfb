"""The command line: options in, one library call, report out; nothing else.

Exit codes: 0 done; 1 the work ran and found something, or some keys failed; 2 usage; 3 could not be done; 4 to 8 what
is wrong with a signature that was demanded; 130 interrupted. Each error says its own, see ``aotpack.errors``.
"""

from typing import Any

import click

from aotpack import __version__
from aotpack.cli import build, bundles, doctor, install, registry, trust, tune
from aotpack.errors import AotpackError

EXIT_CODES = """\b
Exit codes:
  0    done
  1    it ran, and found something or lacks some keys
  2    the command was not meant that way
  3    could not be done; one line says what, where, and what now
  4    a bundle is not signed, and that is demanded
  5    a bundle is signed, but by no trusted key
  6    a signature is damaged, or is of something else
  7    the policy that says what is trusted has expired
  8    the trusted signatures have expired
  130  interrupted; nothing half written is left
"""


class _Commands(click.Group):
    """The commands, and the one place where an error becomes text and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from aotpack.report.words import show_error

        try:
            return super().invoke(ctx)
        except AotpackError as error:
            show_error(str(error))
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            show_error("interrupted; nothing half written is left")
            ctx.exit(130)


@click.group(cls=_Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aotpack")
def main() -> None:
    """Take the just-in-time compile out of LLM serving.

    Build a bundle of an engine's Triton kernels on a machine without a GPU, and install it into the Triton cache
    of the container that serves.

    \b
    Examples:
      aotpack build --arch sm90
      aotpack inspect aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst
      aotpack install aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst
    """


for command in (
    build.build,
    build.keys,
    build.coverage,
    tune.tune,
    bundles.inspect,
    bundles.diff,
    bundles.wheel,
    registry.push,
    registry.pull,
    install.install,
    install.uninstall,
    install.verify,
    trust.keygen,
    trust.sign,
    doctor.doctor,
    doctor.explain_miss,
):
    main.add_command(command)
