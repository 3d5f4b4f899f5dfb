"""Models are read from presets and configurations; what follows from a deployment agrees with vLLM's own figures."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from aotpack.deployments import Deployment, canonical_deployments, make_services, misfit
from aotpack.documents import Node
from aotpack.errors import DocumentError, ModelError, UsageError
from aotpack.models import load_model, presets


def config(preset: str = "qwen3.5-27b") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((files("aotpack") / "presets" / f"{preset}.json").read_text())
    return document


def save(folder: Path, document: object, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_and_says_where_it_comes_from(name: str) -> None:
    assert load_model(name).name == name
    assert config(name)["_source"]


def test_the_presets_cover_the_models_that_are_promised() -> None:
    assert {"qwen3.5-0.8b", "qwen3.5-397b-a17b", "qwen3-next-80b-a3b", "qwen3-vl-8b", "qwen2.5-vl-7b"} <= set(presets())


def test_a_configuration_file_and_its_directory_mean_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = save(folder, config())
    assert load_model(str(path)) == load_model(str(folder)) == replace(load_model("qwen3.5-27b"), name="my-model")


def test_a_flat_configuration_is_read_like_a_nested_one(tmp_path: Path) -> None:
    nested = config("qwen3-vl-8b")
    flat = {**nested, **nested.pop("text_config"), "model_type": "qwen3_vl"}
    del flat["text_config"]
    assert replace(load_model(str(save(tmp_path, flat))), name="x") == replace(load_model("qwen3-vl-8b"), name="x")


@pytest.mark.parametrize(
    "field",
    ["num_attention_heads", "num_key_value_heads", "linear_num_value_heads", "hidden_size", "max_position_embeddings"],
)
def test_a_missing_field_is_named_with_its_place(tmp_path: Path, field: str) -> None:
    document = config()
    del document["text_config"][field]
    with pytest.raises(ModelError, match=rf"config.json: text_config.{field}: missing"):
        load_model(str(save(tmp_path, document)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": "24"}, r"text_config.num_attention_heads: expected a whole number"),
        ({"num_attention_heads": 0}, r"text_config.num_attention_heads: expected a whole number"),
        ({"dtype": "int8"}, r"text_config.dtype: expected one of bfloat16"),
        ({"rope_parameters": {"mrope_section": [1, 2]}}, r"mrope_section: expected three sections"),
        ({"output_gate_type": "relu"}, r"output_gate_type: expected one of silu"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named_with_what_was_found(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    document = config()
    document["text_config"] |= change
    with pytest.raises(ModelError, match=message):
        load_model(str(save(tmp_path, document)))


@pytest.mark.parametrize("content", ["", "{", "[1]", "\ud800".encode("utf-8", "surrogatepass")])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ModelError, match=r"config\.json: "):
        load_model(str(path))


def test_a_model_without_these_kernels_is_refused_by_its_type(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r'model_type: expected one of .*found "llama"'):
        load_model(str(save(tmp_path, {**config(), "model_type": "llama"})))


def test_a_directory_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json in this directory"):
        load_model(str(tmp_path))


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(UsageError, match=r"'qwen9' is neither.*qwen3-vl-8b"):
        load_model("qwen9")


def test_a_dtype_is_asked_for_where_the_configuration_has_none(tmp_path: Path) -> None:
    document = config("qwen2.5-vl-7b")
    del document["torch_dtype"]
    with pytest.raises(ModelError, match="dtype: missing"):
        load_model(str(save(tmp_path, document)))


def test_swish_is_silu_as_vllm_takes_it(tmp_path: Path) -> None:
    document = config()
    document["text_config"]["output_gate_type"] = "swish"
    gdn = load_model(str(save(tmp_path, document))).gdn
    assert gdn is not None
    assert gdn.gate == "silu"


def test_a_size_that_the_heads_cannot_be_split_over_is_refused() -> None:
    with pytest.raises(ModelError, match=r"qwen2.5-vl-7b: num_attention_heads is 28 and cannot be split"):
        make_services([load_model("qwen2.5-vl-7b")], [8])


def test_key_heads_fewer_than_ranks_are_shared() -> None:
    deployment = Deployment(model=load_model("qwen3.5-27b"), tp=8)
    assert misfit(deployment.model, 8) == ""
    assert deployment.kv_heads == 1


def test_the_same_deployments_come_in_the_same_order_however_they_are_given() -> None:
    models = [load_model(name) for name in ("qwen3-vl-8b", "qwen3.5-27b")]
    one, other = (
        [Deployment(model=model, tp=tp) for model in given for tp in (1, 2)] for given in (models, models[::-1])
    )
    assert canonical_deployments(one) == canonical_deployments([*other, *one])


@pytest.mark.parametrize("name", presets())
def test_a_deployment_that_is_spelled_can_be_read_back(name: str) -> None:
    deployment = Deployment(model=load_model(name), kv_cache_dtype="fp8", speculative_tokens=2)
    assert Deployment.from_json(Node(deployment.to_json())) == deployment


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": "1"}, "tp: expected a whole number"),
        ({"extra": 1}, "extra: no such field"),
        ({"model": {}}, "model.attention: expected an object|model.name: missing|model.attention: missing"),
    ],
)
def test_a_deployment_that_is_spelled_wrongly_is_refused(change: dict[str, Any], message: str) -> None:
    document = Deployment(model=load_model("qwen3.5-27b")).to_json()
    with pytest.raises(DocumentError, match=message):
        Deployment.from_json(Node({**document, **change}))


# What vLLM 0.33.0's own VllmConfig resolved on a machine without a GPU, in bytes.
@pytest.mark.parametrize(
    ("preset", "tp", "changes", "page"),
    [
        ("qwen3-next-80b-a3b", 1, {}, 1114112),
        ("qwen3-next-80b-a3b", 2, {}, 557056),
        ("qwen3-next-80b-a3b", 4, {}, 278528),
        ("qwen3-next-80b-a3b", 8, {}, 147456),
        ("qwen3-next-80b-a3b", 1, {"gdn_prefill": "flashinfer"}, 1179648),
        ("qwen3-next-80b-a3b", 4, {"gdn_prefill": "flashinfer"}, 327680),
        ("qwen3-next-80b-a3b", 8, {"gdn_prefill": "flashinfer"}, 196608),
        ("qwen3-next-80b-a3b", 1, {"gdn_prefill": "flashinfer", "prefix_caching": False}, 1114112),
        ("qwen3-next-80b-a3b", 1, {"speculative_tokens": 2}, 1146880),
        ("qwen3.5-27b", 1, {}, 3211264),
        ("qwen3.5-27b", 1, {"gdn_prefill": "flashinfer"}, 3407872),
        ("qwen3.5-27b", 4, {}, 802816),
        ("qwen3.5-27b", 4, {"gdn_prefill": "flashinfer"}, 851968),
        ("qwen3.5-27b", 1, {"kv_cache_dtype": "fp8"}, 3211264),
    ],
)
def test_the_kv_page_is_the_one_that_vllm_resolves(preset: str, tp: int, changes: dict[str, Any], page: int) -> None:
    assert replace(Deployment(model=load_model(preset), tp=tp), **changes).kv_page == page
