"""A metrics page of kvbench's own, on a free loopback port: for what an engine tells otherwise or elsewhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvbench.engine.ports import LOOPBACK
from kvbench.errors import EngineError

__all__ = ["MetricsPage"]


class _Answers(BaseHTTPRequestHandler):
    server: MetricsPage
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Any path: there is one page."""
        status, text = self.server.page()
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # whoever asked has gone
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class MetricsPage(ThreadingHTTPServer):
    """Serves from its making on until `close`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, page: Callable[[], tuple[int, str]]) -> None:
        """`page` gives status and text; it is called from several threads. EngineError when there is no port."""
        try:
            super().__init__((LOOPBACK, 0), _Answers)
        except OSError as error:
            raise EngineError(f"no loopback port can be opened: {error.strerror}") from None
        self.page = page
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="kvbench-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{LOOPBACK}:{self.server_port}/metrics"

    def close(self) -> None:
        """End it; an answer under way is not waited for."""
        self.shutdown()
        self.server_close()
        self._thread.join()
