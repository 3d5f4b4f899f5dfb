"""What is left open stands for every mode on a target, and a deployment file says what flags say."""

import json
from pathlib import Path

import pytest

from aotpack.deployments import Service, default_limits, load_services, make_services
from aotpack.errors import ModelError
from aotpack.models import load_model
from aotpack.targets import DEVICES, Target

NEXT, VL = load_model("qwen3-next-80b-a3b"), load_model("qwen3-vl-8b")


def prefills(service: Service, arch: int) -> list[str]:
    return [deployment.gdn_prefill for deployment in service.deployments(Target("cuda", arch))]


@pytest.mark.parametrize(
    ("arch", "both", "auto"),
    [
        (80, ["triton"], ["triton"]),
        (89, ["triton"], ["triton"]),
        (90, ["triton", "flashinfer"], ["flashinfer"]),
        (100, ["triton", "flashinfer"], ["flashinfer"]),
        (103, ["triton", "flashinfer"], ["flashinfer"]),
        (110, ["triton"], ["triton"]),
    ],
)
def test_both_prefill_back_ends_are_meant_where_the_target_has_them(
    arch: int, both: list[str], auto: list[str]
) -> None:
    assert prefills(Service(model=NEXT), arch) == both
    assert prefills(Service(model=NEXT, gdn_prefill="auto"), arch) == auto
    assert prefills(Service(model=NEXT, gdn_prefill="triton"), arch) == ["triton"]


def test_a_model_without_gated_delta_net_has_one_mode() -> None:
    assert prefills(Service(model=VL), 90) == ["triton"]


def test_limits_are_vllms_defaults_on_the_products_of_the_architecture() -> None:
    assert default_limits(Target("cuda", 90)) == ((1024, 16384),)
    assert default_limits(Target("cuda", 100)) == ((1024, 16384),)
    # A100 has the memory of the large tier and stays in the small one; so does GB10.
    assert default_limits(Target("cuda", 80)) == default_limits(Target("cuda", 121)) == ((256, 8192),)
    # Of sm120 there are cards on both sides of 70 GiB.
    assert default_limits(Target("cuda", 120)) == ((256, 8192), (1024, 16384))
    assert all(default_limits(Target("cuda", arch)) for arch in DEVICES)


def test_a_limit_that_is_said_is_taken_everywhere() -> None:
    service = Service(model=VL, max_num_seqs=64, max_num_batched_tokens=4096)
    (deployment,) = service.deployments(Target("cuda", 120))
    assert (deployment.max_num_seqs, deployment.max_num_batched_tokens) == (64, 4096)


TOML = """
[[deployment]]
model = ["qwen3.5-27b", "mine"]
tp = [1, 2]
dtype = "float16"
kv-cache-dtype = "fp8"
ssm-dtype = "bfloat16"
num-speculative-tokens = 2
max-num-seqs = 64
prefix-caching = false
gdn-prefill = "triton"
set = { cache-lines = 5 }

[[deployment]]
model = "qwen3-vl-8b"
vision-data-parallel = true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    mine = {"model_type": "qwen3_vl", "dtype": "bfloat16", "vocab_size": 100, "hidden_size": 256}
    mine |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(mine))
    return tmp_path


def test_a_deployment_file_says_what_flags_say(folder: Path) -> None:
    (folder / "fleet.toml").write_text(TOML)
    services = load_services(folder / "fleet.toml")
    stated = {
        "dtype": "float16",
        "kv_cache_dtype": "fp8",
        "ssm_dtype": "bfloat16",
        "speculative_tokens": 2,
        "max_num_seqs": 64,
        "prefix_caching": False,
        "gdn_prefill": "triton",
        "settings": (("cache-lines", 5),),
    }
    models = [load_model("qwen3.5-27b"), load_model(str(folder / "mine"))]
    assert services == (*make_services(models, [1, 2], **stated), *make_services([VL], [1], vision_data_parallel=True))


def test_json_says_the_same_as_toml(folder: Path) -> None:
    toml = """
[[deployment]]
model = ["qwen3.5-27b", "mine"]
tp = 2
set = { cache-lines = 5 }
"""
    deployment = {"model": ["qwen3.5-27b", "mine"], "tp": 2, "set": {"cache-lines": 5}}
    (folder / "fleet.toml").write_text(toml)
    (folder / "fleet.json").write_text(json.dumps({"deployment": [deployment]}))
    assert load_services(folder / "fleet.json") == load_services(folder / "fleet.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[deployment]]\nmodel = 'x'\nspeed = 3", r"deployment\[0\].speed: no such field"),
        ("[[deployment]]\ntp = 1", r"deployment\[0\].model: missing"),
        ("[[deployment]]\nmodel = 'qwen9'", r"'qwen9' is neither a preset"),
        ("[[deployment]]\nmodel = 'qwen2.5-vl-7b'\ntp = 8", r"num_attention_heads is 28 and cannot be split"),
        (
            "[[deployment]]\nmodel = 'qwen3.5-27b'\ngdn-prefill = 'fast'",
            r"deployment\[0\].gdn-prefill: expected one of",
        ),
        ("model = 'qwen3.5-27b'", "model: no such field"),
        ("[[deployment]", "expected TOML"),
    ],
)
def test_a_deployment_file_with_a_mistake_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "fleet.toml").write_text(text)
    with pytest.raises(ModelError, match=rf"fleet\.toml: .*{message}"):
        load_services(tmp_path / "fleet.toml")


def test_a_deployment_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"fleet\.toml: cannot be read"):
        load_services(tmp_path / "fleet.toml")
