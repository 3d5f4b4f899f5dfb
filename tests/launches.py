"""Launch kernels of a bundle through Triton's own path, as keys say and with one thing changed, and record them.

    python -m tests.launches BUNDLE ENGINE OUT [SCENARIO...]

For each scenario, a file of records in OUT, with hits; TRITON_CACHE_DIR says where Triton looks. Run in a process of
its own: the engine is loaded as tracing loads it, for a device that is not there.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aotpack.bundle import open_bundle
from aotpack.engines import find_engine
from aotpack.families import load_families
from aotpack.keys import CompileKey
from aotpack.listener import listen
from aotpack.tracing import Tracer

PLAIN = "layer_norm_fwd_kernel"
HELPED = "precopy_mamba_align_fused_kernel"
OPTIONS: Mapping[str, Any] = {
    "num_warps": 8,
    "num_stages": 2,
    "maxnreg": 128,
    "enable_fp_fusion": False,
    "launch_cooperative_grid": True,
    "launch_pdl": True,
    "sanitize_overflow": False,
    "debug": True,
    "ptx_options": "--verbose",
    "default_dot_input_precision": "ieee",
}
"""Another value of each option that launches can set and that compiles."""
ARGUMENTS: Mapping[str, tuple[str, Any]] = {
    "alignment": ("Z", "unaligned"),
    "integer-other": ("stride_z_row", 17),
    "integer-one": ("stride_z_row", 1),
    "integer-i64": ("stride_z_row", 1 << 40),
    "type": ("X", "fp32"),
    "optional": ("Mean", "fp32"),
    "constexpr-int": ("BLOCK_N", 256),
    "constexpr-bool": ("NORM_BEFORE_GATE", False),
    "constexpr-str": ("ACTIVATION", "sigmoid"),
}
"""Another value of an argument of ``PLAIN``, by what it is that changes."""
VARIABLES: Mapping[str, str] = {"TRITON_DEFAULT_FP_FUSION": "1", "TRITON_DISABLE_LINE_INFO": "0"}
"""Variables set to what is the default anyway."""


def key_of(keys: list[CompileKey], function: str) -> CompileKey:
    """The first key of a kernel."""
    return next(key for key in keys if key.function == function)


def arguments_of(key: CompileKey, changes: Mapping[str, Any]) -> list[Any]:
    """Arguments that Triton's binder finds to be of the key's classes, but for the changed ones."""
    import torch

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64}
    constants, divisible = dict(key.constexprs), {place for place, attrs in key.attrs if attrs}
    made: list[Any] = []
    for index, (name, type_) in enumerate(key.signature):
        assert isinstance(type_, str)
        change, aligned = changes.get(name), (index,) in divisible
        if change == "unaligned" or (type_.startswith("*") and not change):
            made.append(torch.empty(64, dtype=dtypes[type_[1:]])[int(not aligned or change == "unaligned") :])
        elif change in dtypes:
            made.append(torch.empty(64, dtype=dtypes[change]))
        elif change is not None:
            made.append(change)
        elif type_ == "constexpr":
            made.append(constants[index,])
        else:
            made.append(0.5 if type_.startswith("fp") else (1 << 40 if "64" in type_ else 0) + (16 if aligned else 17))
    return made


def main(bundle_path: str, engine: str, out: str, *scenarios: str) -> None:
    from triton import knobs
    from triton.runtime.jit import JITFunction

    bundle = open_bundle(Path(bundle_path))
    keys = [entry.key for entry in bundle.manifest.entries]
    run = JITFunction.run
    tracer = Tracer(find_engine(engine, print), bundle.manifest.targets[0], load_families(bundle.manifest.families))

    def launch(function: str = PLAIN, arguments: Mapping[str, Any] | None = None, **options: Any) -> None:
        key = key_of(keys, function)
        kernel = tracer.function(key.kernel)
        kernel.device_caches.clear()  # as a process does that launches it for the first time
        given = {name: dict(key.options)[name] for name in ("num_warps", "num_stages")} | options
        run(kernel, *arguments_of(key, arguments or {}), grid=(1,), warmup=True, **given)

    def launch_with(name: str, value: str) -> None:
        os.environ[name] = value
        launch()
        del os.environ[name]

    known: dict[str, Callable[[], None]] = {"plain": launch, "helped": partial(launch, HELPED)}
    known |= {f"option-{name}": partial(launch, **{name: value}) for name, value in OPTIONS.items()}
    known |= {name: partial(launch, arguments={at: value}) for name, (at, value) in ARGUMENTS.items()}
    known |= {name: partial(launch_with, name, value) for name, value in VARIABLES.items()}
    for scenario in scenarios or known:
        knobs.compilation.listener = None
        listen(Path(out) / f"{scenario}.jsonl", hits=True)
        known[scenario]()


if __name__ == "__main__":
    main(*sys.argv[1:])
