"""Bytes of KV cache per token of a profile's model, and its length, where its config.json is at hand."""

from __future__ import annotations

from pathlib import Path

from kvbench.engine.emulated.sizes import sizes_of
from kvbench.engine.models import engine_args, model_directory
from kvbench.errors import InputError
from kvbench.plan.geometry import config_kv_bytes_per_token, read_config
from kvbench.plan.layers import text_config
from kvbench.spec.profile import Profile

__all__ = ["kv_bytes_per_token", "model_length"]

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
"""Names that families give the length they were trained for; vLLM takes the smallest that is there."""


def kv_bytes_per_token(profile: Profile) -> int | None:
    """Bytes per token over all layers and ranks; None when the model is not on this machine or not understood."""
    engine = profile.engine
    if engine.kind == "emulated":
        sizes = sizes_of(profile)
        return sizes.block_bytes // sizes.block_tokens
    config = _config_file(profile)
    if config is None:
        return None
    weights = engine.args.get("dtype") or engine_args(engine.model).get("dtype")
    dtype = profile.tiers.device.kv_dtype
    return config_kv_bytes_per_token(config, str(weights) if dtype == "auto" and weights else dtype)


def model_length(profile: Profile) -> int | None:
    """The longest request in tokens that the model's own configuration allows; scaled positions may allow more."""
    file = _config_file(profile)
    try:
        config = text_config(read_config(file)) if file is not None else {}
    except InputError:
        return None
    lengths = [length for name in _LENGTHS if isinstance(length := config.get(name), int) and length > 0]
    return min(lengths, default=None)


def _config_file(profile: Profile) -> Path | None:
    directory = model_directory(profile.engine.model)
    if isinstance(directory, str) or not (config := Path(directory) / "config.json").is_file():
        return None
    return config
