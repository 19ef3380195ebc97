"""How many parameters a model has, how many of them a token meets, and what they weigh. Bytes over all ranks.

Files tell the weight exactly; without them it follows from the shapes in config.json, within a few percent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvbench.plan.layers import Config, layer_kinds, text_config, whole

__all__ = ["Weights", "weights_of"]

_QUANTISED_BITS = {"fp8": 8, "modelopt": 8, "compressed-tensors": 8, "awq": 4.25, "gptq": 4.25, "mxfp4": 4.25}
"""Bits of one weight by `quant_method`, scales included; where the config says `bits`, that is taken."""
_MODEL_BITS = {"float32": 16, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8}
"""In which engines keep them: vLLM serves a model in float32 in a 16-bit type unless it is told."""


@dataclass(frozen=True)
class Weights:
    """What a model weighs."""

    parameters: int
    active_parameters: int
    """That one token meets: of experts, those that are chosen."""
    size_bytes: int
    source: str
    """`files`, or `estimated from config.json`."""


def weights_of(config: Config, directory: Path | None = None) -> Weights:
    """From files in `directory` where there are any, else estimated. InputError when config says too little."""
    text = text_config(config)
    total, active = _parameters(text)
    found = _files_bytes(directory) if directory is not None and directory.is_dir() else None
    if found is not None:
        return Weights(total, active, found // 2 if _is_float32(config) else found, "files")
    return Weights(total, active, round(total * _bits(config) / 8), "estimated from config.json")


def _files_bytes(directory: Path) -> int | None:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            size = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
        except (OSError, ValueError, KeyError, TypeError):
            size = None
        if isinstance(size, int | float) and size > 0:
            return round(size)
    files = [*directory.glob("*.safetensors"), *directory.glob("*.gguf")] or list(directory.glob("*.bin"))
    return sum(file.stat().st_size for file in files) or None


def _is_float32(config: Config) -> bool:
    return not isinstance(config.get("quantization_config"), dict) and _dtype(config) == "float32"


def _dtype(config: Config) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")


def _bits(config: Config) -> float:
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        bits = quantised.get("bits")
        if isinstance(bits, int | float) and not isinstance(bits, bool) and bits > 0:
            return bits + 0.25  # a 16-bit scale for every group of 64 to 128 weights
        return _QUANTISED_BITS.get(str(quantised.get("quant_method")), 16)
    return _MODEL_BITS.get(_dtype(config), 16)


def _parameters(text: Config) -> tuple[int, int]:
    """(All, those that one token meets)."""
    hidden, vocabulary = whole(text, "hidden_size"), whole(text, "vocab_size")
    embedded = vocabulary * hidden * (1 if text.get("tie_word_embeddings") else 2)
    total = active = embedded
    for index, kind in enumerate(layer_kinds(text)):
        mixed = _attention(text, hidden) if kind in ("full", "sliding", "chunked", "none") else 6 * hidden * hidden
        whole_mlp, met_mlp = _mlp(text, hidden, index)
        total += mixed + whole_mlp
        active += mixed + met_mlp
    return total, active - vocabulary * hidden  # looking a token up is no multiplication


def _attention(text: Config, hidden: int) -> int:
    heads = whole(text, "num_attention_heads")
    if text.get("kv_lora_rank"):
        nope, rope, value = (_or(text, key, 0) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        latent, query = _or(text, "kv_lora_rank", 0), _or(text, "q_lora_rank", 0)
        queries = (hidden + heads * (nope + rope)) * query if query else hidden * heads * (nope + rope)
        return queries + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    head = _or(text, "head_dim", 0) or hidden // heads
    return hidden * head * (2 * heads + 2 * _or(text, "num_key_value_heads", heads))


def _mlp(text: Config, hidden: int, index: int) -> tuple[int, int]:
    dense = 3 * hidden * _or(text, "intermediate_size", 4 * hidden)
    experts = next(
        (n for key in ("n_routed_experts", "num_local_experts", "num_experts") if (n := _or(text, key, 0))), 0
    )
    if not experts or index < _or(text, "first_k_dense_replace", 0):
        return dense, dense
    one = 3 * hidden * (_or(text, "moe_intermediate_size", 0) or _or(text, "intermediate_size", 4 * hidden))
    shared = one * _or(text, "n_shared_experts", 0)
    return one * experts + shared, one * _or(text, "num_experts_per_tok", 1) + shared


def _or(text: Config, key: str, default: int) -> int:
    value = text.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
