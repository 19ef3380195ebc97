"""What a profile's engine and tiers cannot be together, known without starting anything.

Each check yields (path of the key at fault, one sentence with the remedy). Sources are the engines' own refusals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvbench.spec.access import header_problems
from kvbench.spec.bounds import MOST_TOKENS
from kvbench.spec.document import KeyPath
from kvbench.spec.secret_names import variable_looks_secret
from kvbench.spec.spelling import did_you_mean

if TYPE_CHECKING:
    from kvbench.spec.profile import DeviceTier, DiskTier, EngineSpec, HostTier, Tiers

__all__ = [
    "BUILT_IN_MODELS",
    "EMBEDDED",
    "LMCACHE_CHUNK_TOKENS",
    "block_tokens",
    "is_weight_offload",
    "misfits",
    "usual_block_tokens",
]

Problem = tuple[KeyPath, str]

EMBEDDED = ("vllm-cpu",)
"""Environments whose engine kvbench installs itself."""
BUILT_IN_MODELS = ("smollm2", "tiny")
EMULATED_ARGS = ("block-size", "max-model-len", "max-num-batched-tokens", "max-num-seqs", "port")
"""All that an emulated engine takes in `args`."""

_OF_VLLM = (
    *("policy", "via", "in_process", "chunk_tokens", "blocks_per_chunk", "store_threshold", "max_tracker_size"),
    *("offload_prompt_only", "canonical_layout"),
)
"""Settings of a host tier that TensorRT-LLM does not have."""

_NOT_EMULATED = {
    "host": ("via", "in_process", "max_tracker_size", "canonical_layout", "min_priority"),
    "disk": ("locality", "backpressure"),
}
"""Settings of real engines that the emulated core has no part for."""
_NOT_OF_LMCACHE = {
    "host": ("store_threshold", "max_tracker_size", "canonical_layout", "throttle"),
    "disk": ("read_threads", "write_threads", "locality", "backpressure", "throttle"),
}
"""Settings of vLLM's own offloading, and of kvbench's stand-in for it."""

LMCACHE_CHUNK_TOKENS = 256
"""What LMCache keeps as one where the profile does not say."""

EMULATED_LONGEST = 16_384
"""Prompt and output tokens of one request where the profile does not say."""
_EMBEDDED_BLOCK_TOKENS = 128  # vLLM's default on its CPU platform
_GPU_BLOCK_TOKENS = 16  # vLLM's default on GPUs
_TRTLLM_BLOCK_TOKENS = 32  # TensorRT-LLM's default for `tokens_per_block`
_LEAST_TOKENS = {"block-size": 1, "tokens_per_block": 1, "max-model-len": -1, "max_seq_len": 1}
"""Of arguments that kvbench reckons with. -1 leaves a length to vLLM, which also takes text such as `32k`."""
_VLLM_KEYS = {
    "model": "engine.model",
    "revision": "engine.revision",
    "served-model-name": "engine.served_name",
    "host": None,
    "kv-transfer-config": "tiers",
    "kv-offloading-size": "tiers.host.size",
    "kv-offloading-backend": "tiers.host.via",
    "gpu-memory-utilization": "tiers.device.memory_utilization",
    "num-gpu-blocks-override": "tiers.device.blocks",
    "kv-cache-dtype": "tiers.device.kv_dtype",
}
_TRTLLM_KEYS = {
    "model": "engine.model",
    "revision": "engine.revision",
    "host": None,
    "free_gpu_memory_fraction": "tiers.device.memory_utilization",
    "kv_cache_free_gpu_memory_fraction": "tiers.device.memory_utilization",
    "config": "tiers",
    "extra_llm_api_options": "tiers",
}
# vLLM 0.32 and 0.33; a version pinned to another release is left to that version's own help.
_VLLM_KV_DTYPES = (
    *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla"),
    *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit"),
    *("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6"),
    *("octave_k3v4", "octave_k3v3", "octave_k3v3_compact"),
)


def is_weight_offload(key: str) -> bool:
    """Whether a key or flag moves model weights to the host (vLLM's `--cpu-offload-gb` and its companions)."""
    name = key.replace("_", "-")
    return name in ("cpu-offload-gb", "cpu-offload-params") or name.startswith("offload-")


WEIGHT_OFFLOAD = (
    "moves model weights to the host, not KV blocks, and slows every step; "
    "it is no tier. Give the KV tier as tiers.host: {size: ...}"
)


def block_tokens(engine: EngineSpec) -> int | None:
    """Tokens in one KV block where the profile settles it."""
    tensorrt = engine.kind == "tensorrt-llm"
    size = engine.args.get("tokens_per_block" if tensorrt else "block-size")
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if tensorrt and size is None:
        return _TRTLLM_BLOCK_TOKENS
    standard = engine.environment in EMBEDDED or engine.kind == "emulated"
    return _EMBEDDED_BLOCK_TOKENS if standard and size is None else None


def usual_block_tokens(engine: EngineSpec) -> int:
    """The same, and where the profile leaves it to the engine, what that takes by itself: vLLM by its platform.

    Built-in models are made for CPUs.
    """
    built_in = engine.model in BUILT_IN_MODELS
    return block_tokens(engine) or (_EMBEDDED_BLOCK_TOKENS if built_in else _GPU_BLOCK_TOKENS)


def misfits(engine: EngineSpec, tiers: Tiers) -> Iterator[Problem]:
    """Everything in a profile that cannot be."""
    if engine.kind == "attached":
        yield from _attached(engine, tiers.disk)
    else:
        yield from _launched(engine)
    yield from _emulated(engine, tiers) if engine.kind == "emulated" else _not_emulated(engine)
    yield from _args(engine)
    yield from _env(engine)
    yield from _device(engine, tiers.device)
    if tiers.host is not None:
        yield from _host(engine, tiers.host)
    if tiers.disk is not None:
        yield from _disk(engine, tiers.host, tiers.disk)
    if tiers.secondary:
        yield from _secondary(engine, tiers)
    if tiers.host is not None and engine.kind == "vllm":
        yield from _lmcache(engine, tiers.host, tiers.disk)


def _attached(engine: EngineSpec, disk: DiskTier | None) -> Iterator[Problem]:
    if engine.base_url is None:
        yield ("engine",), "kind attached needs base_url, such as http://127.0.0.1:8000"
    for key in ("environment", "image", "container", "command", "revision", "args", "env"):
        if getattr(engine, key):
            yield (
                ("engine", key),
                "an attached server is started by somebody else, so this has no effect; leave it out",
            )
    if engine.ready_timeout != type(engine).model_fields["ready_timeout"].default:
        yield (
            ("engine", "ready_timeout"),
            "an attached server must answer already, so nobody waits for it; leave it out",
        )
    if disk is not None and disk.size_limit is not None:
        yield (
            ("tiers", "disk", "size_limit"),
            "the files of an attached server are not watched; limit them where it is started, and leave this out",
        )
    for name, text in header_problems(engine.headers, engine.api_key_env):
        yield ("engine", "headers", name), text
    addresses = [url for url in (engine.base_url, engine.metrics_url) if url is not None]
    if engine.ca_file is not None and not any(url.startswith("https:") for url in addresses):
        yield ("engine", "ca_file"), "vouches for a server at https://, and this one is reached without TLS"


def _launched(engine: EngineSpec) -> Iterator[Problem]:
    for key in ("base_url", "metrics_url", "api_key_env", "headers", "ca_file", "api", "tokenizer"):
        if getattr(engine, key) not in (None, {}, "completions"):
            yield ("engine", key), f"belongs to kind: attached; kind {engine.kind} is started by kvbench"
    given = [key for key in ("environment", "image", "command") if getattr(engine, key) is not None]
    if len(given) > 1:
        yield ("engine", given[1]), f"give one of environment, image and command, not {' and '.join(given)}"
    if engine.image is not None and "@sha256:" not in engine.image:
        yield ("engine", "image"), "name the image by its digest (REF@sha256:...), so that it cannot change"
    if engine.container is not None and engine.image is None:
        yield ("engine", "container"), "says how an image is run; give engine.image too, or leave it out"
    if engine.model in BUILT_IN_MODELS or engine.model.startswith(("/", "./", "../", "~")):
        return
    if engine.revision is None and engine.kind != "emulated":
        guess = did_you_mean(engine.model, BUILT_IN_MODELS, "built-in models")
        yield (
            ("engine", "model"),
            f"{engine.model!r} is neither a path (/..., ./...) nor built in{guess}. "
            "For a hub id add revision:, so that every arm runs the same weights",
        )


def _not_emulated(engine: EngineSpec) -> Iterator[Problem]:
    for key in ("emulation", "inject"):
        if getattr(engine, key) is not None:
            yield ("engine", key), f"belongs to kind: emulated; {engine.kind} is a real engine"


def _emulated(engine: EngineSpec, tiers: Tiers) -> Iterator[Problem]:
    for key in ("environment", "image", "container", "command", "env", "revision"):
        if getattr(engine, key):
            yield ("engine", key), "has no effect on an emulated engine, which is part of kvbench; leave it out"
    for flag, value in engine.args.items():
        path: KeyPath = ("engine", "args", flag)
        if flag not in EMULATED_ARGS:
            yield path, f"an emulated engine has no such argument{did_you_mean(flag, EMULATED_ARGS, 'arguments')}"
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield path, f"expected a whole number from 1, got {value!r}"
    for name, keys in _NOT_EMULATED.items():
        tier = getattr(tiers, name)
        for key in keys if tier is not None else ():
            if getattr(tier, key) != type(tier).model_fields[key].default:
                yield ("tiers", name, key), "has no effect on an emulated engine; leave it out"


def _args(engine: EngineSpec) -> Iterator[Problem]:
    own_keys = {"vllm": _VLLM_KEYS, "tensorrt-llm": _TRTLLM_KEYS}.get(engine.kind, {})
    for flag, value in engine.args.items():
        path: KeyPath = ("engine", "args", flag)
        if is_weight_offload(flag):
            yield path, f"{flag} {WEIGHT_OFFLOAD}"
        elif flag in own_keys:
            profile_key = own_keys[flag]
            yield (
                path,
                f"kvbench sets {flag} itself"
                + (f"; use the profile's {profile_key}" if profile_key else ": engines listen on loopback only"),
            )
        elif flag.replace("_", "-") == "api-key":
            yield path, "secrets do not belong in a profile; a launched engine needs no key on loopback"
        elif flag.replace("_", "-") == "hf-token":
            yield path, "secrets do not belong in a profile, which every run keeps; export HF_TOKEN instead"
        elif flag == "disable-log-stats":
            yield path, "removes every metric of the engine, so nothing could be judged"
        elif value in ("yes", "no", "on", "off"):
            yield path, f"write true or false ({value} is text in YAML 1.2)"
        elif flag in _LEAST_TOKENS and engine.kind != "emulated" and type(value) is int:
            least = _LEAST_TOKENS[flag]
            if not least <= value <= MOST_TOKENS:
                yield path, f"must lie between {least} and {MOST_TOKENS} tokens, got {value}"


def _env(engine: EngineSpec) -> Iterator[Problem]:
    for name in engine.env:
        if variable_looks_secret(name):
            passed = "name it under engine.container.env_from" if engine.image else "engines inherit it"
            yield (
                ("engine", "env", name),
                f"secrets do not belong in a profile, which every run keeps; export {name} instead: {passed}",
            )


def _device(engine: EngineSpec, device: DeviceTier) -> Iterator[Problem]:
    path = ("tiers", "device")
    if device.blocks is not None and device.memory_utilization is not None:
        yield (*path, "blocks"), "give blocks or memory_utilization, not both"
    if engine.kind == "vllm":
        known_version = engine.version is None or engine.version.startswith(("0.32.", "0.33."))
        if known_version and device.kv_dtype not in _VLLM_KV_DTYPES:
            guess = did_you_mean(device.kv_dtype, _VLLM_KV_DTYPES, "types")
            yield (*path, "kv_dtype"), f"vLLM has no KV type {device.kv_dtype!r}{guess}"
    elif engine.kind == "emulated":
        if device.kv_dtype != "auto":
            yield (*path, "kv_dtype"), "has no effect on an emulated engine; set emulation.costs.block_bytes"
        if device.memory_utilization is not None:
            yield (*path, "memory_utilization"), "an emulated engine has no memory to take a share of; give blocks"
    else:
        return
    yield from _too_few_blocks(engine, device)


def _too_few_blocks(engine: EngineSpec, device: DeviceTier) -> Iterator[Problem]:
    size, longest = block_tokens(engine), engine.args.get("max-model-len")
    if longest is None and engine.kind == "emulated":
        longest = EMULATED_LONGEST
    known = isinstance(longest, int) and not isinstance(longest, bool) and longest <= MOST_TOKENS
    if device.blocks is not None and size and isinstance(longest, int) and known:
        # vLLM reserves one block (the null block), so one request of full length needs one more.
        needed = -(-longest // size) + 1
        if device.blocks < needed:
            yield (
                ("tiers", "device", "blocks"),
                f"one request of max-model-len {longest} needs {needed} blocks of {size} tokens",
            )


def _host(engine: EngineSpec, host: HostTier) -> Iterator[Problem]:
    path = ("tiers", "host")
    if host.chunk_tokens is not None and host.blocks_per_chunk is not None:
        yield (*path, "blocks_per_chunk"), "give chunk_tokens or blocks_per_chunk, not both"
    size = block_tokens(engine)
    whole_blocks = engine.kind in ("vllm", "emulated")
    if whole_blocks and host.chunk_tokens is not None and size and host.chunk_tokens % size:
        yield (*path, "chunk_tokens"), f"must be a multiple of the KV block, {size} tokens"
    if engine.kind == "vllm" and host.min_priority is not None:
        yield (*path, "min_priority"), "is a setting of tensorrt-llm; vLLM blocks have no priority"
    if engine.kind == "tensorrt-llm":
        for key in _OF_VLLM:
            if getattr(host, key) != type(host).model_fields[key].default:
                yield (*path, key), "is a setting of vLLM; tensorrt-llm has no such thing"
    if host.throttle is not None:
        yield from _throttle(engine, (*path, "throttle"))


def _disk(engine: EngineSpec, host: HostTier | None, disk: DiskTier) -> Iterator[Problem]:
    path = ("tiers", "disk")
    if engine.kind == "tensorrt-llm":
        yield path, "tensorrt-llm 1.2 has no disk tier; leave it out"
    elif engine.kind != "attached" and host is None:
        yield path, "a disk tier stands behind the host tier: blocks pass through it both ways; add tiers.host"
    if engine.kind == "vllm" and host is not None and host.store_threshold >= 2:
        yield (
            ("tiers", "host", "store_threshold"),
            "vLLM refuses store_threshold (2 or more) together with a disk tier",
        )
    if disk.locality is not None and engine.environment in EMBEDDED and host is not None and host.via != "lmcache":
        yield (*path, "locality"), "has no effect on the embedded engine; leave it out"
    if disk.throttle is not None:
        yield from _throttle(engine, (*path, "throttle"))


def _secondary(engine: EngineSpec, tiers: Tiers) -> Iterator[Problem]:
    path = ("tiers", "secondary")
    if engine.kind != "vllm" or engine.environment in EMBEDDED:
        yield path, "secondary tiers are those of vLLM on GPUs; leave them out"
    elif tiers.host is None:
        yield path, "a secondary tier stands behind the host tier: blocks pass through it; add tiers.host"
    elif tiers.host.via == "lmcache":
        yield path, "LMCache has tiers of its own behind the host; leave them out, or use via: offloading"
    elif tiers.host.store_threshold >= 2:
        yield ("tiers", "host", "store_threshold"), "vLLM refuses store_threshold together with secondary tiers"


def _lmcache(engine: EngineSpec, host: HostTier, disk: DiskTier | None) -> Iterator[Problem]:
    path: KeyPath = ("tiers", "host")
    if host.via != "lmcache":
        if host.in_process:
            yield (*path, "in_process"), "is a form of LMCache; give via: lmcache too, or leave it out"
        return
    tiers: dict[str, HostTier | DiskTier] = {"host": host} | ({} if disk is None else {"disk": disk})
    for name, tier in tiers.items():
        for key in _NOT_OF_LMCACHE[name]:
            if getattr(tier, key) != type(tier).model_fields[key].default:
                yield ("tiers", name, key), "is a setting of vLLM's own offloading, which LMCache does not have"
    yield from _lmcache_chunks(engine, host)
    if host.in_process:
        yield from _lmcache_in_process(engine, host, disk)
    elif not host.offload_prompt_only:
        yield (*path, "offload_prompt_only"), "is known to LMCache inside the engine only (in_process: true)"


def _lmcache_chunks(engine: EngineSpec, host: HostTier) -> Iterator[Problem]:
    size = block_tokens(engine)
    if host.blocks_per_chunk is not None and size is None:
        yield (
            ("tiers", "host", "blocks_per_chunk"),
            "LMCache counts tokens, and the KV block is not known here; give chunk_tokens, or block-size in args",
        )
    left_out = host.chunk_tokens is None and host.blocks_per_chunk is None
    if left_out and size and LMCACHE_CHUNK_TOKENS % size:
        yield ("tiers", "host"), f"LMCache's {LMCACHE_CHUNK_TOKENS} tokens are no multiple of the KV block, {size}"


def _lmcache_in_process(engine: EngineSpec, host: HostTier, disk: DiskTier | None) -> Iterator[Problem]:
    ranks = engine.args.get("tensor-parallel-size", 1)
    if ranks != 1:
        yield (
            ("tiers", "host", "in_process"),
            "whether LMCache's sizes are per rank is not known for this form; use the server (in_process: false)",
        )
    if host.policy != "lru":
        yield ("tiers", "host", "policy"), "LMCache inside the engine is run with lru only"
    if disk is not None and disk.size_limit is None:
        yield ("tiers", "disk"), "LMCache inside the engine keeps no files without a size_limit; give one"


def _throttle(engine: EngineSpec, path: KeyPath) -> Iterator[Problem]:
    if engine.environment not in EMBEDDED:
        yield path, f"works on the embedded engine only (environment: {EMBEDDED[0]})"
