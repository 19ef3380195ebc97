"""A loopback HTTP server with vLLM's surface and scripted faults; no GPU, no model, answers at once.

Outputs are a function of the prompt alone. Counters are kept as vLLM keeps them: every prompt token is computed.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "stand-in"


@dataclass
class Behaviour:
    """What is wrong with the server; the default is nothing."""

    version: str = "0.32.0"
    models: tuple[str, ...] = (MODEL,)
    metrics: bool = True
    completion: str = "stream"  # stream | 500 | 503 | hang | garbage | short | no_done | html
    first_token_s: float = 0.005
    token_s: float = 0.001
    metrics_vanish_after: int | None = None
    corrupt_every: int | None = None
    transfer_config: dict[str, object] | None = None
    """What a launched server was given as `--kv-transfer-config`; told back at `/server_info`."""
    redirect_to: str | None = None
    counters: dict[str, float] = field(default_factory=lambda: {"prompt": 0.0, "generation": 0.0, "finished": 0.0})
    scrapes: int = 0
    completions: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour
    lock = threading.Lock()

    def log_message(self, *_args: object) -> None:
        pass

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        b = self.behaviour
        if b.redirect_to is not None:
            self.send_response(307)
            self.send_header("Location", b.redirect_to + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path == "/health":
            self._send(200, b"")
        elif self.path == "/version":
            self._send(200, json.dumps({"version": b.version}).encode())
        elif self.path == "/v1/models":
            models = [{"id": m, "object": "model", "max_model_len": 16384} for m in b.models]
            self._send(200, json.dumps({"object": "list", "data": models}).encode())
        elif self.path.startswith("/server_info") and b.transfer_config is not None:
            config = {"cache_config": {}, "kv_transfer_config": b.transfer_config}
            self._send(200, json.dumps({"vllm_config": config}).encode())
        elif self.path == "/metrics" and b.metrics:
            b.scrapes += 1
            if b.metrics_vanish_after is not None and b.scrapes > b.metrics_vanish_after:
                self._send(404, b"{}")
            else:
                self._send(200, _exposition(b).encode(), "text/plain; version=0.0.4")
        else:
            self._send(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/completions":
            self._send(404, b'{"detail":"Not Found"}')
            return
        b = self.behaviour
        request = json.loads(body)
        with self.lock:
            b.completions += 1
            number = b.completions
        if b.completion == "500":
            self._send(500, b'{"error":{"message":"EngineCore encountered an issue.","type":"x","code":500}}')
        elif b.completion == "503":
            self._send(503, b"no healthy upstream", "text/plain")
        elif b.completion == "hang":
            time.sleep(30)
        elif b.completion == "html":
            self._send(200, b"<html><script>alert(1)</script></html>", "text/html")
        else:
            self._stream(request, number)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _stream(self, request: dict[str, object], number: int) -> None:
        b = self.behaviour
        prompt = request["prompt"]
        asked = int(str(request["max_tokens"]))
        count = max(1, asked // 2) if b.completion == "short" else asked
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        seed = hashlib.blake2b(json.dumps(prompt).encode()).digest()
        corrupt = b.corrupt_every is not None and number % b.corrupt_every == 0
        time.sleep(b.first_token_s)
        for index in range(count):
            if b.completion == "garbage":
                self._chunk(b"data: \xff\xfe{{{not json\n\n")
                continue
            token = 32 + (seed[index % len(seed)] + (1 if corrupt else 0)) % 200
            choice = {
                "index": 0,
                "text": "x",
                "token_ids": [token],
                "finish_reason": "length" if index == count - 1 else None,
            }
            self._chunk(b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n")
            time.sleep(b.token_s)
        assert isinstance(prompt, list)
        with self.lock:
            b.counters["prompt"] += len(prompt)
            b.counters["generation"] += count
            b.counters["finished"] += 1
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "total_tokens": len(prompt) + count,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        self._chunk(b"data: " + json.dumps({"id": "c", "choices": [], "usage": usage}).encode() + b"\n\n")
        if b.completion != "no_done":
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")


def _exposition(b: Behaviour) -> str:
    """The families that matter, in vLLM's own spelling."""
    labels = f'engine="0",model_name="{b.models[0]}"'
    prompt, generation, finished = b.counters["prompt"], b.counters["generation"], b.counters["finished"]
    counters = [
        ("prompt_tokens", "", prompt),
        ("generation_tokens", "", generation),
        ("prompt_tokens_cached", "", 0.0),
        *(
            ("prompt_tokens_by_source", f',source="{source}"', value)
            for source, value in (
                ("local_compute", prompt),
                ("local_cache_hit", 0.0),
                ("external_kv_transfer", 0.0),
            )
        ),
        *(
            ("prompt_tokens_cached_by_source", f',source="{source}"', 0.0)
            for source in ("device", "host", "disk", "p2p", "external_unspecified")
        ),
        ("request_success", ',finished_reason="length"', finished),
    ]
    lines: list[str] = []
    seen: set[str] = set()
    for name, extra, value in counters:
        if name not in seen:
            lines.append(f"# TYPE vllm:{name}_total counter")
            seen.add(name)
        lines.append(f"vllm:{name}_total{{{labels}{extra}}} {value}")
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        lines += [f"# TYPE vllm:{gauge} gauge", f"vllm:{gauge}{{{labels}}} 0.0"]
    lines += [
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{{labels},block_size="128",num_gpu_blocks="256",cache_dtype="auto",'
        'enable_prefix_caching="True"} 1.0',
    ]
    if b.transfer_config is not None:
        for name in ("kv_offload_blocks", "kv_offload_tiering_blocks"):
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} 1.0"]
    return "\n".join(lines) + "\n"


@contextmanager
def stand_in(
    behaviour: Behaviour | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[str, Behaviour]]:
    """Serve on a loopback port, by default a free one; yields the base URL and the behaviour, which may change."""
    chosen = behaviour or Behaviour()
    handler = type("Handler", (_Handler,), {"behaviour": chosen})
    kind = type("Server", (ThreadingHTTPServer,), {"address_family": socket.AF_INET6}) if ":" in host else None
    server = (kind or ThreadingHTTPServer)((host, port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}", chosen
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
