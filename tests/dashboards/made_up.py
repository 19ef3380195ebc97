"""What no server of these tests tells by itself, over HTTP: a GPU's counters, and failures that did not happen.

vLLM counts failures from the first one on. Pressure of the host is here as well where its kernel does not count it.
Everything else comes from real parts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["FAILURES", "made_up", "made_up_names"]

FAILURES = (
    *("vllm:kv_offload_tiering_promotion_job_failures_total", "vllm:kv_offload_tiering_cascade_job_failures_total"),
    *("vllm:kv_offload_tiering_backpressure_stores_dropped_total", "vllm:kv_offload_allocation_failure_total"),
    "vllm:kv_offload_tiering_promotion_allocation_failures_total",
)
"""Of an engine, from the first one on."""
GPU = ("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES")
PRESSURE = tuple(f"node_pressure_{what}_waiting_seconds_total" for what in ("cpu", "memory", "io"))


def _pressure() -> tuple[str, ...]:
    try:
        Path("/proc/pressure/cpu").read_text()
    except OSError:
        return PRESSURE
    return ()


def made_up_names() -> frozenset[str]:
    """Every series that is made up here."""
    return frozenset({*FAILURES, *GPU, *_pressure()})


def _engine(step: int) -> str:
    labels = 'engine="0",model_name="tiny",tier="1:fs"'
    return "".join(f"{name}{{{labels}}} {step}\n" for name in FAILURES)


def _host(step: int) -> str:
    gpus = "".join(f'{name}{{gpu="0",Hostname="h"}} 1e9\n' for name in GPU)
    return gpus + "".join(f"{name} {step}\n" for name in _pressure())


@contextmanager
def made_up() -> Iterator[int]:
    """Serve /engine and /host on a loopback port; whatever counts goes on."""
    began = time.monotonic()
    pages = {"/engine": _engine, "/host": _host}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            body = page(10 + int(10 * (time.monotonic() - began))).encode() if page else b""
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # a scrape that took too long
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
