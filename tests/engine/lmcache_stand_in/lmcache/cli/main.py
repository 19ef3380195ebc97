"""A stand-in for LMCache's server, in the standard library alone; LMC_* in its environment say how it behaves.

Run as `python -m lmcache.cli.main server ...` with the directory above on PYTHONPATH. It answers as 0.5.6 does.
"""

import json
import os
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def status() -> dict:
    adapter = json.loads(option("--l2-adapter", "null"))
    files = [] if adapter is None else [{"type": "FSL2Adapter", "base_path": adapter["base_path"]}]
    size = int(float(option("--l1-size-gb")) * 2**30)
    return {
        "is_healthy": True,
        "chunk_size": int(option("--chunk-size")),
        "storage_manager": {
            "l1_manager": {"memory_configured_bytes": int(os.environ.get("LMC_BYTES", size))},
            "l1_eviction_controller": {"eviction_policy": option("--eviction-policy")},
            "l2_adapters": [] if os.environ.get("LMC_NO_FILES") else files,
        },
        "registered_gpu_ids": [],
        "registered_non_cuda_instance_ids": [] if os.environ.get("LMC_NOBODY") else [4711],
    }


METRICS = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds 5.0
# TYPE lmcache_mp_lookup_hit_tokens_total counter
lmcache_mp_lookup_hit_tokens_total{model_name="m"} 768.0
# TYPE lmcache_mp_lookup_hit_l1_tokens_total counter
lmcache_mp_lookup_hit_l1_tokens_total{model_name="m"} 512.0
# TYPE lmcache_mp_lookup_hit_l2_tokens_total counter
lmcache_mp_lookup_hit_l2_tokens_total{model_name="m"} 256.0
"""


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/healthcheck": '{"status":"healthy"}',
            "/version": '"0.5.6-g3e11e108"',
            "/status": json.dumps(status()),
            "/metrics": METRICS,
        }
        self.answer(answers.get(self.path))

    def do_POST(self) -> None:
        self.answer('{"status":"ok","cleared":{"tier":"l1"}}' if self.path == "/cache/clear" else None)

    def answer(self, text: str | None) -> None:
        body = (text or "").encode()
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    if os.environ.get("LMC_IGNORE_TERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("LMCache server:", " ".join(sys.argv[1:]), flush=True)
    if os.environ.get("LMC_DIE"):
        sys.exit(os.environ["LMC_DIE"])
    lost = os.environ.get("LMC_PORT_LOST_ONCE")
    if lost is not None and not Path(lost).exists():
        Path(lost).touch()
        sys.exit("OSError: [Errno 98] Address already in use")
    time.sleep(float(os.environ.get("LMC_START_AFTER", "0")))
    with socket.create_server(("localhost", int(option("--port")))):
        ThreadingHTTPServer((option("--http-host"), int(option("--http-port"))), Answers).serve_forever()


if __name__ == "__main__":
    main()
