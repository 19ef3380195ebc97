"""The YAML of `trtllm-serve` as strict models, and what each release takes where a profile says nothing. Pure.

Keys, types and limits are those of 1.2 (LlmArgs and its KvCacheConfig, which refuse unknown keys). Sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = [
    "BLOCK_PRIORITY",
    "DEFAULTS",
    "Default",
    "ExtraOptions",
    "KvCacheConfig",
    "defaults_left",
    "told_defaults",
]

EVENT_BUFFER = 16384
"""Events kept until they are asked for. In 1.2 they are the only way to see the host tier work, and off at 0."""

PERF_METRICS_REQUESTS = 10000
"""At 0, the engine's default, `/perf_metrics` is always empty."""

BLOCK_PRIORITY = 35
"""Priority of a block whose request says nothing, and over HTTP no request can (KvCacheRetentionConfig of 1.2)."""


class StrictOptions(BaseModel):
    """The engine refuses unknown keys, so they are refused here first."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KvCacheConfig(StrictOptions):
    """`kv_cache_config` of 1.2; what a profile does not say is left to the engine."""

    enable_block_reuse: bool = True
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    free_gpu_memory_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    host_cache_size: Annotated[int, Field(ge=0)] = 0
    """Per rank. 0: no host tier; always written, so that no release's own default makes one."""
    secondary_offload_min_priority: Annotated[int, Field(ge=0, le=100)] | None = None
    event_buffer_max_size: Annotated[int, Field(ge=1)] = EVENT_BUFFER
    attention_dp_events_gather_period_ms: Annotated[int, Field(ge=1)] | None = None
    enable_partial_reuse: bool | None = None
    copy_on_partial_reuse: bool | None = None
    dtype: str | None = None
    tokens_per_block: Annotated[int, Field(ge=1)] = 32
    max_attention_window: list[Annotated[int, Field(ge=1)]] | None = None
    sink_token_length: Annotated[int, Field(ge=0)] | None = None
    max_gpu_total_bytes: Annotated[int, Field(ge=0)] | None = None
    use_uvm: bool | None = None
    onboard_blocks: bool | None = None
    cross_kv_cache_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    mamba_ssm_cache_dtype: str | None = None
    use_kv_cache_manager_v2: bool | None = None
    """A prototype in 1.2."""
    max_util_for_resume: Annotated[float, Field(ge=0, le=1)] | None = None
    """The same; of the second manager alone."""

    @field_validator("tokens_per_block")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two")
        return value


class ExtraOptions(StrictOptions):
    """The YAML file: the part of LlmArgs that comparisons need."""

    kv_cache_config: KvCacheConfig
    enable_iter_perf_stats: Literal[True] = True
    """Without them `/metrics` is empty and nothing says how many blocks were reused."""
    enable_iter_req_stats: bool | None = None
    return_perf_metrics: Literal[True] = True
    """Without it there are neither `/prometheus/metrics` nor `/perf_metrics`."""
    perf_metrics_max_requests: Annotated[int, Field(ge=1)] = PERF_METRICS_REQUESTS
    iter_stats_max_iterations: Annotated[int, Field(ge=1)] | None = None
    request_stats_max_iterations: Annotated[int, Field(ge=0)] | None = None
    max_stats_len: Annotated[int, Field(ge=1)] | None = None
    print_iter_log: bool | None = None
    stream_interval: Literal[1] = 1
    """More than 1 bundles tokens into one event and hides the gaps between them."""
    cuda_graph_config: dict[str, object] | None = None
    disable_overlap_scheduler: bool | None = None


class Default(NamedTuple):
    """What one release line does where the YAML says nothing; `None` as value: nobody knows."""

    value: object
    note: str = ""


DEFAULTS: Mapping[str, Mapping[str, Default]] = {
    "1.2": {
        "free_gpu_memory_fraction": Default(0.9, "of the memory that is free after the weights"),
        "secondary_offload_min_priority": Default(
            30, f"the field has none, the eviction policy takes 30; blocks have priority {BLOCK_PRIORITY}"
        ),
        "enable_partial_reuse": Default(True),
        "copy_on_partial_reuse": Default(True),
        "dtype": Default("auto"),
        "max_attention_window": Default(None, "the model's own"),
        "onboard_blocks": Default(True),
        "use_kv_cache_manager_v2": Default(False, "a prototype"),
    },
}
"""By release line. Sources: KvCacheConfig of the 1.2 branch; for the priority, its eviction policy."""


def defaults_left(config: KvCacheConfig, version: str | None, told: Mapping[str, str] | None = None) -> list[str]:
    """One line for each key that is left to the engine, with what it makes of it: by what this very engine `told`
    (reprs, of keys that were not said), else by what is known of the pinned release."""
    known = DEFAULTS.get(".".join((version or "").split(".")[:2]), {})
    told = told or {}
    keys = dict.fromkeys((*DEFAULTS["1.2"], *told))
    return [
        f"kv_cache_config.{key}: {_left(known.get(key), told.get(key), version)}"
        for key in keys
        if getattr(config, key, None) is None
    ]


def _left(default: Default | None, told: str | None, version: str | None) -> str:
    """An engine whose field has no default decides elsewhere, and only a table can know that."""
    if told is not None and (default is None or told != "None"):
        value = _plain(told)
        note = (
            f"{default.note}; " if default is not None and default.note and _plain(default.value) == value else ""
        )
        return f"{value} ({note}told by this engine)"
    if default is None:
        return f"unknown for {version or 'a version that is not pinned'}"
    if default.value is None:
        return default.note
    return _plain(default.value) + (f" ({default.note})" if default.note else "")


def _plain(value: object) -> str:
    """As YAML has it."""
    return str(value).strip("'").lower()


def told_defaults(told: Mapping[str, str]) -> str:
    """In one line, those that make a difference to tiers."""
    return ", ".join(f"{key} {_plain(told[key])}" for key in DEFAULTS["1.2"] if key in told)
