"""KV bytes from a model's config: every shape of attention, and what the real engine reported of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvbench.engine.tiny_model import files
from kvbench.errors import InputError, NotSupportedYetError
from kvbench.plan.budget import Memory, memory_budget
from kvbench.plan.geometry import config_kv_bytes_per_token, geometry_of, read_config
from kvbench.plan.known_models import KNOWN_MODELS
from kvbench.plan.named_model import named_model
from kvbench.plan.weights import weights_of

PLAIN = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 128_256,
    "torch_dtype": "bfloat16",
}


def test_multi_head_grouped_and_single_key_attention() -> None:
    assert geometry_of(PLAIN).attention == "MHA"
    assert geometry_of(PLAIN).bytes_per_token == 2 * 32 * 32 * 128 * 2
    grouped = geometry_of(PLAIN | {"num_key_value_heads": 8})
    assert (grouped.attention, grouped.bytes_per_token, grouped.block_bytes(16)) == ("GQA", 131_072, 2_097_152)
    assert geometry_of(PLAIN | {"num_key_value_heads": 1}).attention == "MQA"
    assert geometry_of(PLAIN | {"num_key_value_heads": 8, "head_dim": 256}).bytes_per_token == 262_144
    assert geometry_of(PLAIN | {"num_key_value_heads": 8}, kv_dtype="fp8").bytes_per_token == 65_536
    single = PLAIN | {"num_key_value_heads": 8, "torch_dtype": "float32"}
    assert geometry_of(single).bytes_per_token == 131_072, "vLLM serves it in a 16-bit type"
    assert geometry_of(single, kv_dtype="float32").bytes_per_token == 262_144
    assert weights_of(single) == weights_of(PLAIN | {"num_key_value_heads": 8})


@pytest.mark.parametrize(
    ("config", "kv_heads"),
    [
        ({"num_kv_heads": 4}, 4),
        ({"n_head_kv": 8}, 8),
        ({"multi_query_group_num": 2}, 2),
        ({"num_attention_groups": 8}, 8),
        ({"attn_config": {"kv_n_heads": 8}}, 8),
        ({"multi_query": True, "num_kv_heads": 32}, 1),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8}, 8),
        ({"num_key_value_heads": None}, 32),
    ],
)
def test_key_heads_are_found_under_the_names_of_every_family(config: dict, kv_heads: int) -> None:
    assert geometry_of(PLAIN | config).bytes_per_token == 2 * 32 * kv_heads * 128 * 2


def test_stages_share_the_layers() -> None:
    """Given eight GPUs as four ranks in two stages, then each keeps half of the layers."""
    model = named_model("Llama-3.3-70B")
    memory = Memory(80 * 2**30, workspace=2 * 2**30)
    flat = memory_budget(model, memory, tensor_parallel=8)
    staged = memory_budget(model, memory, tensor_parallel=4, pipeline_parallel=2)
    assert (staged.weights_bytes, staged.blocks) == (flat.weights_bytes, flat.blocks)
    assert staged.document()["geometry"]["bytes_per_token_and_rank"] == 80 * 4096 // 8
    # and with more ranks than KV heads, heads are there twice, in stages they are not
    many = memory_budget(model, memory, tensor_parallel=16)
    assert memory_budget(model, memory, tensor_parallel=8, pipeline_parallel=2).blocks > 1.9 * many.blocks
    # of 80 layers in three stages the fullest has 27
    three = memory_budget(model, memory, tensor_parallel=4, pipeline_parallel=3)
    assert three.weights_bytes == pytest.approx(three.weights.size_bytes * 27 / 80 / 4, abs=1)
    assert three.blocks == three.kv_bytes // (27 * 4096 * 16 // 4)
    with pytest.raises(InputError, match="80 layers cannot be spread over 81 stages"):
        memory_budget(model, memory, pipeline_parallel=81)


def test_ranks_share_heads_and_copy_them_when_there_are_too_few() -> None:
    four = geometry_of(PLAIN | {"num_key_value_heads": 8}, tensor_parallel=4)
    assert four.bytes_per_token == 131_072
    assert four.document()["bytes_per_token_and_rank"] == 131_072 // 4
    sixteen = geometry_of(PLAIN | {"num_key_value_heads": 8}, tensor_parallel=16)
    assert sixteen.bytes_per_token == 2 * 131_072, "every rank keeps one head, so each is there twice"


def test_a_latent_is_kept_once_for_all_heads_and_on_every_rank() -> None:
    deepseek = KNOWN_MODELS["DeepSeek-V3"]
    assert geometry_of(deepseek).bytes_per_token == 61 * (512 + 64) * 2
    assert geometry_of(deepseek, tensor_parallel=8).bytes_per_token == 8 * 61 * 576 * 2
    assert geometry_of(deepseek, kv_dtype="fp8_ds_mla").bytes_per_token == 61 * 656
    sparse = {**deepseek, "index_topk": 2048, "index_head_dim": 128}
    assert geometry_of(sparse).bytes_per_token == 61 * (576 * 2 + 128 + 4)


def test_windows_keep_the_latest_tokens_only() -> None:
    sliding = geometry_of(PLAIN | {"num_key_value_heads": 8, "sliding_window": 4096, "model_type": "mistral"})
    assert sliding.bytes_per_token == 0
    assert sliding.sequence_bytes(100_000) == 4096 * 131_072
    mixed = geometry_of(KNOWN_MODELS["gpt-oss-120b"])
    assert mixed.bytes_per_token == 18 * 2048
    assert mixed.block_token_bytes == 36 * 2048, "a stored block holds every layer"
    assert mixed.sequence_bytes(1000) == 18 * 2048 * 1000 + 18 * 2048 * 128
    assert geometry_of(KNOWN_MODELS["Qwen2.5-7B"]).bytes_per_token == 57_344, "its window is switched off"


@pytest.mark.parametrize(
    ("config", "full", "other"),
    [
        ({"model_type": "gemma2", "sliding_window": 4096}, 16, "sliding"),
        ({"model_type": "gemma3_text", "sliding_window": 1024, "num_hidden_layers": 30}, 5, "sliding"),
        (
            {"layer_types": ["chunked_attention", "full_attention"] * 16, "attention_chunk_size": 8192},
            16,
            "chunked",
        ),
        ({"full_attention_interval": 4}, 8, "linear"),
        ({"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4}, 4, "mamba"),
        ({"hybrid_override_pattern": "M-M*-" * 2, "num_hidden_layers": 10}, 2, "mamba"),
        ({"num_kv_shared_layers": 20}, 12, None),
        ({"attn_type_list": ([0] * 7 + [1]) * 4}, 4, "linear"),
        ({"attn_layer_indices": [9, 18, 27], "mamba_d_state": 128, "mamba_d_conv": 4}, 3, "mamba"),
    ],
)
def test_hybrids_are_told_layer_by_layer(config: dict, full: int, other: str | None) -> None:
    geometry = geometry_of(PLAIN | {"num_key_value_heads": 8} | config)
    kinds = {group.kind: group.layers for group in geometry.groups}
    assert kinds["full"] == full
    assert set(kinds) == {"full"} | ({other} if other else set())
    assert geometry.bytes_per_token == full * 4096


def test_a_state_of_fixed_size_counts_per_sequence() -> None:
    linear = {
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    geometry = geometry_of(PLAIN | {"num_key_value_heads": 8} | linear)
    state = 3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 4
    assert geometry.sequence_bytes(0) == 24 * state
    assert geometry.sequence_bytes(10) - geometry.sequence_bytes(9) == 8 * 4096


def test_the_language_part_of_a_multimodal_model_counts() -> None:
    outer = {"model_type": "vl", "text_config": PLAIN | {"num_key_value_heads": 8}, "vision_config": {"depth": 24}}
    assert geometry_of(outer).bytes_per_token == 131_072


@pytest.mark.parametrize(
    ("config", "error", "what"),
    [
        ({}, InputError, "num_attention_heads"),
        (PLAIN | {"num_attention_heads": "many"}, InputError, "num_attention_heads"),
        (PLAIN | {"layer_types": ["retention"] * 32}, NotSupportedYetError, "'retention'"),
        (PLAIN | {"block_configs": []}, NotSupportedYetError, "block_configs"),
        (PLAIN | {"linear_attn_config": {"full_attn_layers": [4]}}, NotSupportedYetError, "linear_attn_config"),
        (PLAIN | {"compress_ratios": [4, 128]}, NotSupportedYetError, "compress_ratios"),
        (PLAIN | {"num_hidden_layers": 10**12}, InputError, "no model has 1,000,000,000,000 layers"),
        (PLAIN | {"layer_types": ["sliding_attention"] * 32}, InputError, "sliding_window"),
    ],
)
def test_what_a_config_does_not_say_is_an_error(config: dict, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        geometry_of(config)


def test_a_config_is_read_from_a_file_or_a_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == PLAIN
    assert config_kv_bytes_per_token(tmp_path / "config.json", "auto") == 524_288
    assert config_kv_bytes_per_token(tmp_path / "config.json", "nvfp4") is None
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="one JSON object"):
        read_config(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read_config(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("Llama-3.1-8B", 8.03e9, 7.5e9),
        ("Llama-3.3-70B", 70.6e9, 69.5e9),
        ("Qwen2.5-7B", 7.62e9, 7.07e9),
        ("DeepSeek-V3", 671e9, 37e9),
        ("gpt-oss-120b", 116.8e9, 5.1e9),
    ],
)
def test_parameters_are_those_that_are_published(name: str, parameters: float, active: float) -> None:
    found = weights_of(KNOWN_MODELS[name])
    assert found.parameters == pytest.approx(parameters, rel=0.005)
    assert found.active_parameters == pytest.approx(active, rel=0.02)


def test_three_budgets_share_a_gpu() -> None:
    model = named_model("Llama-3.1-8B")
    memory = Memory(80 * 2**30, utilization=0.9, workspace=2 * 2**30, max_model_len=32_768)
    budget = memory_budget(model, memory)
    used = budget.weights_bytes + budget.workspace_bytes + budget.kv_bytes
    assert used == round(80 * 2**30 * 0.9)
    assert budget.weights_bytes == pytest.approx(16.06e9, rel=0.001)
    assert budget.blocks == budget.kv_bytes // (16 * 131_072)
    assert budget.sequences(32_768) == pytest.approx(budget.kv_bytes / (32_768 * 131_072))
    two = memory_budget(model, memory, tensor_parallel=2)
    assert two.kv_bytes - budget.kv_bytes == pytest.approx(budget.weights_bytes / 2, abs=1)
    assert not memory_budget(named_model("DeepSeek-V3"), memory).fits


def test_weights_are_those_of_the_files(tmp_path: Path) -> None:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    budget = memory_budget(named_model(str(tmp_path)), Memory(8 * 2**30))
    assert budget.weights.source == "files"
    assert budget.weights_bytes == len(files()["model.safetensors"])
    assert budget.weights.parameters * 2 == pytest.approx(budget.weights_bytes, rel=0.01), "bfloat16, less norms"


@pytest.mark.shared
def test_a_block_has_the_bytes_that_the_real_engine_moved(shared_dir: Path) -> None:
    """Captured from vLLM 0.32: a tiny Llama of 4 layers, 2 KV heads of 64, bfloat16, and a host tier."""
    exposition = (shared_dir / "facts" / "vllm-0.32.0" / "tiering-after-fill.prom").read_text()
    stored = float(re.findall(r"^vllm:kv_offload_store_bytes_total\{[^}]*\} (\S+)", exposition, re.M)[0])
    block_tokens = int(re.findall(r'cache_config_info\{[^}]*[{,]block_size="(\d+)"', exposition)[0])
    config = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    geometry = geometry_of(config | {"torch_dtype": "bfloat16"})
    assert (block_tokens, geometry.block_bytes(128)) == (128, 262_144)
    assert stored % geometry.block_bytes(block_tokens) == 0
    assert stored / geometry.block_bytes(block_tokens) == 90, "as many blocks as the fill had"


def test_the_built_in_model_keeps_what_its_emulation_was_fitted_to(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(files()["config.json"])
    assert geometry_of(read_config(tmp_path), kv_dtype="float32").block_bytes(128) == 262_144
