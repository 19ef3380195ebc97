"""Which layers of a model keep what of a sequence, read from its config.json. Pure; names are the files' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kvbench.errors import InputError, NotSupportedYetError, Where

__all__ = ["Config", "LayerKind", "layer_kinds", "state_bytes", "text_config", "whole"]

Config = Mapping[str, object]
LayerKind = Literal["full", "sliding", "chunked", "mamba", "linear", "conv", "none"]
"""`full` keeps every token, `sliding` and `chunked` the latest ones; `mamba`, `linear` and `conv` keep a state of
fixed size; `none` keeps nothing (a layer without attention, or one that shares another's KV).
"""

_TYPES: Mapping[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "conv": "conv",
}
_PATTERN: Mapping[str, LayerKind] = {"*": "full", "M": "mamba", "-": "none", "E": "none"}
"""Letters of `hybrid_override_pattern` (Nemotron-H): attention, Mamba, MLP, experts."""
_EVERY_NTH_FULL = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4}
"""Where configs of a family do not spell the pattern out: every n-th layer attends to everything (their code)."""
_OPT_IN_WINDOW = ("qwen2", "qwen3")
"""Families whose configs name a window that is off unless `use_sliding_window` is true."""
_LINEAR_SIZES = (
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    "linear_conv_kernel_dim",
)
_ODD = ("block_configs", "encoder_layers", "compress_ratios", "hybrid_layer_pattern", "linear_attn_config")
"""Keys of families whose layers differ in ways that are not told apart here."""
_MOST_LAYERS = 10_000
_FLOAT32_BYTES = 4


def text_config(config: Config) -> Config:
    """The language model's own part of a multimodal config."""
    for key in ("text_config", "llm_config", "language_config"):
        part = config.get(key)
        if isinstance(part, dict) and "num_hidden_layers" in part:
            return {"dtype": config.get("dtype") or config.get("torch_dtype"), **part}
    return config


def whole(config: Config, key: str, where: Where | None = None) -> int:
    """A whole number from 1 on. InputError when the config has none under this key."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key}: expected a whole number, as in a model's config.json", where=where)
    return value


def layer_kinds(text: Config, where: Where | None = None) -> list[LayerKind]:
    """The kind of every layer, first to last. NotSupportedYetError for layers of another kind."""
    odd = next((key for key in _ODD if key in text), None)
    if odd is not None:
        raise NotSupportedYetError(f"a model whose layers differ as in {odd!r}", where=where)
    count = whole(text, "num_hidden_layers", where)
    if count > _MOST_LAYERS:
        raise InputError(f"num_hidden_layers: no model has {count:,} layers", where=where)
    kinds = _spelled_out(text, count, where) or [_by_rule(text, index) for index in range(count)]
    shared = text.get("num_kv_shared_layers")
    if isinstance(shared, int) and 0 < shared < count:
        kinds[-shared:] = ["none"] * shared
    return kinds


def _spelled_out(text: Config, count: int, where: Where | None) -> list[LayerKind] | None:
    named = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(named, list):
        unknown = next((str(name) for name in named if str(name) not in _TYPES), None)
        if unknown is not None:
            raise NotSupportedYetError(f"a layer of type {unknown[:40]!r}", where=where)
        return [_TYPES[str(name)] for name in named[:count]]
    listed = text.get("attn_type_list")
    if isinstance(listed, list):  # MiniMax
        return ["full" if kind == 1 else "linear" for kind in listed[:count]]
    attending = text.get("attn_layer_indices")
    if isinstance(attending, list):  # Bamba
        return ["full" if index in attending else "mamba" for index in range(count)]
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        strange = next((letter for letter in pattern if letter not in _PATTERN), None)
        if strange is not None:
            raise NotSupportedYetError(f"the letter {strange!r} in hybrid_override_pattern", where=where)
        return [_PATTERN[letter] for letter in pattern[:count]]
    return None


def _by_rule(text: Config, index: int) -> LayerKind:
    """Of one layer, where the config gives a rule instead of a list."""
    family = str(text.get("model_type", ""))
    period = text.get("attn_layer_period")
    if isinstance(period, int) and period > 0:  # Jamba
        offset = text.get("attn_layer_offset")
        return "full" if index % period == (offset if isinstance(offset, int) else 0) else "mamba"
    interval = text.get("full_attention_interval")
    if isinstance(interval, int) and interval > 0:  # Qwen3-Next
        return "full" if (index + 1) % interval == 0 else "linear"
    if not text.get("sliding_window"):
        return "full"
    every = text.get("sliding_window_pattern") or _EVERY_NTH_FULL.get(family)
    if isinstance(every, int) and every > 0:
        return "full" if (index + 1) % every == 0 else "sliding"
    if family.startswith(_OPT_IN_WINDOW):
        first = text.get("max_window_layers")
        slides = text.get("use_sliding_window") is True and index >= (first if isinstance(first, int) else 0)
        return "sliding" if slides else "full"
    return "full" if text.get("use_sliding_window") is False else "sliding"


def state_bytes(text: Config, kind: LayerKind, width: float) -> int | None:
    """State of a layer and sequence; None when the config does not say how large. The recurrent part is float32."""
    if kind == "linear":
        sizes = [size for name in _LINEAR_SIZES if (size := _first(text, name)) is not None]
        if len(sizes) < len(_LINEAR_SIZES):
            return None
        keys, values, key, value, taps = sizes
        channels = 2 * keys * key + values * value
        return round((taps - 1) * channels * width) + values * key * value * _FLOAT32_BYTES
    if kind == "conv":
        hidden, kernel = _first(text, "hidden_size"), _first(text, "conv_L_cache")
        return None if not hidden or not kernel else round((kernel - 1) * hidden * width)
    return _mamba_bytes(text, width)


def _mamba_bytes(text: Config, width: float) -> int | None:
    state = _first(text, "mamba_d_state", "ssm_state_size")
    kernel = _first(text, "mamba_d_conv", "conv_kernel")
    heads = _first(text, "mamba_n_heads", "mamba_num_heads")
    head = _first(text, "mamba_d_head", "mamba_head_dim")
    if not state or not kernel:
        return None
    if heads and head:  # Mamba 2
        channels = heads * head + 2 * (_first(text, "mamba_n_groups", "n_groups") or 1) * state
        return round((kernel - 1) * channels * width) + heads * head * state * _FLOAT32_BYTES
    expand, hidden = _first(text, "mamba_expand", "expand"), _first(text, "hidden_size")
    if not expand or not hidden:
        return None
    inner = expand * hidden
    return round((kernel - 1) * inner * width) + inner * state * _FLOAT32_BYTES


def _first(text: Config, *keys: str) -> int | None:
    found = (text.get(key) for key in keys)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)
