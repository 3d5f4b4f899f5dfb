"""What aotpack raises: one base class, and a subclass only where a caller would act differently.

A message has four parts in one line: what, where, wanted and found, what now. Bad input from outside ends
in one of these; anything else that escapes is a bug of ours.
"""

from typing import ClassVar


def printable(text: str) -> str:
    r"""Text that can be shown in one line: what would break the line, or steer a terminal, is escaped.

    >>> print(printable("a name\nwith a line of its own"))
    a name\nwith a line of its own
    """
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


class AotpackError(Exception):
    """Base of every error that aotpack raises on purpose.

    Attributes:
        exit_code: what the command line, which shows it, exits with; the README has the table.
    """

    exit_code: ClassVar[int] = 3

    def __str__(self) -> str:
        """The message in one line, whatever names from outside are in it."""
        return printable(super().__str__())


class UsageError(AotpackError):
    """The caller asked for something that cannot be meant: an unknown model, an arch that no ptxas knows."""

    exit_code = 2


class DocumentError(AotpackError):
    """A JSON document lacks a field or has one of the wrong kind; the message names the place in it."""


class ModelError(AotpackError):
    """A model's configuration cannot be read, or does not fit the deployment asked for."""


class EngineError(AotpackError):
    """An engine cannot be found or unpacked, or its kernels are not the ones that a family expects."""


class TracingError(AotpackError):
    """A family could not drive the engine's wrappers: a stub was used, a name or a package is missing."""


class ToolchainError(AotpackError):
    """Triton is not installed here, or cannot say what it hashes into its cache keys."""


class ClusterError(AotpackError):
    """A cluster cannot be reached, or has no worker that may compile."""


class CompileError(AotpackError):
    """Triton refused to compile a key, or a worker died on it; the rest of a build goes on."""


class BundleError(AotpackError):
    """A bundle is not what aotpack wrote: truncated, altered, or no bundle at all."""


class UnsupportedFormatError(BundleError):
    """A bundle is of a format that this aotpack does not read: another bundle, or another aotpack, will do."""


class IncompatibleError(AotpackError):
    """A bundle is whole, but its kernels would not be found, or must not be used, on this machine."""


class CacheError(AotpackError):
    """The Triton cache directory cannot be read or written as needed."""


class RegistryError(AotpackError):
    """A registry cannot be reached, refuses what is asked, or breaks off; what was asked may be tried again."""


class OutputError(AotpackError):
    """What was to be written cannot be written where it was asked for; nothing half written is left there."""


class TrustError(AotpackError):
    """What is trusted here cannot be told: a key or a policy cannot be read, so nothing that needs it goes on."""


class SignatureError(AotpackError):
    """A bundle does not satisfy what is demanded of signatures; each way not to has a class.

    Attributes:
        finding: the code of the finding that a check makes of it.
    """

    finding: ClassVar[str]


class UnsignedError(SignatureError):
    """There is no signature."""

    exit_code = 4
    finding = "S101"


class UntrustedError(SignatureError):
    """There are signatures, and none is by a key that is trusted."""

    exit_code = 5
    finding = "S102"


class AlteredError(SignatureError):
    """A signature is damaged, or is one of something else."""

    exit_code = 6
    finding = "S103"


class ExpiredPolicyError(SignatureError):
    """The policy that says what is trusted holds no more."""

    exit_code = 7
    finding = "S104"


class ExpiredSignatureError(SignatureError):
    """What trusted keys have signed holds no more."""

    exit_code = 8
    finding = "S105"
