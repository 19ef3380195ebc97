"""How Prometheus is asked: let in by secrets from the environment, patient with what passes, clear about faults."""

from __future__ import annotations

import base64
import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from kvbench.canary.prometheus import CHUNK_S, PrometheusReader
from kvbench.canary.reading import ReadFailed
from kvbench.errors import InputError
from kvbench.spec.canary import load_canary
from tests.cli.invoke import kvbench_here

pytest.importorskip("prometheus_api_client")

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


def good(query: dict[str, str]) -> tuple[int, Body]:
    scalar = query["query"] == "time()"
    result: object = [1234.5, "1234.5"] if scalar else [SERIES]
    return 200, {"status": "success", "data": {"resultType": "scalar" if scalar else "matrix", "result": result}}


@pytest.fixture
def server() -> Iterator[Server]:
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
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield told
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def reader(folder: Path, server: Server, options: str = "") -> PrometheusReader:
    file = folder / "canary.yaml"
    file.write_text(
        f'name: c\nprometheus: {{url: "{server.url}"{options}}}\ncandidate: {{match: {{job: vllm}}}}\n'
        "rules: {guardrails: [{id: e, metric: error_rate, max: 1%}]}\n"
    )
    canary = load_canary(file).canary
    assert canary.prometheus is not None
    return PrometheusReader(canary, canary.prometheus, ("up",))


def test_reads_raw_samples_by_replica_and_leaves_out_what_is_no_number(tmp_path: Path, server: Server) -> None:
    found = reader(tmp_path, server).read(100.0, 160.25, lambda: None).samples["candidate"]
    ((name, labels), (t_s, values)) = next(iter(found["a:1"].items()))
    assert (name, labels) == ("up", (("job", "vllm"),))
    assert (t_s.tolist(), values.tolist()) == ([100.0, 130.0], [1.0, 0.0])
    assert server.queries[-1] == {"query": '{__name__=~"up",job="vllm"}[60250ms]', "time": "160.250"}


def test_asks_for_a_long_time_in_pieces(tmp_path: Path, server: Server) -> None:
    reader(tmp_path, server).read(0.0, 2.5 * CHUNK_S, lambda: None)
    assert [float(query["time"]) for query in server.queries] == [CHUNK_S, 2 * CHUNK_S, 2.5 * CHUNK_S]


@pytest.mark.parametrize(("since", "until"), [(0.0004, 2000.0009), (7.9996, 1815.5005), (3.0, 1803.0)])
def test_leaves_no_moment_out_between_two_pieces(
    tmp_path: Path, server: Server, since: float, until: float
) -> None:
    reader(tmp_path, server).read(since, until, lambda: None)
    begin = math.floor(1000 * since)
    for query in server.queries:
        end, length = round(1000 * float(query["time"])), int(query["query"].rpartition("[")[2].removesuffix("ms]"))
        assert end - length <= begin
        begin = end
    assert begin == round(1000 * until)


def test_sends_the_token_and_the_tenant(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROM_TOKEN", "t0ken")
    options = ", token_env: PROM_TOKEN, tenant: team-a, tenant_header: THANOS-TENANT"
    assert reader(tmp_path, server, options).now() == 1234.5
    assert server.headers[0]["Authorization"] == "Bearer t0ken"
    assert server.headers[0]["THANOS-TENANT"] == "team-a"


def test_sends_name_and_password(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("U", "me")
    monkeypatch.setenv("P", "pass")
    reader(tmp_path, server, ", username_env: U, password_env: P").now()
    assert server.headers[0]["Authorization"] == "Basic " + base64.b64encode(b"me:pass").decode()


def test_asks_again_when_it_is_told_to_come_later(tmp_path: Path, server: Server) -> None:
    server.answer = lambda query: good(query) if len(server.queries) > 1 else (503, b"later")
    assert reader(tmp_path, server).now() == 1234.5
    assert len(server.queries) == 2


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, b"", InputError, "wants other credentials"),
        (403, b"", InputError, "does not let these credentials read"),
        (404, b"", InputError, "has no query API at this address"),
        (400, b'{"status":"error","error":"parse error: bad"}', InputError, "parse error: bad"),
        (422, b"", ReadFailed, "answered with status 422"),
        (500, b"", ReadFailed, "answered with status 500"),
        (200, b"<html>", ReadFailed, "something else than JSON"),
        (200, b'{"status":"success","data":{"result":[]}}', ReadFailed, "does not tell its time"),
    ],
)
def test_says_what_a_server_answers(
    tmp_path: Path, server: Server, status: int, body: bytes, error: type[Exception], words: str
) -> None:
    server.answer = lambda _: (status, body)
    with pytest.raises(error, match=words):
        reader(tmp_path, server, ", retries: 0").now()


def test_says_when_nobody_is_there(tmp_path: Path) -> None:
    nobody = Server(good, url="http://127.0.0.1:9")
    with pytest.raises(ReadFailed, match=r"cannot be reached: .*refused"):
        reader(tmp_path, nobody, ", retries: 0").now()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--once", "--serve", "9109"), "--once ends after one look"),
        (("--serve", "nowhere"), "expected PORT or HOST:PORT"),
        (("--every", "10ms"), "--every: 10ms is too short"),
        (("--for", "soon"), "--for:"),
        (("--junit", "/no/such/folder/x.xml"), "there is no folder"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    answer = kvbench_here("gate", tmp_path / "none.yaml", *options)
    assert answer.code == 2
    assert words in answer.err


def test_the_command_says_that_there_is_no_file(tmp_path: Path) -> None:
    answer = kvbench_here("gate", tmp_path / "none.yaml", "--once", "--json")
    assert answer.code == 2
    assert "there is no such file" in json.loads(answer.out)["error"]
