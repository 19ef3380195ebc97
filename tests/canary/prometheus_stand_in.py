"""What answers like a Prometheus, with what a test says, over plain HTTP or TLS; and a reader that asks it."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from kvbench.canary.prometheus import PrometheusReader
from kvbench.spec.canary import load_canary

Body = dict[str, object] | bytes
SERIES = {
    "metric": {"__name__": "up", "instance": "a:1", "job": "vllm"},
    "values": [[100.0, "1"], [115.5, "NaN"], [130.0, "0"]],
}


@dataclass
class Server:
    """Answers with what the test says; keeps what it was asked."""

    answer: Callable[[dict[str, str]], tuple[int, Body]]
    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)
    """Headers of every answer."""


def good(query: dict[str, str]) -> tuple[int, Body]:
    scalar = query["query"] == "time()"
    result: object = [1234.5, "1234.5"] if scalar else [SERIES]
    return 200, {"status": "success", "data": {"resultType": "scalar" if scalar else "matrix", "result": result}}


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    told = Server(good)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            told.headers.append(dict(self.headers))
            told.queries.append(query)
            status, body = told.answer(query)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            for name, value in told.more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        httpd.socket = tls.wrap_socket(httpd.socket, server_side=True)
    told.url = f"http{'s' if tls else ''}://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def reader(folder: Path, server: Server, options: str = "") -> PrometheusReader:
    """Of a canary file in `folder` that says so; `options` are further keys of `prometheus`."""
    file = folder / "canary.yaml"
    file.write_text(
        f'name: c\nprometheus: {{url: "{server.url}"{options}}}\ncandidate: {{match: {{job: vllm}}}}\n'
        "rules: {guardrails: [{id: e, metric: error_rate, max: 1%}]}\n"
    )
    canary = load_canary(file).canary
    assert canary.prometheus is not None
    return PrometheusReader(canary, canary.prometheus, ("up",))
