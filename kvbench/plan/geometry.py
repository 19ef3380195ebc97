"""Bytes of KV cache per token, from a model's own config.json. Plain attention (MHA, GQA, MQA) only."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["config_kv_bytes_per_token"]

_WIDTH_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}


def config_kv_bytes_per_token(config_file: Path, kv_dtype: str) -> int | None:
    """2 (K and V) × layers × KV heads × head size × bytes per element; None for shapes not understood."""
    config = json.loads(config_file.read_text(encoding="utf-8"))
    if any(key in config for key in ("kv_lora_rank", "text_config", "layer_types")):
        return None
    try:
        layers = int(config["num_hidden_layers"])
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    except (KeyError, TypeError, ValueError):
        return None
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    width = _WIDTH_BYTES.get(dtype if kv_dtype == "auto" else kv_dtype)
    return None if width is None else 2 * layers * kv_heads * head * width
