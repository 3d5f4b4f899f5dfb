"""Record every compile key that a real vLLM meets on a real GPU, from start-up through many kinds of requests.

    python -m tests.gpu.record MODEL --out keys.jsonl [--eager] [--options JSON]

MODEL is a directory with a config.json; its weights are random. Needs vLLM itself. Writes a file of records as
``aotpack coverage --recorded`` and ``aotpack explain-miss --record`` read it, of vLLM's own kernels (Inductor's are
left out), and prints how long start-up and first requests took and how many lookups hit or compiled meanwhile.
"""

import argparse
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from aotpack.digests import canonical_json
from aotpack.listener import describe
from aotpack.record import Launch, spell_build, spell_launch

BATCHES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 64)
PROMPTS = (1, 2, 3, 15, 16, 17, 33, 64, 65, 100, 128, 257, 1000, 2000)
CACHED_PROMPTS = (544, 1088, 1089, 1632, 4096, 8000)
GRIDS = (
    [[1, 4, 4]],
    [[1, 16, 16]],
    [[1, 32, 24]],
    [[2, 14, 14]],
    [[1, 30, 46], [1, 16, 16]],
    [[1, 2, 2]],
    [[1, 6, 10]],
    [[4, 16, 20]],
)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.0, "logprobs": 5},
    {"temperature": 0.0, "prompt_logprobs": 3},
    {"temperature": 0.0, "logit_bias": {11: 1.0, 12: -1.0}},
    {"temperature": 1.0, "seed": 7, "min_tokens": 2},
    {"temperature": 0.0, "allowed_token_ids": [10, 11, 12]},
)


_NUMBERS = random.Random(0)


class Recording:
    """Keys met, and lookups that hit or compiled, by phase."""

    def __init__(self) -> None:
        self.phase = "startup"
        self.launches: dict[str, tuple[Launch, str]] = {}
        self.lookups: Counter[tuple[str, bool]] = Counter()

    def install(self) -> None:
        """Watch Triton in this process."""
        from triton import knobs

        def listen(**event: Any) -> None:
            self.lookups[self.phase, event["cache_hit"]] += 1
            if str(event["src"].fn.__module__).startswith("vllm."):
                launch = describe(**event)
                self.launches.setdefault(launch.cache_key, (launch, self.phase))

        knobs.compilation.listener = listen

    def write(self, path: Path, meta: dict[str, Any]) -> None:
        """Write what was met so far."""
        launches = [launch for launch, _ in self.launches.values()]
        lines = [
            {"meta": meta},
            *(spell_build(build) for build in {launch.build.digest: launch.build for launch in launches}.values()),
        ]
        lines += [{**spell_launch(launch), "when": phase} for launch, phase in self.launches.values()]
        path.write_text("".join(canonical_json(line) + "\n" for line in lines))


def main() -> None:
    """Start vLLM, send requests, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--eager", action="store_true", help="no torch.compile, no CUDA graphs")
    parser.add_argument("--options", type=json.loads, default={}, help="further arguments of vllm.LLM, as JSON")
    arguments = parser.parse_args()
    prepare()
    recording = Recording()
    recording.install()
    engine, meta = _start(arguments.model, eager=arguments.eager, options=arguments.options)
    meta["first_request_ms"] = _request(engine, recording, "first request", 17)
    meta["second_request_ms"] = _request(engine, recording, "second request", 17)
    recording.write(arguments.out, meta)
    _send(engine, recording)
    recording.write(arguments.out, meta)
    recording.phase = "vision"
    _see(engine)
    recording.write(arguments.out, meta)
    lookups = {f"{phase}: {'hit' if hit else 'compiled'}": n for (phase, hit), n in sorted(recording.lookups.items())}
    times = {name: value for name, value in meta.items() if name.endswith(("_ms", "_seconds"))}
    print(json.dumps({**times, "keys": len(recording.launches), "lookups": lookups}, indent=2))


def prepare() -> None:
    """Have vLLM run in this process, and ask no network."""
    for name, value in (
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
        ("VLLM_USE_FLASHINFER_SAMPLER", "0"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("HF_HUB_OFFLINE", "1"),
    ):
        os.environ.setdefault(name, value)


def _start(model: Path, *, eager: bool, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A running engine, and what there is to say of it."""
    import torch
    import triton
    import vllm

    served = {
        "max_model_len": 8192,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.5,
        "seed": 0,
        **options,
    }
    started = time.time()
    engine = vllm.LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=eager,
        limit_mm_per_prompt={"image": 0, "video": 0},
        **served,
    )
    return engine, {
        "startup_seconds": round(time.time() - started, 1),
        "engine": f"vllm {vllm.__version__}",
        "gpu": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "mode": "eager" if eager else "default (torch.compile and CUDA graphs)",
        "config": json.loads((model / "config.json").read_text()),
        "served": served,
        "weights": "random",
    }


def _request(
    engine: Any, recording: Recording, phase: str, tokens: int, count: int = 1, *, same: bool = False, **sampling: Any
) -> float:
    """Send prompts of random tokens; how long the answers took, in milliseconds."""
    import torch
    import vllm

    recording.phase = phase
    prompt = [_NUMBERS.randrange(10, 200_000) for _ in range(tokens)]
    prompts = [
        {"prompt_token_ids": prompt if same else [_NUMBERS.randrange(10, 200_000) for _ in range(tokens)]}
        for _ in range(count)
    ]
    parameters = vllm.SamplingParams(
        **{"temperature": 0.0, "max_tokens": 8, "detokenize": False, "ignore_eos": True, **sampling}
    )
    began = time.time()
    engine.generate(prompts, parameters, use_tqdm=False)
    torch.cuda.synchronize()
    return round((time.time() - began) * 1e3, 1)


def _send(engine: Any, recording: Recording) -> None:
    """Requests of many sizes, of prompts that the cache knows, and of every kind of sampling."""
    for count in BATCHES:
        for tokens in PROMPTS:
            if tokens * count <= 20_000:
                _request(engine, recording, "requests", tokens, count)
    for tokens in CACHED_PROMPTS:
        for _ in range(2):
            _request(engine, recording, "prefix caching", tokens, 2, same=True)
    for sampling in SAMPLINGS:
        for count in (1, 3, 16):
            try:
                _request(engine, recording, "sampling", 40, count, **sampling)
            except (ValueError, NotImplementedError) as error:
                print(f"not served: {sampling}: {error}")


def _see(engine: Any, made: Callable[[], object] | None = None) -> None:
    """Drive a vision tower over images and videos of several sizes; ``made`` is called once the tower is there."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.models.qwen3_vl import Qwen3_VisionTransformer

    config = engine.llm_engine.vllm_config
    with set_current_vllm_config(config), torch.inference_mode():
        torch.set_default_dtype(config.model_config.dtype)
        # An engine that serves no image makes its own tower without memory (on torch's device "meta"), and vLLM's
        # ``get_rope`` would hand out that tower's rotary embedding again: kernels would be passed null pointers.
        with patch.dict(rotary_embedding._ROPE_DICT, clear=True), torch.device("cuda"):
            tower = Qwen3_VisionTransformer(config.model_config.hf_config.vision_config, norm_eps=1e-6, prefix="visual")
        for parameter in tower.parameters():
            parameter.data.normal_(0, 0.02)
        import_module("vllm.vllm_flash_attn.layers.rotary")  # what an engine's own profile run of its tower imports
        if made is not None:
            made()
        for grid in GRIDS:
            patches = sum(time_ * height * width for time_, height, width in grid)
            pixels = torch.randn(patches, 3 * 2 * 16 * 16, dtype=config.model_config.dtype, device="cuda")
            tower(pixels, grid)
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
