"""Bytes of KV cache per token of a profile's model, where its config.json is at hand."""

from __future__ import annotations

from pathlib import Path

from kvbench.engine.emulated.sizes import sizes_of
from kvbench.engine.models import engine_args, model_directory
from kvbench.plan.geometry import config_kv_bytes_per_token
from kvbench.spec.profile import Profile

__all__ = ["kv_bytes_per_token"]


def kv_bytes_per_token(profile: Profile) -> int | None:
    """Bytes per token over all layers and ranks; None when the model is not on this machine or not understood."""
    engine = profile.engine
    if engine.kind == "emulated":
        sizes = sizes_of(profile)
        return sizes.block_bytes // sizes.block_tokens
    directory = model_directory(engine.model)
    if isinstance(directory, str) or not (config := Path(directory) / "config.json").is_file():
        return None
    weights = engine.args.get("dtype") or engine_args(engine.model).get("dtype")
    dtype = profile.tiers.device.kv_dtype
    return config_kv_bytes_per_token(config, str(weights) if dtype == "auto" and weights else dtype)
