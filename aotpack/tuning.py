"""Tuning: which configuration of an autotuned kernel is the fastest on a device, as values and as reviewed text.

Triton's autotuner decides once for each tuning key: the values of some of a launch's arguments, and the dtypes of its
tensors (triton/runtime/autotuner.py, ``Autotuner.run``). A ``Tuning`` is one such decision to take, a ``Result`` what
was measured for it on one device. Triton's own key does not hold the device, so a result says of which it is.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aotpack.digests import canonical_json
from aotpack.documents import Node
from aotpack.keys import read_target
from aotpack.targets import Target

Scalar = bool | int | float | str | None
"""What a tuning key and a configuration hold: values whose text is the same in every process."""

Quantiles = tuple[float, float, float]
"""Milliseconds: the median, the 20th and the 80th percentile, as ``Autotuner._bench`` asks for them."""

_Key = TypeVar("_Key", bound=Hashable)

_MOST = 4096
"""Configurations of one autotuner; the largest of vLLM 0.33.0 has 36."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One configuration of an autotuner, as Triton's ``Config``.

    Attributes:
        arguments: the kernel's arguments that it sets, in its own order, which enters Triton's key.
        num_warps: warps of a block.
        num_stages: stages of software pipelining.
        num_ctas: blocks of a cluster.
        maxnreg: the most registers of a thread; None leaves it to the assembler.
    """

    arguments: tuple[tuple[str, Scalar], ...]
    num_warps: int
    num_stages: int
    num_ctas: int = 1
    maxnreg: int | None = None

    def __str__(self) -> str:
        """``BK=64 BV=32 warps=4 stages=3``, and what else is not as by default."""
        parts = [f"{name}={value}" for name, value in self.arguments]
        parts += [f"warps={self.num_warps}", f"stages={self.num_stages}"]
        parts += [f"ctas={self.num_ctas}"] * (self.num_ctas != 1)
        parts += [f"maxnreg={self.maxnreg}"] * (self.maxnreg is not None)
        return " ".join(parts)

    def to_json(self) -> list[Any]:
        """The configuration as a JSON value: its arguments, then the rest in the order above."""
        arguments = [list(argument) for argument in self.arguments]
        return [arguments, self.num_warps, self.num_stages, self.num_ctas, self.maxnreg]

    @classmethod
    def from_json(cls, node: Node) -> "Configuration":
        """The configuration of a JSON value.

        Raises:
            DocumentError: it is none; the message says where.
        """
        parts = list(node.items())
        if len(parts) != 5:  # noqa: PLR2004
            raise node.error("arguments, warps, stages, blocks of a cluster, and registers")
        arguments, warps, stages, ctas, registers = parts
        return cls(
            arguments=tuple(_read_argument(argument) for argument in arguments.items()),
            num_warps=warps.integer(low=1, high=64),
            num_stages=stages.integer(high=64),
            num_ctas=ctas.integer(low=1, high=64),
            maxnreg=None if registers.value is None else registers.integer(low=1, high=1024),
        )


def _read_argument(node: Node) -> tuple[str, Scalar]:
    parts = list(node.items())
    if len(parts) != 2 or not parts[0].text().isidentifier():  # noqa: PLR2004
        raise node.error("an argument's name and value")
    return parts[0].text(), read_scalar(parts[1])


def read_scalar(node: Node) -> Scalar:
    """A value of a tuning key or a configuration.

    Raises:
        DocumentError: it is none.
    """
    if node.value is None or isinstance(node.value, bool | int | float | str):
        return node.value
    raise node.error("a number, a string, true, false, or null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """One decision that Triton's autotuner takes: what is measured, and remembered by its key.

    Attributes:
        kernel: ``module:qualname``.
        target: what it is compiled for.
        key: Triton's tuning key.
        configurations: the candidates, in Triton's order: what pruning has left for this key.
    """

    kernel: str
    target: Target
    key: tuple[Scalar, ...]
    configurations: tuple[Configuration, ...]

    @property
    def order(self) -> tuple[Target, str, str]:
        """Where it stands among others."""
        return self.target, self.kernel, canonical_json([list(self.key), *self._candidates])

    @property
    def _candidates(self) -> list[Any]:
        return [configuration.to_json() for configuration in self.configurations]

    def to_json(self) -> dict[str, Any]:
        """The tuning as a JSON value; ``from_json`` undoes it."""
        return {
            "kernel": self.kernel,
            "target": str(self.target),
            "key": list(self.key),
            "configurations": self._candidates,
        }

    @classmethod
    def from_json(cls, node: Node) -> "Tuning":
        """The tuning of a JSON value.

        Raises:
            DocumentError: it is none; the message says where.
        """
        node.only("kernel", "target", "key", "configurations")
        tuning = cls(
            kernel=node.field("kernel").line(),
            target=read_target(node.field("target")),
            key=tuple(read_scalar(value) for value in node.field("key").items()),
            configurations=tuple(Configuration.from_json(one) for one in node.field("configurations").items()),
        )
        check_candidates(node.field("configurations"), tuning.configurations)
        return tuning


def check_candidates(node: Node, configurations: Sequence[Configuration]) -> None:
    """Hold configurations against what an autotuner can have.

    Raises:
        DocumentError: they are too few or too many, or one stands twice.
    """
    if not 1 < len(configurations) <= _MOST or len(set(configurations)) != len(configurations):
        raise node.error(f"2 to {_MOST} configurations, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How a result came about.

    Attributes:
        date: of the measurement, ``2026-11-30``.
        aotpack: the release that measured.
        triton: the release whose autotuner measured, and whose compiler made the code.
        torch: the release that it ran with.
        cuda: the newest CUDA that the driver supports, ``13.0``.
        input: what was launched, for people: the deployment, and the run-time quantities.
    """

    date: str
    aotpack: str
    triton: str
    torch: str
    cuda: str
    input: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON value; ``from_json`` undoes it."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, node: Node) -> "Measured":
        """How the result of a JSON value came about.

        Raises:
            DocumentError: a field is missing, unknown, or of the wrong kind; the message says where.
        """
        node.only(*cls.__slots__)
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", node.field("date").text(), re.ASCII) is None:
            raise node.field("date").error("a date such as 2026-11-30")
        return cls(**{name: node.field(name).line() for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured for a tuning on a device.

    Attributes:
        tuning: the tuning.
        device: the product, as the driver spells it: ``NVIDIA H200``.
        times: of each of the tuning's configurations, in their order; None where it cannot be launched there.
        measured: how that came about.
    """

    tuning: Tuning
    device: str
    times: tuple[Quantiles | None, ...]
    measured: Measured

    @property
    def fastest(self) -> Configuration:
        """The configuration that Triton takes: the first of those with the least times."""
        timed = [(times, index) for index, times in enumerate(self.times) if times is not None]
        return self.tuning.configurations[min(timed)[1]]

    @property
    def order(self) -> tuple[tuple[Target, str, str], str]:
        """Where it stands among others."""
        return self.tuning.order, self.device

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON value; ``from_json`` undoes it."""
        return {
            "tuning": self.tuning.to_json(),
            "device": self.device,
            "times": [None if times is None else list(times) for times in self.times],
            "measured": self.measured.to_json(),
        }

    @classmethod
    def from_json(cls, node: Node) -> "Result":
        """The result of a JSON value.

        Raises:
            DocumentError: it is none; the message says where.
        """
        node.only("tuning", "device", "times", "measured")
        tuning = Tuning.from_json(node.field("tuning"))
        times = tuple(read_times(times) for times in node.field("times").items())
        check_times(node.field("times"), tuning.configurations, times)
        return cls(
            tuning=tuning,
            device=node.field("device").line(),
            times=times,
            measured=Measured.from_json(node.field("measured")),
        )


def read_times(node: Node) -> Quantiles | None:
    """The times of a configuration.

    Raises:
        DocumentError: they are none.
    """
    if node.value is None:
        return None
    times = [part.number() for part in node.items()]
    if len(times) != 3 or not all(0 <= time < 1e9 for time in times):  # noqa: PLR2004
        raise node.error("three times in milliseconds, or null")
    return times[0], times[1], times[2]


def check_times(node: Node, configurations: Sequence[Configuration], times: Sequence[Quantiles | None]) -> None:
    """Hold times against the configurations that they are of.

    Raises:
        DocumentError: they are not as many, or nothing was measured.
    """
    if len(times) != len(configurations) or not any(times):
        raise node.error("times for each configuration, and not null for all")


def in_order(results: Iterable[Result]) -> tuple[Result, ...]:
    """Results in the order of a manifest."""
    return tuple(sorted(results, key=lambda result: result.order))


# What results decide


def losing(
    decisions: Mapping[Tuning, Sequence[Collection[_Key]]], results: Iterable[Result], devices: Collection[str]
) -> frozenset[_Key]:
    """Keys that no launch asks for on some devices, since their configurations lose on each of them.

    Where one of the devices has no result for a decision, none of its keys is among them; nor is any where none of
    the devices is of the decision's target.

    Args:
        decisions: the keys of each of the configurations of each tuning.
        results: what was measured.
        devices: where it is launched.
    """
    found = {(result.tuning, result.device): result for result in results}
    known = {(tuning.target, device) for tuning, device in found}
    losers: set[_Key] = set()
    needed: set[_Key] = set()
    for tuning, keys in decisions.items():
        asked = [found.get((tuning, device)) for device in devices if (tuning.target, device) in known]
        fastest = {result.fastest for result in asked if result is not None}
        decided = asked and None not in asked
        for configuration, its in zip(tuning.configurations, keys, strict=True):
            (needed if configuration in fastest or not decided else losers).update(its)
    return frozenset(losers - needed)
