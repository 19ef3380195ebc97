"""Bytes of KV cache per token, block and sequence, from a model's own config.json. Nothing is loaded.

Attention of every usual shape: MHA, GQA and MQA, MLA, sliding windows, and hybrids whose other layers keep a state
of fixed size. Bytes are those of all ranks together unless the name says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvbench.errors import InputError, NotSupportedYetError, Where
from kvbench.plan.layers import Config, LayerKind, layer_kinds, state_bytes, text_config, whole

__all__ = [
    "KV_DTYPES",
    "KvGeometry",
    "LayerGroup",
    "config_kv_bytes_per_token",
    "geometry_of",
    "read_config",
    "width_bytes",
]

KV_DTYPES: Mapping[str, float] = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "float8_e4m3fn": 1,
}
"""Bytes of one element. vLLM's formats with scales beside the elements are not in here."""

_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
"""Falcon, others, most, ChatGLM, Step (vLLM's `get_total_num_kv_heads`); DBRX has it in `attn_config`."""
_MLA_PACKED_BYTES = {"fp8_ds_mla": 656}
"""Per token and layer: 512 elements in fp8, 16 bytes of scales, 64 elements in bfloat16 (vLLM's layout)."""
_INDEXER_SCALE_BYTES, _INDEXER_GROUP = 4, 128
"""A sparse-attention indexer keeps one fp8 key a token with a 4-byte scale for every 128 elements (vLLM)."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that keep the same amount of KV."""

    kind: LayerKind
    layers: int
    token_bytes: int
    """Of one layer; 0 for a state that does not grow."""
    window_tokens: int | None = None
    """Only the latest so many tokens are kept."""
    state_bytes: int | None = None
    """Of one layer and sequence; None: it keeps none, or the config does not say how large it is."""

    def sequence_bytes(self, tokens: int) -> int:
        """All layers of the group, of one sequence of so many tokens."""
        kept = tokens if self.window_tokens is None else min(tokens, self.window_tokens)
        return self.layers * (self.token_bytes * kept + (self.state_bytes or 0))


@dataclass(frozen=True)
class KvGeometry:
    """What a model keeps of every token."""

    name: str
    groups: tuple[LayerGroup, ...]
    kv_dtype: str
    tensor_parallel: int
    attention: str
    """`MHA`, `GQA`, `MQA` or `MLA`."""

    @property
    def bytes_per_token(self) -> int:
        """Of each further token of a long prompt: layers that keep every token."""
        return sum(g.layers * g.token_bytes for g in self.groups if g.window_tokens is None)

    @property
    def block_token_bytes(self) -> int:
        """Per token where every attention layer keeps it: inside the window, in a stored block, or without a hybrid
        cache manager.
        """
        return sum(g.layers * g.token_bytes for g in self.groups)

    def block_bytes(self, block_tokens: int) -> int:
        """One block of every attention layer, all ranks together."""
        return block_tokens * self.block_token_bytes

    def sequence_bytes(self, tokens: int) -> int:
        """One sequence on the device, states and windows included."""
        return sum(group.sequence_bytes(tokens) for group in self.groups)

    def document(self) -> dict[str, object]:
        """For machines."""
        return {
            "model": self.name,
            "attention": self.attention,
            "kv_dtype": self.kv_dtype,
            "tensor_parallel": self.tensor_parallel,
            "bytes_per_token": self.bytes_per_token,
            "bytes_per_token_all_layers": self.block_token_bytes,
            "bytes_per_token_and_rank": self.block_token_bytes // self.tensor_parallel,
            "layers": [
                {
                    "kind": group.kind,
                    "layers": group.layers,
                    "bytes_per_token_and_layer": group.token_bytes,
                    "window_tokens": group.window_tokens,
                    "state_bytes_per_sequence_and_layer": group.state_bytes,
                }
                for group in self.groups
            ],
        }


def read_config(source: Path) -> Config:
    """`config.json` itself, or the one in a model's directory. InputError when there is none to read."""
    file = source / "config.json" if source.is_dir() else source
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"no model configuration can be read: {error.strerror}",
            where=Where(file),
            do="name a model's directory, or its config.json",
        ) from None
    except (ValueError, RecursionError):
        raise InputError("expected the JSON of a model's config.json", where=Where(file)) from None
    if not isinstance(config, dict):
        raise InputError("expected one JSON object, as in a model's config.json", where=Where(file))
    return config


def width_bytes(config: Config, kv_dtype: str) -> float:
    """Bytes of one KV element; `auto`: the model's own type, but of a model in float32 a 16-bit one, in which vLLM
    serves it unless it is told. NotSupportedYetError for formats with scales.
    """
    own = config.get("dtype") or config.get("torch_dtype") or text_config(config).get("dtype") or "bfloat16"
    name = str(own if kv_dtype == "auto" else kv_dtype).removeprefix("torch.")
    if kv_dtype == "auto" and name in ("float32", "float"):
        name = "bfloat16"
    if name not in KV_DTYPES:
        raise NotSupportedYetError(
            f"the size of KV in {name!r}", do=f"choose one of auto, {', '.join(KV_DTYPES)}, fp8_ds_mla (MLA only)"
        )
    return KV_DTYPES[name]


def geometry_of(
    config: Config, *, kv_dtype: str = "auto", tensor_parallel: int = 1, name: str = "", where: Where | None = None
) -> KvGeometry:
    """The geometry. InputError for a config that does not say enough, NotSupportedYetError for unknown layers.

    With more ranks than KV heads, engines keep a copy of a head on several ranks; MLA's latent is on every rank.
    """
    text = text_config(config)
    attention, token_bytes = _token_bytes(text, config, kv_dtype, tensor_parallel, where)
    counts: dict[LayerKind, int] = {}
    for kind in layer_kinds(text, where):
        if kind != "none":
            counts[kind] = counts.get(kind, 0) + 1
    window = text.get("sliding_window") or text.get("attention_chunk_size")
    groups = tuple(
        LayerGroup(kind, layers, token_bytes, _window(window, kind, where))
        if kind in ("full", "sliding", "chunked")
        else LayerGroup(kind, layers, 0, None, state_bytes(text, kind, KV_DTYPES["bfloat16"]))
        for kind, layers in counts.items()
    )
    shown = name or str(config.get("_name_or_path") or config.get("model_type") or "model")
    return KvGeometry(shown, groups, kv_dtype, tensor_parallel, attention)


def _window(window: object, kind: LayerKind, where: Where | None) -> int | None:
    if kind == "full":
        return None
    if not isinstance(window, int) or isinstance(window, bool) or window <= 0:
        raise InputError(f"has {kind} attention, and no sliding_window says how wide", where=where)
    return window


def _token_bytes(
    text: Config, config: Config, kv_dtype: str, tensor_parallel: int, where: Where | None
) -> tuple[str, int]:
    """(Shape of the attention, bytes of one token in one layer)."""
    if text.get("kv_lora_rank"):
        return "MLA", _latent_bytes(text, config, kv_dtype, where) * tensor_parallel
    width = width_bytes(config, kv_dtype)
    heads = whole(text, "num_attention_heads", where)
    kv_heads = _kv_heads(text, heads)
    head = int(_number(text.get("head_dim"), 0)) or whole(text, "hidden_size", where) // heads
    value = int(_number(text.get("v_head_dim"), head))
    ranked = max(1, -(-kv_heads // tensor_parallel)) * tensor_parallel
    shape = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA"
    return shape, round(ranked * (head + value) * width)


def _kv_heads(text: Config, heads: int) -> int:
    """By the names of vLLM's families; where a config has none of them, every head has a key of its own."""
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        return 1  # Falcon
    inner = text.get("attn_config")
    named = [text.get(key) for key in _KV_HEADS] + [inner.get("kv_n_heads") if isinstance(inner, dict) else None]
    return int(next((_number(value, heads) for value in named if value is not None), heads))


def _latent_bytes(text: Config, config: Config, kv_dtype: str, where: Where | None) -> int:
    """One compressed vector for all heads, and the rotated part of the key beside it; K and V are one."""
    rank = whole(text, "kv_lora_rank", where) + int(_number(text.get("qk_rope_head_dim"), 0))
    packed = _MLA_PACKED_BYTES.get(kv_dtype)
    latent = packed if packed is not None else round(rank * width_bytes(config, kv_dtype))
    index = int(_number(text.get("index_head_dim"), 0)) if text.get("index_topk") else 0
    return latent + index + index // _INDEXER_GROUP * _INDEXER_SCALE_BYTES


def _number(value: object, default: int) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def config_kv_bytes_per_token(config_file: Path, kv_dtype: str) -> int | None:
    """Bytes per token over all attention layers; None for shapes and types that are not understood."""
    try:
        return geometry_of(read_config(config_file), kv_dtype=kv_dtype).block_token_bytes
    except InputError:
        return None
