"""The proof that an environment serves: whatever the engine answers, one sentence says what is wrong with it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvbench.engine.base import Endpoint
from kvbench.engine.serve_check import OUTPUT_TOKENS, PROMPT_TOKENS, _fault
from tests.engine.answering import Answering

RIGHT = f'{{"usage": {{"prompt_tokens": {PROMPT_TOKENS}, "completion_tokens": {OUTPUT_TOKENS}}}}}'


@contextmanager
def server(status: int, body: str | None) -> Iterator[Endpoint]:
    """Answers every completion so; None: it hangs up."""

    class Answers(Answering):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if body is None:
                self.close_connection = True
                return
            self.answer(status, body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{listening.server_port}"
        yield Endpoint(base_url=url, metrics_url=f"{url}/metrics", model="tiny", token_id_range=(32, 255))
        listening.shutdown()


def test_an_engine_that_answers_as_asked_serves() -> None:
    with server(200, RIGHT) as endpoint:
        assert _fault(endpoint) is None


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, "<html>a gateway</html>", "answered HTTP 200: <html>a gateway</html>"),
        (200, "[]", "answered HTTP 200: []"),
        (200, '{"usage": null}', 'answered HTTP 200: {"usage": null}'),
        (200, '{"usage": {}}', 'answered HTTP 200: {"usage": {}}'),
        (200, RIGHT.replace(str(PROMPT_TOKENS), "7"), "answered HTTP 200: "),
        (500, "no luck", "answered HTTP 500: no luck"),
        (500, RIGHT, "answered HTTP 500: "),
        (200, None, "gave no answer: Server disconnected"),
    ],
)
def test_any_other_answer_is_told(status: int, body: str | None, says: str) -> None:
    with server(status, body) as endpoint:
        fault = _fault(endpoint)
    assert fault is not None
    assert fault.startswith(says)
