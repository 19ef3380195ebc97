"""TensorRT-LLM: the exact `trtllm-serve` command and its YAML of a profile. Pure; nothing is started.

Options and keys are those of 1.2. Everything about the KV cache is in the YAML, because from release to release
either the YAML or the flags win where both say the same thing. Sizes in bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from kvbench.engine.base import Rendered
from kvbench.engine.models import model_directory
from kvbench.engine.ports import LOOPBACK
from kvbench.engine.trtllm_options import BLOCK_PRIORITY, ExtraOptions, KvCacheConfig, defaults_left
from kvbench.errors import InputError
from kvbench.spec.profile import FlagValue, Profile

__all__ = ["DEFAULT_PORT", "check_profile", "command_of", "extra_options", "ranks", "render", "traps"]

DEFAULT_PORT = 8000
"""trtllm-serve's own; stands in a rendered command for the free port of a launch."""

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

_FROM_TIERS = ("max_tokens", "free_gpu_memory_fraction", "dtype", *OWNED)
CACHE_KEYS = frozenset(KvCacheConfig.model_fields) - set(_FROM_TIERS)
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
        raise InputError(f"{name} is kvbench's to set", key=("engine", "args", key), do=f"use {OWNED[name]}")
    known = CLI_OPTIONS | YAML_KEYS | CACHE_KEYS
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise InputError(
            f"trtllm-serve 1.2 has no option or YAML key {name}",
            key=("engine", "args", key),
            do=f"did you mean {near[0]}?" if near else "see the options of trtllm-serve 1.2",
        )


def ranks(args: Mapping[str, FlagValue]) -> int:
    """Processes that each hold a host pool of their own."""
    count = 1
    for names in (
        ("tensor_parallel_size", "tp_size"),
        ("pipeline_parallel_size", "pp_size"),
        ("context_parallel_size", "cp_size"),
    ):
        written = next((key for key in args if _key(key) in names), None)
        given = 1 if written is None else args[written]
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            key = ("engine", "args", written or names[0])
            raise InputError(f"{given!r} is no number of ranks", key=key, do="use a whole number")
        count *= given
    return count


def extra_options(profile: Profile) -> ExtraOptions:
    """The YAML of a profile as a checked value."""
    args = {_key(key): value for key, value in profile.engine.args.items()}
    device, host = profile.tiers.device, profile.tiers.host
    spread = ranks(profile.engine.args)
    cache: dict[str, object] = {key: value for key, value in args.items() if key in CACHE_KEYS}
    if device.memory_utilization is not None:
        cache["free_gpu_memory_fraction"] = device.memory_utilization
    if device.kv_dtype != "auto":
        cache["dtype"] = device.kv_dtype
    if host is not None:
        cache["host_cache_size"] = host.size // spread
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
        raise InputError(
            f"TensorRT-LLM option {place}: {first['msg']}",
            key=("engine", "args", *first["loc"][:1]),
            do="correct the profile",
        ) from None


def render(profile: Profile, *, port: int, file: Path, told: Mapping[str, str] | None = None) -> Rendered:
    """The command, and the YAML that goes to `file`; `told`: the engine's own defaults, where it was asked."""
    check_profile(profile)
    spec = profile.engine
    options: list[str] = []
    for key, value in spec.args.items():
        name = _key(key)
        if name in CLI_OPTIONS and name != "port" and value is not False:
            options += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    argv = (
        *command_of(profile),
        str(model_directory(spec.model)),
        *("--host", LOOPBACK, "--port", str(port), "--backend", "pytorch"),
        *(("--revision", spec.revision) if spec.revision is not None else ()),
        *options,
        *("--extra_llm_api_options", str(file)),  # the spelling that older and newer releases share
    )
    return Rendered(argv=argv, env=dict(spec.env), files={str(file): _yaml(profile, told)})


def command_of(profile: Profile) -> tuple[str, ...]:
    """Up to the model."""
    spec = profile.engine
    if spec.container is not None and spec.container.entrypoint is not None:
        return tuple(spec.container.entrypoint)
    return tuple(spec.command or ("trtllm-serve",))


def _yaml(profile: Profile, told: Mapping[str, str] | None) -> str:
    """The file, followed by the defaults that it leaves to the engine: they change from release to release."""
    options = extra_options(profile)
    left = defaults_left(options.kv_cache_config, profile.engine.version, told)
    notes = "".join(f"#   {line}\n" for line in left)
    head = f"# Left to TensorRT-LLM {profile.engine.version or '(version not pinned)'}:\n" if left else ""
    return yaml.safe_dump(options.model_dump(exclude_none=True), sort_keys=False) + head + notes


def traps(profile: Profile) -> list[str]:
    """What will not do what it looks like, in sentences."""
    found = []
    host = profile.tiers.host
    config = extra_options(profile).kv_cache_config
    if host is not None and host.min_priority is not None and host.min_priority > BLOCK_PRIORITY:
        found.append(
            f"tiers.host.min_priority is {host.min_priority}, and every block has priority {BLOCK_PRIORITY}, since "
            "the HTTP API carries no other: nothing will ever be stored in the host tier"
        )
    if host is not None and not config.enable_block_reuse:
        found.append("enable_block_reuse is false: without reuse there is nothing that a host tier could give back")
    if config.use_kv_cache_manager_v2:
        found.append(
            "use_kv_cache_manager_v2 is a prototype in 1.2: its sizes and events may not be those known here"
        )
    elif config.max_util_for_resume is not None:
        found.append("max_util_for_resume has no effect without use_kv_cache_manager_v2")
    if profile.engine.version is None:
        found.append("engine.version is not pinned: defaults of the KV cache differ between releases")
    return found
