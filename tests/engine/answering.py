"""A handler of HTTP for servers in tests: it answers with a status and a text, and says nothing on stderr."""

from __future__ import annotations

import http.server


class Answering(http.server.BaseHTTPRequestHandler):
    def answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass
