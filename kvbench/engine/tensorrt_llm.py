"""TensorRT-LLM: the exact `trtllm-serve` command and its YAML of a profile. Pure; starting it is not supported yet.

Options and keys are those of 1.2. Everything about the KV cache is in the YAML, because from release to release
either the YAML or the flags win where both say the same thing. Sizes in bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvbench.engine.base import Effective, Endpoint, EngineState, Launch, Progress, Rendered
from kvbench.engine.ports import LOOPBACK
from kvbench.errors import InputError, NotSupportedYetError
from kvbench.spec.profile import FlagValue, Profile

__all__ = ["DEFAULT_PORT", "ExtraOptions", "KvCacheConfig", "TensorRtLlmEngine", "extra_options", "render"]

DEFAULT_PORT = 8000
"""trtllm-serve's own; stands in a rendered command for the free port of a launch."""

EVENT_BUFFER = 16384
"""Events kept until they are asked for. In 1.2 they are the only way to see the host tier work, and off at 0."""

PERF_METRICS_REQUESTS = 10000
"""At 0, the engine's default, `/perf_metrics` is always empty."""

CLI_OPTIONS = frozenset(
    {
        "tokenizer",
        "custom_tokenizer",
        "log_level",
        "max_beam_width",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "tensor_parallel_size",
        "tp_size",
        "pipeline_parallel_size",
        "pp_size",
        "context_parallel_size",
        "cp_size",
        "moe_expert_parallel_size",
        "ep_size",
        "moe_cluster_parallel_size",
        "cluster_size",
        "gpus_per_node",
        "num_postprocess_workers",
        "trust_remote_code",
        "reasoning_parser",
        "tool_parser",
        "fail_fast_on_attention_window_too_large",
        "otlp_traces_endpoint",
        "enable_chunked_prefill",
        "media_io_kwargs",
        "custom_module_dirs",
        "chat_template",
        "port",
    }
)
"""Options of `trtllm-serve` 1.2 that a profile may give; the others are kvbench's or for other deployments."""

OWNED = {
    "backend": "nothing: the KV cache options here are the pytorch backend's",
    "kv_cache_config": "tiers",
    "host_cache_size": "tiers.host.size",
    "secondary_offload_min_priority": "tiers.host.min_priority",
    "kv_connector_config": "nothing: connectors are not supported yet",
}
"""Settings that kvbench writes itself → where to say it instead."""


class StrictOptions(BaseModel):
    """The engine refuses unknown keys, so they are refused here first."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KvCacheConfig(StrictOptions):
    """`kv_cache_config` of 1.2; what a profile does not say is left to the engine."""

    enable_block_reuse: bool = True
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    free_gpu_memory_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    host_cache_size: Annotated[int, Field(ge=1)] | None = None
    """Per rank. None: no host tier."""
    secondary_offload_min_priority: Annotated[int, Field(ge=0, le=100)] | None = None
    event_buffer_max_size: Annotated[int, Field(ge=0)] = EVENT_BUFFER
    enable_partial_reuse: bool | None = None
    copy_on_partial_reuse: bool | None = None
    dtype: str | None = None
    tokens_per_block: Annotated[int, Field(ge=1)] = 32
    max_attention_window: list[Annotated[int, Field(ge=1)]] | None = None
    sink_token_length: Annotated[int, Field(ge=0)] | None = None


class ExtraOptions(StrictOptions):
    """The YAML file: the part of LlmArgs that comparisons need."""

    kv_cache_config: KvCacheConfig
    enable_iter_perf_stats: bool = True
    enable_iter_req_stats: bool | None = None
    return_perf_metrics: bool = True
    perf_metrics_max_requests: Annotated[int, Field(ge=1)] = PERF_METRICS_REQUESTS
    iter_stats_max_iterations: Annotated[int, Field(ge=0)] | None = None
    request_stats_max_iterations: Annotated[int, Field(ge=0)] | None = None
    max_stats_len: Annotated[int, Field(ge=1)] | None = None
    print_iter_log: bool | None = None
    stream_interval: Literal[1] = 1
    """More than 1 bundles tokens into one event and hides the gaps between them."""
    cuda_graph_config: dict[str, object] | None = None
    disable_overlap_scheduler: bool | None = None


CACHE_KEYS = frozenset(
    {
        "enable_partial_reuse",
        "copy_on_partial_reuse",
        "tokens_per_block",
        "enable_block_reuse",
        "max_attention_window",
        "sink_token_length",
        "event_buffer_max_size",
    }
)
"""Keys of `kv_cache_config` that a profile may give in `engine.args`."""

YAML_KEYS = frozenset(ExtraOptions.model_fields) - {"kv_cache_config"}


def _key(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def check_profile(profile: Profile) -> None:
    """InputError for flags that 1.2 does not have, or that say what the profile says elsewhere."""
    for key in profile.engine.args:
        _check_key(key)


def _check_key(key: str) -> None:
    name = _key(key)
    if name in OWNED:
        raise InputError(f"engine.args.{key} is kvbench's to set", do=f"use {OWNED[name]}")
    known = CLI_OPTIONS | YAML_KEYS | CACHE_KEYS
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise InputError(
            f"engine.args.{key}: trtllm-serve 1.2 has no option or YAML key {name}",
            do=f"did you mean {near[0]}?" if near else "see the options of trtllm-serve 1.2",
        )


def _ranks(args: Mapping[str, FlagValue]) -> int:
    """Processes that each hold a host pool of their own."""
    ranks = 1
    for names in (
        ("tensor_parallel_size", "tp_size"),
        ("pipeline_parallel_size", "pp_size"),
        ("context_parallel_size", "cp_size"),
    ):
        given = next((args[key] for key in args if _key(key) in names), 1)
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise InputError(f"engine.args.{names[0]}: {given!r} is no number of ranks", do="use a whole number")
        ranks *= given
    return ranks


def extra_options(profile: Profile) -> ExtraOptions:
    """The YAML of a profile as a checked value."""
    args = {_key(key): value for key, value in profile.engine.args.items()}
    device, host = profile.tiers.device, profile.tiers.host
    cache: dict[str, object] = {key: value for key, value in args.items() if key in CACHE_KEYS}
    if device.memory_utilization is not None:
        cache["free_gpu_memory_fraction"] = device.memory_utilization
    if device.kv_dtype != "auto":
        cache["dtype"] = device.kv_dtype
    if host is not None:
        cache["host_cache_size"] = host.size // _ranks(profile.engine.args)
        cache["secondary_offload_min_priority"] = host.min_priority
    try:
        config = KvCacheConfig.model_validate(cache)
        if device.blocks is not None:
            config = config.model_copy(update={"max_tokens": device.blocks * config.tokens_per_block})
        others = {key: value for key, value in args.items() if key in YAML_KEYS}
        return ExtraOptions.model_validate({"kv_cache_config": config, **others})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"TensorRT-LLM option {place}: {first['msg']}", do="correct the profile") from None


def render(profile: Profile, *, port: int, file: Path) -> Rendered:
    """The command, and the YAML that goes to `file`."""
    check_profile(profile)
    spec = profile.engine
    options: list[str] = []
    for key, value in spec.args.items():
        name = _key(key)
        if name in CLI_OPTIONS and name != "port" and value is not False:
            options += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    argv = (
        *(spec.command or ("trtllm-serve",)),
        spec.model,
        *("--host", LOOPBACK, "--port", str(port), "--backend", "pytorch"),
        *(("--revision", spec.revision) if spec.revision is not None else ()),
        *options,
        *("--extra_llm_api_options", str(file)),  # the spelling that older and newer releases share
    )
    text = yaml.safe_dump(extra_options(profile).model_dump(exclude_none=True), sort_keys=False)
    return Rendered(argv=argv, env=dict(spec.env), files={str(file): text})


@dataclass
class TensorRtLlmEngine:
    """Renders only: starting raises NotSupportedYetError."""

    profile: Profile
    launch: Launch
    kind: Literal["tensorrt-llm"] = "tensorrt-llm"

    def _refuse(self) -> NoReturn:
        raise NotSupportedYetError(
            "starting TensorRT-LLM", do="start the rendered command yourself and use kind: attached"
        )

    def start(self, progress: Progress) -> Endpoint:
        """Refused, after the profile has been checked."""
        check_profile(self.profile)
        self._refuse()

    def effective(self) -> Effective:
        """Refused."""
        self._refuse()

    def state(self) -> EngineState:
        """Never started."""
        return EngineState(alive=False, detail="not started")

    def reset(self) -> tuple[str, ...]:
        """Refused."""
        self._refuse()

    def stop(self) -> None:
        """Nothing was started."""
