"""Launch every kernel of a bundle on a real GPU, out of the cache it was installed into, and check the results.

    python -m tests.gpu.launch BUNDLE --engine ENGINE [--out FILE]

Installs BUNDLE into an empty cache directory, then, in a fresh process, calls the engine's real wrappers on CUDA
tensors with a compilation listener. In both, PATH names an empty directory, so there is neither gcc nor ``file``.
The same launches follow in a process with an empty cache and with gcc, for comparison. Prints a JSON report: how many
lookups hit, what was compiled (nothing may be out of the bundle), how long each first launch took, and how far each
result is from torch in float32. The bundle may have been built on another machine, under another Python minor, with
native helpers for this one; Triton's release must be the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from aotpack.bundle import Bundle, open_bundle
from aotpack.deployments import Deployment
from aotpack.documents import Node
from aotpack.engines import find_engine
from aotpack.families import load_families
from aotpack.targets import DEVICES, Target

COUNTS = (*range(1, 21), 32, 33, 40, 48, 50, 64, 100, 101, 1000, 1024, 8191, 8192)


def rms_norm(guard: Any, deployment: Deployment) -> float:
    """The gated norm, against its definition; the largest error relative to the largest result."""
    import torch

    gdn = deployment.gdn
    dtype, heads, width = getattr(torch, deployment.dtype), gdn.v_heads // deployment.tp, gdn.v_dim
    worst = 0.0
    for tokens in COUNTS:
        x, z = (torch.randn(tokens, heads, width, device="cuda", dtype=dtype) for _ in range(2))
        weight = torch.randn(width, device="cuda", dtype=dtype)
        found = guard.rmsnorm_fn(x, weight, None, z=z, eps=1e-6, norm_before_gate=True, activation=gdn.gate).float()
        wide = x.float()
        expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
        gate = torch.sigmoid(z.float()) if gdn.gate == "sigmoid" else torch.nn.functional.silu(z.float())
        worst = max(worst, _distance(found, expected * gate))
    return worst


def rotation(mrope: Any, deployment: Deployment) -> float:
    """The rotation by three positions, against its definition."""
    import torch

    model = deployment.model
    assert model.mrope is not None
    dtype, head, half = getattr(torch, deployment.dtype), model.attention.head_dim, model.rotary_dim // 2
    section = torch.tensor(_sections(model.mrope.sections, half, interleaved=model.mrope.interleaved), device="cuda")
    worst = 0.0
    for tokens in COUNTS:
        q = torch.randn(tokens, deployment.q_heads * head, device="cuda", dtype=dtype)
        k = torch.randn(tokens, deployment.kv_heads * head, device="cuda", dtype=dtype)
        angles = torch.rand(3, tokens, half, device="cuda") * 6.28
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        expected = [_rotate(x, cos, sin, section, head, half) for x in (q, k)]
        found = mrope.triton_mrope(
            q, k, cos, sin, list(model.mrope.sections), head, 2 * half, model.mrope.interleaved, True
        )
        worst = max(worst, *(_distance(a.float(), b) for a, b in zip(found, expected, strict=True)))
    return worst


def _sections(sizes: tuple[int, int, int], half: int, *, interleaved: bool) -> list[int]:
    """Which of the three positions turns each pair."""
    if not interleaved:
        return [row for row, size in enumerate(sizes) for _ in range(size)]
    return [index % 3 if index % 3 and index < 3 * sizes[index % 3] else 0 for index in range(half)]


def _rotate(x: Any, cos: Any, sin: Any, section: Any, head: int, half: int) -> Any:
    import torch

    rows = torch.arange(half, device="cuda")
    turn_cos, turn_sin = (table.float()[section, :, rows].T[:, None, :] for table in (cos, sin))
    wide = x.float().view(x.shape[0], -1, head).clone()
    first, second = wide[..., :half].clone(), wide[..., half : 2 * half].clone()
    wide[..., :half] = first * turn_cos - second * turn_sin
    wide[..., half : 2 * half] = second * turn_cos + first * turn_sin
    return wide.view(x.shape)


def copies(utils: Any, _deployment: Deployment) -> float:
    """Many copies of odd sizes in one launch; the number of bytes that differ."""
    import torch

    sizes = [1, 7, 1024, 1025, 65536, 100_003]
    sources = [torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda") for size in sizes]
    targets = [torch.zeros_like(source) for source in sources]
    addresses = [
        torch.tensor([t.data_ptr() for t in ts], dtype=torch.uint64, device="cuda") for ts in (sources, targets)
    ]
    utils.batch_memcpy(*addresses, torch.tensor(sizes, dtype=torch.int32, device="cuda"))
    torch.cuda.synchronize()
    return float(sum((a != b).sum().item() for a, b in zip(sources, targets, strict=True)))


def _distance(found: Any, expected: Any) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _has_gdn(deployment: Deployment) -> bool:
    return deployment.model.gdn is not None


def _rotates_alone(deployment: Deployment) -> bool:
    """Models with an output gate rotate in a fused kernel."""
    return deployment.model.mrope is not None and not deployment.model.attention.output_gate


CHECKS = {
    "vllm.third_party.flash_linear_attention.ops.layernorm_guard:layer_norm_fwd_kernel": (_has_gdn, rms_norm),
    "vllm.model_executor.layers.rotary_embedding.mrope:_triton_mrope_forward": (_rotates_alone, rotation),
    "vllm.v1.worker.mamba_utils:batch_memcpy_kernel": (_has_gdn, copies),
}
"""The kernels that are launched here: which deployments have them, and the check of their results."""


def launch(bundle: Bundle, engine_spec: str) -> dict[str, Any]:
    """Launch in this process; TRITON_CACHE_DIR says where Triton looks."""
    import torch
    import triton
    from triton.runtime import build
    from triton.runtime.jit import JITFunction

    from aotpack.tracing import import_kernels

    major, minor = torch.cuda.get_device_capability()
    target = Target("cuda", 10 * major + minor)
    properties = torch.cuda.get_device_properties(0)
    device = replace(DEVICES[target.arch], name=properties.name, sm_count=properties.multi_processor_count)
    families = load_families({kernel.family for kernel in bundle.manifest.kernels if kernel.name in CHECKS})
    import_kernels(find_engine(engine_spec, print), target, families, device)
    hits, compiled, built = set(), [], []
    first: list[tuple[str, float]] = []
    run, compile_helper = JITFunction.run, build._build
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")

    def listen(*, src: Any, metadata: Any, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            hits.add(metadata["hash"])
        else:
            compiled.append(src.name)

    def timed(function: Any, *args: Any, **kwargs: Any) -> Any:
        before, started = len(hits) + len(compiled), time.perf_counter()
        kernel = run(function, *args, **kwargs)
        if len(hits) + len(compiled) > before:
            torch.cuda.synchronize()
            first.append((function.__name__, round(1e3 * (time.perf_counter() - started), 2)))
        return kernel

    def compiling(name: str, *args: Any, **kwargs: Any) -> Any:
        built.append(name)
        return compile_helper(name, *args, **kwargs)

    triton.knobs.compilation.listener, JITFunction.run, build._build = listen, timed, compiling
    worst: dict[str, float] = {}
    for document in bundle.manifest.deployments:
        deployment = Deployment.from_json(Node(document))
        for name, (has, check) in CHECKS.items():
            if has(deployment):
                module, _, function = name.partition(":")
                worst[function] = max(worst.get(function, 0.0), check(sys.modules[module], deployment))
    torch.cuda.synchronize()
    return {
        "gpu": properties.name,
        "triton": triton.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "gcc": shutil.which("gcc"),
        "bundle": bundle.digest,
        "keys": sum(entry.key.target == target and entry.key.kernel in CHECKS for entry in bundle.manifest.entries),
        "hits": len(hits),
        "compiled": compiled,
        "built": built,
        "worst_error": worst,
        "first_launches_ms": round(sum(milliseconds for _, milliseconds in first), 1),
        "each_first_launch_ms": first,
    }


def main() -> None:
    """Install and launch without a compiler, then launch with one out of an empty cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--engine", required=True, help="a wheel or directory, as for aotpack build")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        print(json.dumps(launch(open_bundle(options.bundle), options.engine)))
        return
    engine = ["--engine", options.engine]
    with tempfile.TemporaryDirectory() as name:
        for part in ("empty", "installed", "cold"):
            (Path(name) / part).mkdir()
        bare = {**os.environ, "PATH": f"{name}/empty", "TRITON_CACHE_DIR": f"{name}/installed"}
        bare.pop("CC", None)
        subprocess.run([sys.executable, "-m", "aotpack", "install", options.bundle, *engine], env=bare, check=True)
        command = [sys.executable, "-m", "tests.gpu.launch", options.bundle, *engine, "--launch"]
        reports = {}
        for label, environment in (
            ("bundle", bare),
            ("cold", {**os.environ, "TRITON_CACHE_DIR": f"{name}/cold"}),
        ):
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            reports[label] = json.loads(done.stdout.splitlines()[-1])
    report = json.dumps(reports, indent=2)
    print(report)
    if options.out:
        options.out.write_text(report + "\n")


if __name__ == "__main__":
    main()
