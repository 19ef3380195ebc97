"""A stand-in for an engine, in the standard library alone; STAND_IN_* in its environment say how it behaves.

Run as a script. Takes vLLM's command line, of which it uses --port and --served-model-name.
"""

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HELP = """usage: stand-in [options]

options:
  --enforce-eager, --no-enforce-eager
                        No graphs. (default: False)
  --kv-cache-dtype {auto,fp8}
                        The type of KV blocks.
  --max-model-len MAX_MODEL_LEN
                        The longest request.
  --block-size BLOCK_SIZE
  --disable-uvicorn-access-log
  --dtype {auto,bfloat16,float,float16,float32,half}
  --enable-prompt-tokens-details, --no-enable-prompt-tokens-details
  --gpu-memory-utilization GPU_MEMORY_UTILIZATION
  --host HOST
  --kv-events-config KV_EVENTS_CONFIG
  --kv-offloading-backend {lmcache,native}
  --kv-offloading-size KV_OFFLOADING_SIZE
  --kv-transfer-config KV_TRANSFER_CONFIG
  --model MODEL
  --num-gpu-blocks-override NUM_GPU_BLOCKS_OVERRIDE
  --port PORT           Where to listen.
  --revision REVISION
  --served-model-name SERVED_MODEL_NAME [SERVED_MODEL_NAME ...]
"""


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def setting(name: str) -> str | None:
    return os.environ.get(f"STAND_IN_{name}")


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/version" and setting("DIE_AT_VERSION"):
            print(setting("DIE_AT_VERSION"), file=sys.stderr, flush=True)
            os._exit(1)
        if self.path == "/version" and setting("HANG_AT_VERSION"):
            time.sleep(600)
        status, body = self.server.answers.get(self.path.partition("?")[0], (404, '{"detail": "Not Found"}'))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def answers() -> dict[str, tuple[int, str]]:
    name = option("--served-model-name", "tiny")
    model = {"id": name, "owned_by": "vllm", "max_model_len": 8192}
    return {
        "/health": (int(setting("HEALTH") or 200), ""),
        "/version": (200, setting("VERSION_ANSWER") or json.dumps({"version": setting("VERSION") or "0.32.0"})),
        "/v1/models": (200, json.dumps({"data": [model]})),
        "/metrics": (200, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n"),
    } | ({"/server_info": (200, setting("SERVER_INFO"))} if setting("SERVER_INFO") else {})


def hold_shm(name: str) -> mmap.mmap:
    with Path("/dev/shm", name).open("a+b") as file:
        file.truncate(8192)
        return mmap.mmap(file.fileno(), 8192)


def main() -> None:
    if "--help=all" in sys.argv:
        time.sleep(600 if setting("HELP_HANGS") else 0)
        print(HELP)
        return
    if setting("IGNORE_TERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while setting("WAIT_FOR") and not Path(setting("WAIT_FOR")).exists():
        time.sleep(0.02)
    held = hold_shm(setting("SHM")) if setting("SHM") else None
    if setting("GRANDCHILD"):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("INFO non-default args: none", flush=True)
    if setting("DIE"):
        print(setting("DIE"), file=sys.stderr, flush=True)
        sys.exit(1)
    if setting("HANG"):
        time.sleep(600)
    time.sleep(float(setting("START_AFTER") or 0))
    lost = setting("PORT_LOST_ONCE")
    if lost is not None and not Path(lost).exists():
        Path(lost).touch()
        sys.exit("OSError: [Errno 98] Address already in use")
    server = ThreadingHTTPServer(("127.0.0.1", int(option("--port", "0"))), Answers)
    server.answers = answers()
    print("INFO Application startup complete.", flush=True)
    server.serve_forever()
    del held


if __name__ == "__main__":
    main()
