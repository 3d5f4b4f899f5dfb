"""Results at load time: autotuners that know the fastest configuration before their first launch.

Triton's own ``Autotuner.check_disk_cache`` reads what was installed or is served, exactly as the first launch would,
and keeps it in memory. It is stopped where it would begin to measure, so nothing is ever launched here.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from aotpack.autotuner import configuration_of, find_autotuner
from aotpack.tuning import Tuning


class _Unmeasured(Exception):  # noqa: N818  # no error: it leaves Triton's autotuner where that would measure
    """There is no result for the device."""


def settle(tunings: Iterable[Tuning], find: Callable[[str], Any]) -> tuple[int, list[Tuning]]:
    """Have autotuners take what was measured for this thread's device.

    Args:
        tunings: decisions that there are results for.
        find: what a kernel's module has under its name, by ``module:qualname``; None where it is not imported.

    Returns:
        How many decisions are taken, and those whose kernel is not imported.
    """
    taken, waiting = 0, []
    for tuning in tunings:
        tuner = find_autotuner(find(tuning.kernel))
        if tuner is None:
            waiting.append(tuning)
        elif tuner.cache_results:  # else Triton would not look either (TRITON_CACHE_AUTOTUNING)
            taken += _settle(tuner, tuning)
    return taken, waiting


def _settle(tuner: Any, tuning: Tuning) -> bool:
    configs = {configuration_of(config): config for config in tuner.configs}
    candidates = [configs.get(configuration) for configuration in tuning.configurations]
    # Triton's configurations cannot be compared with None.
    if tuning.key not in tuner.cache and all(candidate is not None for candidate in candidates):
        with suppress(_Unmeasured):
            tuner.check_disk_cache(tuning.key, candidates, _refuse)
    return tuning.key in tuner.cache


def _refuse() -> None:
    raise _Unmeasured
