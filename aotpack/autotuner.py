"""Triton's autotuner: the file in which it keeps what it measured, and where it looks for that.

Both are what Triton's own ``Autotuner.check_disk_cache`` gives (triton/runtime/autotuner.py), for a device that is not
there and for results that were measured elsewhere; nothing of its rule is repeated.
"""

import types
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from aotpack.targets import Target
from aotpack.toolchain import gpu_target
from aotpack.tuning import Configuration, Quantiles, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What Triton would keep.

    Attributes:
        cache_key: 64 hex digits, which name the directory as they do for an entry.
        name: of the file.
        content: its text.
    """

    cache_key: str
    name: str
    content: bytes


class Keeper:
    """Says what Triton would keep of results, and where it looks for that in this process's environment."""

    def __init__(self) -> None:
        """Load Triton's parts.

        Raises:
            ImportError: there is no Triton.
        """
        from triton.runtime.autotuner import Autotuner

        self._check = Autotuner.check_disk_cache

    def keep(self, result: Result, kernel_cache_key: str = "") -> Kept:
        """What Triton would keep of a result that it had measured itself.

        Args:
            result: the result.
            kernel_cache_key: ``JITFunction.cache_key`` of its kernel, which decides where it is kept and no more.
        """
        configs = [config_of(configuration) for configuration in result.tuning.configurations]
        timings = {config: _spell(times) for config, times in zip(configs, result.times, strict=True)}
        tuner = SimpleNamespace(fn=_kernel(result.tuning.kernel, kernel_cache_key), configs_timings=timings, cache={})
        kept: list[Kept] = []

        def manager(key: str) -> Any:
            def put(data: str, name: str, *, binary: bool) -> None:
                assert not binary
                kept.append(Kept(cache_key=key, name=name, content=data.encode()))

            return SimpleNamespace(get_file=lambda _name: None, put=put)

        self._for(result.tuning.target, manager)(tuner, result.tuning.key, configs, lambda: None)
        return kept[0]

    def _for(self, target: Target, manager: Any) -> Any:
        """Triton's function, for a device of a target and with a cache of managers that ``manager`` makes."""
        active = SimpleNamespace(get_current_target=lambda: gpu_target(target))
        names = {"driver": SimpleNamespace(active=active), "get_cache_manager": manager}
        return types.FunctionType(self._check.__code__, {**self._check.__globals__, **names})


def _kernel(name: str, cache_key: str) -> Any:
    """A ``JITFunction`` of which Triton asks its name and its cache key here."""
    from triton.runtime.jit import JITFunction

    class Kernel(JITFunction):  # type: ignore[misc]  # triton has no stubs
        def __init__(self) -> None:
            self.__name__ = name.rpartition(":")[2].rpartition(".")[2]

    Kernel.cache_key = cache_key
    return Kernel()


def config_of(configuration: Configuration) -> Any:
    """Triton's ``Config`` for a configuration."""
    from triton.runtime.autotuner import Config

    return Config(
        dict(configuration.arguments),
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
        num_ctas=configuration.num_ctas,
        maxnreg=configuration.maxnreg,
    )


def _spell(times: Quantiles | None) -> list[float]:
    """As ``Autotuner._bench`` gives them: infinite where a configuration cannot be launched."""
    return [float("inf")] * 3 if times is None else list(times)


def configuration_of(config: Any) -> Configuration | None:
    """Triton's ``Config`` as a value; None where it holds what no text can: a hook, an IR of one's own."""
    arguments = tuple(config.kwargs.items())
    plain = all(value is None or isinstance(value, bool | int | float | str) for _, value in arguments)
    if not plain or config.pre_hook is not None or getattr(config, "ir_override", None) is not None:
        return None
    return Configuration(
        arguments=arguments,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        num_ctas=config.num_ctas,
        maxnreg=config.maxnreg,
    )


def find_autotuner(value: Any) -> Any:
    """The ``Autotuner`` under heuristics, or None where there is none."""
    from triton.runtime.autotuner import Autotuner

    while value is not None and not isinstance(value, Autotuner):
        value = getattr(value, "fn", None)
    return value
