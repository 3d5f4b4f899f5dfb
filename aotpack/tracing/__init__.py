"""Tracing: compile keys by calling an engine's real wrappers in a process that pretends to be one target.

A ``Tracer`` turns the process it is made in into that target, for good: fake driver, stubbed imports, recorded
launches. It belongs in a worker process (see ``aotpack.pool``). The wrapper stays the only source of truth for
grids, strides, constexprs and options; no rule of it is written down again here.
"""

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from types import ModuleType
from typing import Any

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.errors import EngineError, ToolchainError, TracingError
from aotpack.families import ExpectedKernel, Family
from aotpack.keys import CompileKey, LaunchOptions
from aotpack.manifest import Kernel, Unknown
from aotpack.memorykeys import jit_function, look_up
from aotpack.sourcekeys import SourceKeys, record_sources
from aotpack.sources import EngineSources, Function, Sources
from aotpack.targets import DEVICES, Device, Target
from aotpack.tracing import vllm
from aotpack.tracing.device import pretend
from aotpack.tracing.recorder import Decision, Quantities, Recorder
from aotpack.tracing.stubs import STAND_IN, Stubs
from aotpack.tracing.trials import Trial
from aotpack.tuning import Tuning

LINE_INFO = "TRITON_DISABLE_LINE_INFO"

KEPT = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBDEVICE_PATH")
"""Variables of Triton's that a worker keeps: they choose the assembler and libdevice."""

_DROPPED_PREFIXES = ("TRITON_", "MLIR_", "LLVM_", "FLA_", "GDN_", "VLLM_", "AMDGCN_", "PTXAS_", "NVPTX_")


def dropped(variable: str) -> bool:
    """Whether a worker goes without a variable of the environment."""
    return variable.startswith(_DROPPED_PREFIXES) and variable not in KEPT


def clean_environment(cache: str) -> None:
    """Make this process's environment one in which every machine gives the same keys and the same code.

    Variables that engines and Triton read are dropped, but for those that choose the assembler and libdevice;
    what still enters a cache key is recorded in the manifest. Line info is off, so that cubins hold no path.

    Args:
        cache: a private directory for what Triton and torch write.
    """
    for name in list(os.environ):
        if dropped(name):
            del os.environ[name]
    private = ("TRITON_CACHE_DIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR")
    # Of what a compile leaves, nothing but machine code and metadata is read.
    os.environ |= {LINE_INFO: "1", "TRITON_STORE_BINARY_ONLY": "1", **dict.fromkeys(private, cache)}


def follow_parent() -> None:
    """Leave Ctrl-C to the process that started this one, and never outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What one family's driving of one deployment reached.

    Attributes:
        family: the family's name.
        keys: each key with the first input that reached it.
        launches: the options of launches that ask for them, see ``aotpack.memorykeys``.
        decisions: the decisions of autotuners, and the keys of their configurations.
        unknowns: values that the family asked for and were not given.
    """

    family: str
    keys: tuple[tuple[CompileKey, Quantities], ...]
    launches: tuple[tuple[CompileKey, LaunchOptions], ...]
    decisions: tuple[Decision, ...]
    unknowns: tuple[Unknown, ...]


class Tracer:
    """An engine's modules, loaded for one target in this process."""

    def __init__(
        self, engine: Engine, target: Target, families: tuple[Family, ...], device: Device | None = None
    ) -> None:
        """Turn this process into the target and load what the families need.

        Args:
            engine: the engine.
            target: what to pretend to be.
            families: what will be driven, where the release is not among those that a family does not drive.
            device: the product to pretend to be; None takes the target's common one.

        Raises:
            EngineError: a kernel is not there, or has other parameters than its family expects; or none of the
                families drives the release.
            TracingError: a module cannot be imported.
            ToolchainError: Triton cannot be imported.
        """
        undriven = [family.name for family in families if engine.version in family.undriven]
        families = tuple(family for family in families if family.name not in undriven)
        if undriven and not families:
            raise EngineError(
                f"{engine} is not driven by family {', '.join(undriven)}; choose another family or release"
            )
        device = device or DEVICES[target.arch]
        pretend(target, device)
        self.target = target
        self._engine = engine
        self._families = {family.name: family for family in families}
        self._recorder = Recorder(target)
        self._recorder.install()
        self._settings: dict[str, int] = {}
        self._unknowns: dict[str, str] = {}
        self._modules, self._kernels = import_kernels(engine, target, families, device)

    def module(self, name: str) -> ModuleType:
        """One of the engine's modules, loaded for real.

        Raises:
            TracingError: no family declared it.
        """
        if name not in self._modules:
            raise TracingError(f"{name} is not among the modules that the family declares")
        return self._modules[name]

    def has(self, name: str) -> bool:
        """Whether this release has a module, or ``module:qualname`` in one that a family declared.

        Raises:
            TracingError: no family declared the module of a qualname.
        """
        module, _, qualname = name.partition(":")
        return look_up(self.module(module), qualname) is not None if qualname else self._engine.has(module)

    @contextmanager
    def input(self, **quantities: int | str | bool) -> Iterator[None]:
        """Name the input that is tried in the block; keys recorded in it are reached by it."""
        with self._recorder.input(**quantities):
            yield

    def setting(self, name: str, fixed_by: str) -> int | None:
        """A value that only the serving machine fixes, where the user gave it; else it is noted as unknown."""
        if name not in self._settings:
            self._unknowns[name] = fixed_by
        return self._settings.get(name)

    def trace(self, deployment: Deployment) -> tuple[Traced, ...]:
        """Drive every family that serves a deployment.

        Raises:
            TracingError: a wrapper could not be driven, or launched a kernel that its family does not name.
        """
        return tuple(self._drive(family, deployment) for family in self._families.values() if family.serves(deployment))

    def trials(self, deployment: Deployment) -> tuple[Trial, ...]:
        """A launch for each decision of the autotuners that a deployment meets, of realistic size.

        Raises:
            TracingError: as ``trace``, or what a kernel is handed cannot be launched in another process.
        """
        trials: dict[Tuning, Trial] = {}
        for family in self._families.values():
            if family.tune is not None and family.serves(deployment):
                with self._recorder.capturing() as captured:
                    self._call(family, family.tune, deployment)
                trials |= {
                    tuning: replace(trial, input=f"{deployment}: {trial.input}") for tuning, trial in captured.items()
                }
        self._recorder.take()
        self._recorder.take_decisions()
        return tuple(trials.values())

    def _call(self, family: Family, drive: Callable[[Any, Deployment], None], deployment: Deployment) -> str:
        """Have a family drive the wrappers; returns what that was, for messages."""
        where = f"family {family.name}, {deployment}, {self._engine}"
        self._settings = dict(deployment.settings)
        self._unknowns.clear()
        try:
            drive(self, deployment)
        except TracingError as error:
            raise TracingError(f"{where}: {error}; the family must declare that module, or the stubs answer") from None
        except Exception as error:
            raise TracingError(f"{where}: the wrappers could not be driven: {type(error).__name__}: {error}") from error
        return where

    def _drive(self, family: Family, deployment: Deployment) -> Traced:
        where = self._call(family, family.drive, deployment)
        unpacked = self._unpacked(family)
        recorded = [item for item in self._recorder.take() if item.key.kernel not in unpacked]
        named = {kernel.name for kernel in family.kernels if self._engine.version not in kernel.absent}
        for item in recorded:
            if item.key.kernel not in named:
                raise TracingError(f"{where}: the wrappers launch {item.key.kernel}, which the family does not name")
        return Traced(
            family=family.name,
            keys=tuple((item.key, item.reached) for item in recorded),
            launches=tuple((item.key, launch) for item in recorded for launch in item.launches),
            decisions=tuple(self._recorder.take_decisions()),
            unknowns=tuple(
                Unknown(family=family.name, name=name, fixed_by=fixed_by) for name, fixed_by in self._unknowns.items()
            ),
        )

    def _unpacked(self, family: Family) -> set[str]:
        """Kernels whose keys hold a value that only the serving machine fixes, and that was not given."""
        return {
            kernel.name
            for kernel in family.kernels
            for value in [kernel.unbounded.get(self._engine.version)]
            if value is not None and self.setting(value.setting, value.fixed_by) is None
        }

    def function(self, kernel: str) -> Any:
        """The ``JITFunction`` of one of the families' kernels."""
        return self._kernels[kernel]

    def kernels(self) -> tuple[tuple[Kernel, ...], Sources]:
        """The families' kernels with their source keys, by name, and what they are made of.

        Raises:
            TracingError: a kernel reaches a name of a stubbed module, which its family must declare, or its source
                cannot be told from the engine's files.
        """
        owners = {kernel.name: family.name for family in self._families.values() for kernel in family.kernels}
        engine = EngineSources(self._engine.root)
        functions: dict[str, Function] = {}
        kernels = []
        for name in sorted(self._kernels):
            try:
                recorded, cache_keys = _identify(self._kernels[name], name, engine)
            except Exception as error:
                raise TracingError(
                    f"family {owners[name]}: {name} of {self._engine} cannot be hashed: {error}; "
                    "the family must declare the modules that the kernel reaches"
                ) from error
            functions |= {function.name: function for function in recorded.functions}
            kernels.append(Kernel(name=name, family=owners[name], cache_keys=cache_keys))
        by_name = tuple(function for _, function in sorted(functions.items()))
        return tuple(kernels), Sources(functions=by_name, modules=engine.modules)


def _identify(function: Any, name: str, engine: EngineSources) -> tuple[Sources, tuple[str, ...]]:
    """What a kernel is made of, and its source keys; the one that Triton has for it must be among them."""
    recorded = record_sources([function], engine)
    for part in recorded.functions:
        for value in part.globals:
            if STAND_IN in value.shown:
                raise TracingError(f"its constant {value.spelling} is a stand-in")
    cache_keys = SourceKeys(recorded, engine).of(name)
    if function.cache_key not in cache_keys:
        raise ToolchainError(f"its source key is {function.cache_key}, expected {' or '.join(cache_keys)}")
    return recorded, cache_keys


def import_kernels(
    engine: Engine, target: Target, families: tuple[Family, ...], device: Device
) -> tuple[dict[str, ModuleType], dict[str, Any]]:
    """Load the families' modules of an engine, everything else of it stubbed, and find their kernels.

    Args:
        engine: the engine.
        target: what the engine is told to run on.
        families: whose modules and kernels.
        device: the product that the engine is told of.

    Returns:
        The modules that were loaded for real, and the ``JITFunction`` of each kernel that is packed, both by name.

    Raises:
        EngineError: a kernel is not there, or has other parameters than its family expects.
        TracingError: a module cannot be imported.
    """
    declared = {
        family.name: (*family.modules, *(name for name in family.optional if engine.has(name))) for family in families
    }
    stubs = Stubs(
        engine.root,
        vllm.PACKAGE,
        engine.version,
        {*vllm.REAL, *chain.from_iterable(declared.values())},
        vllm.substitutes(engine.version, target, device),
        vllm.SPARED,
    )
    sys.meta_path.insert(0, stubs)
    modules: dict[str, ModuleType] = {}
    kernels: dict[str, Any] = {}
    for family in families:
        for name in declared[family.name]:
            modules[name] = _import(engine, family, name)
        for kernel in family.kernels:
            if engine.version not in kernel.absent:
                kernels[kernel.name] = _find(engine, family, kernel)
    stubs.frozen = True
    return modules, kernels


def _import(engine: Engine, family: Family, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except TracingError as error:
        raise TracingError(f"family {family.name}: importing {name} of {engine}: {error}") from None
    except ModuleNotFoundError as error:
        raise TracingError(
            f"family {family.name}: {name} of {engine} needs the package {error.name!r}, which is not "
            "installed; install aotpack[build], or that package"
        ) from None
    except Exception as error:
        raise TracingError(
            f"family {family.name}: {name} of {engine} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _find(engine: Engine, family: Family, kernel: ExpectedKernel) -> Any:
    module, _, qualname = kernel.name.partition(":")
    function = jit_function(look_up(_import(engine, family, module), qualname))
    if function is None:
        raise EngineError(
            f"{engine} has no kernel {kernel.name}, which family {family.name} packs; "
            "build with an engine release that has it, or without the family"
        )
    parameters = tuple(function.arg_names)
    if parameters not in (kernel.parameters, *kernel.others):
        expected = " or ".join(f"({', '.join(names)})" for names in (kernel.parameters, *kernel.others))
        raise EngineError(
            f"{engine}: {kernel.name} takes ({', '.join(parameters)}); family {family.name} expects {expected}; "
            "this release needs a newer aotpack"
        )
    return function
