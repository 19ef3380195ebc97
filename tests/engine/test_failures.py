"""The texts that engines die with are told in plain words. Those of vLLM are as vLLM 0.32.0 writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.failures import KNOWN, explain, plain

WRAPPER = (
    "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}"
)
KV_BLOCKS = (
    "ValueError: To serve at least one request with the model's max seq len (8192), (0.02 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.02 GiB). Based on the available memory, the estimated "
    "maximum model length is 8064. "
)
TEXTS: dict[str, tuple[str, str]] = {
    "OSError: [Errno 98] Address already in use": ("port", "the port is in use"),
    'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]': (
        "container",
        "cannot give the container its GPUs",
    ),
    "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all": (
        "container",
        "cannot give the container its GPUs",
    ),
    'docker: Error response from daemon: invalid mount config for type "bind": bind source path does not exist: '
    "/m": (
        "container",
        "should see /m, and",
    ),
    "docker: Error response from daemon: bind source path does not exist: /of/an/older/client.": (
        "container",
        "should see /of/an/older/client, and",
    ),
    "Error: statfs /m: no such file or directory": ("container", "should see /m, and"),
    "Error: crun: executable file `vllm` not found in $PATH: No such file or directory": (
        "container",
        "the image has no vllm",
    ),
    "[FATAL tini (7)] exec trtllm-serve failed: No such file or directory": (
        "container",
        "the image has no trtllm-serve",
    ),
    "ERROR (catatonit:6): failed to exec pid1: No such file or directory": (
        "container",
        "does not have the command",
    ),
    'docker: Error response from daemon: Conflict. The container name "/kvbench-arm-1" is already in use by '
    'container "075284c2038a". You have to remove (or rename) that container to be able to reuse that name.': (
        "container",
        "the container name kvbench-arm-1 is already in use",
    ),
    'Error: creating container storage: the container name "kvbench-arm-1" is already in use by b33f531b9df9. You '
    "have to remove that container to be able to reuse that name: that name is already in use": (
        "container",
        "the container name kvbench-arm-1 is already in use",
    ),
    "Error: container-init binary not found on the host: stat /usr/libexec/podman/catatonit: no such file or "
    "directory": ("container", "process 1 of a container"),
    "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create "
    'failed: unable to start container process: exec: "/sbin/docker-init": stat /sbin/docker-init: no such file or '
    "directory: unknown": ("container", "process 1 of a container"),
    "Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2": (
        "container",
        "mixture of control groups",
    ),
    'exec: "trtllm-serve": executable file not found in $PATH: unknown': (
        "container",
        "the image has no trtllm-serve",
    ),
    "Exception: CPU Offloading is currently only supported on CUDA-alike and XPU GPUs": ("cpu-offload", "refuses"),
    "Exception: cpu_bytes_to_use must be specified in kv_connector_extra_config": ("host-size", "valid size"),
    "ValueError: invalid literal for int() with base 10: '8GiB'": ("host-size", "valid size"),
    "ValueError: 'block_size'=100 in kv_connector_extra_config must be a multiple of the GPU KV cache block size "
    "(128 tokens). Use 128 instead, or set 'blocks_per_chunk' to express the chunk size in blocks.": (
        "chunk",
        "100 tokens are no multiple of the engine's blocks of 128",
    ),
    "ValueError: Specify only one of 'block_size' or 'blocks_per_chunk' in kv_connector_extra_config.": (
        "chunk",
        "chunk size",
    ),
    "ValueError: 'blocks_per_chunk' must be greater than 0.": ("chunk", "chunk size"),
    "ValueError: Unknown cache policy: 'fifo'. Supported: ['lru', 'arc']. For an out-of-tree policy, also set "
    "cache_policy_module_path.": ("host-policy", "no policy fifo"),
    "ValueError: store_threshold is not supported for TieringOffloadingSpec": ("host-policy", "store_threshold"),
    "ValueError: Unsupported spec type: NopeSpec": ("connector-config", "refuses the configuration"),
    "ValueError: secondary_tiers must be a list of tier configurations": ("connector-config", "refuses"),
    "ValueError: Secondary tier configuration must include 'type'": ("connector-config", "refuses"),
    "ValueError: Unknown secondary tier type: 'disk'. Supported types: ['example', 'fs', 'p2p', 'obj', 'kvcr']. "
    "For an out-of-tree tier, also set 'module_path'.": ("connector-config", "refuses"),
    "TypeError: FileSystemTierManager.__init__() missing 1 required positional argument: 'root_dir'": (
        "connector-config",
        "refuses",
    ),
    "TypeError: FileSystemTierManager.__init__() got an unexpected keyword argument 'max_bytes'": (
        "connector-config",
        "refuses",
    ),
    "NotADirectoryError: [Errno 20] Not a directory: '/srv/kv/file'": ("disk-path", "/srv/kv/file"),
    "ValueError: 'NEAR' is not a valid Locality": ("connector-config", "refuses"),
    "ValueError: backpressure config must include 'backpressure_cls' (e.g. 'EMABackpressureDetector')": (
        "connector-config",
        "refuses",
    ),
    "ValueError: alpha must be in (0, 1], got 2": ("connector-config", "refuses"),
    "ValueError: low_water_s (0.1) must be <= high_water_s (0.001)": ("connector-config", "refuses"),
    "Please specify kv_role when kv_connector is set, supported roles are ('kv_producer', 'kv_both', "
    "'kv_consumer')": ("connector-config", "refuses"),
    "Input should be 'kv_producer', 'kv_both' or 'kv_consumer'": ("connector-config", "refuses"),
    "Input should be 'recompute' or 'fail'": ("connector-config", "refuses"),
    "Unsupported connector type: NopeConnector": ("connector-config", "refuses"),
    "Input should be 'native' or 'lmcache'": ("connector-config", "refuses"),
    KV_BLOCKS: ("blocks", "max-model-len 8192; at most 8064 tokens fit"),
    "RuntimeError: Insufficient space in /dev/shm for CPU KV offload shared region in /dev/shm: 61440 MiB required,"
    " 24017 MiB free. Increase /dev/shm (e.g. --shm-size or --ipc=host).": (
        "shm",
        "61440 MiB needed, 24017 MiB free",
    ),
    "TimeoutError: Timed out waiting for mmap file to reach 8388608 bytes": ("leftover", "in the way"),
    "PermissionError: [Errno 13] Permission denied: '/srv/kv'": ("disk-permission", "may not use /srv/kv"),
    "ModuleNotFoundError: No module named 'lmcache'": ("module", "lmcache"),
    "RuntimeError: Worker failed with error 'No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).'": (
        "block-size",
        "blocks of 16 tokens",
    ),
    "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX.": ("fp8-cpu", "AVX-512"),
    "PackageNotFoundError: No package metadata was found for vllm": ("package", "script does not work"),
    "api_server.py: error: unrecognized arguments: --max-modle-len 5": ("flag", "does not know --max-modle-len 5"),
    "api_server.py: error: argument --kv-cache-dtype: invalid choice: 'int8' (choose from auto, fp8)": (
        "flag",
        "refuses the value of --kv-cache-dtype",
    ),
    "ConnectionError: Cannot reach the LMCache MP server at 'tcp://localhost:8265' within 10.0s.": (
        "lmcache",
        "cannot be reached",
    ),
    "Error: crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied": (
        "container",
        "may not raise the limit MEMLOCK above",
    ),
    "Error: runc: runc create failed: unable to start container process: error during container init: error "
    "setting rlimits for ready process: error setting rlimit type 8: operation not permitted: OCI permission "
    "denied": (
        "container",
        "may not raise the limit type 8 above",
    ),
    "OSError: [Errno 28] No space left on device": ("disk-full", "full"),
    "ValueError: the host tier of 1000 bytes is smaller than one chunk of 262144 bytes: give it at least that": (
        "host-size",
        "1000 bytes is smaller than one chunk of 262144",
    ),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.": ("device-memory", "GPU"),
    "ValueError: Available memory on node 0 (1.0/8.0 GiB) on kv cache allocation is less than requested memory for "
    "kv (4 GiB). Decrease --kv-cache-memory-bytes": ("memory", "too little free memory"),
    "ValueError: Invalid repository ID or local directory specified: '/models/none'.": ("model", "/models/none"),
}


def logged(*lines: str) -> str:
    return "".join(f"2026-11-29T16:03:03.123Z {line}\n" for line in lines)


@pytest.mark.parametrize("text", TEXTS)
def test_a_known_text_is_told_in_plain_words_with_what_to_do(text: str) -> None:
    known, words = TEXTS[text]
    log = logged(
        "(EngineCore pid=7) INFO 11-29 16:00:54 [core.py:133] Initializing a V1 LLM engine",
        "(EngineCore pid=7) ERROR 11-29 16:01:29 [core.py:900] EngineCore failed to start.",
        "(EngineCore pid=7) ERROR 11-29 16:01:29 [core.py:900] Traceback (most recent call last):",
        f"(EngineCore pid=7) ERROR 11-29 16:01:29 [core.py:900] {text}",
        WRAPPER,
    )
    cause = explain(log, exit_code=1)
    assert cause.id == known
    assert words in cause.says
    assert cause.do
    assert not any("See root cause above" in line for line in cause.lines)


def test_an_unknown_death_shows_the_deepest_and_the_last_error_lines() -> None:
    log = logged(
        "(Worker pid=9) WARNING 11-29 16:01:46 [utils.py:597] Failed to do this. Exception: never mind",
        "(EngineCore pid=7) ERROR 11-29 16:01:29 [core.py:900] ValueError: the cause",
        "(EngineCore pid=7) ERROR 11-29 16:01:29 [core.py:900] RuntimeError: in its wrapping",
        WRAPPER,
    )
    cause = explain(log, exit_code=1)
    assert cause.says == "it ended with exit code 1"
    assert cause.lines == ("ValueError: the cause", "RuntimeError: in its wrapping")


def test_without_an_error_line_the_last_lines_are_shown() -> None:
    cause = explain(logged("one", "two", "three", "four", ""), exit_code=-11)
    assert (cause.id, cause.says, cause.lines) == (None, "it was ended by signal 11", ("two", "three", "four"))


def test_a_sigkill_from_outside_is_told_as_what_it_usually_is() -> None:
    assert explain(logged("loading"), exit_code=-9).id == "memory"
    core = explain(logged(WRAPPER.replace("'EngineCore': 1", "'EngineCore': -9")), exit_code=1)
    assert (core.id, "runs out" in core.says) == ("memory", True)
    assert explain(logged(WRAPPER), exit_code=1).id is None


WARNED = (
    "(APIServer pid=8) WARNING 11-30 21:55:06 [system_utils.py:255] Found ulimit of 20000 and failed to "
    "automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors like "
    "`OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n"
)
"""What vLLM 0.32 writes at every start under such a limit."""
WORKER_GONE = (
    "(EngineCore pid=9) ERROR 11-30 21:55:07 [core.py:1510] Exception: WorkerProc initialization failed due to an "
    "exception in a background process. See stack trace for root cause."
)
CORE_GONE = (
    "(APIServer pid=8) WARNING 11-30 21:54:49 [core_client.py:817] [shutdown] MPClient: engine core exited "
    "unexpectedly; starting cleanup"
)


@pytest.mark.parametrize(
    ("gone", "words", "own"),
    [
        (WORKER_GONE, "a worker ended without a word", "(Worker pid=7) ERROR [x.py:1] ValueError: something else"),
        (
            CORE_GONE,
            "its engine core ended without",
            "(EngineCore pid=9) ERROR [x.py:1] ValueError: something else",
        ),
    ],
)
def test_a_process_of_the_engine_that_was_killed_is_told_by_its_silence(gone: str, words: str, own: str) -> None:
    """As the logs of a real engine were whose worker and whose core got SIGKILL."""
    cause = explain(logged(WARNED, gone, WRAPPER), exit_code=1)
    assert (cause.id, words in cause.says) == ("memory", True)
    assert explain(logged(WARNED, own, gone), exit_code=1).id is None, "it told why"


def test_a_warning_of_what_may_come_is_no_cause() -> None:
    assert explain(logged(WARNED), exit_code=1).id is None
    assert explain(logged(WARNED, "OSError: [Errno 24] Too many open files"), exit_code=1).id == "threads"


def test_an_empty_log_is_no_error() -> None:
    assert explain("").lines == ()


@given(st.text())
def test_what_an_engine_wrote_is_shown_without_control_characters(text: str) -> None:
    shown = plain(text)
    assert len(shown) <= 300
    assert not {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))} & set(shown)


def test_colours_are_taken_out() -> None:
    assert plain("\x1b[31mRuntimeError\x1b[0m: no \x07bell") == "RuntimeError: no bell"


def test_every_row_has_words_and_advice() -> None:
    assert all(known.says and known.do for known in KNOWN)
