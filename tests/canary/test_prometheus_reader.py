"""How Prometheus is asked: let in by secrets from the environment, patient with what passes, clear about faults."""

from __future__ import annotations

import base64
import json
import math
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kvbench.canary.prometheus import CHUNK_S
from kvbench.canary.reading import ReadFailed
from kvbench.errors import InputError
from tests.canary.prometheus_stand_in import Body, Server, good, reader, serving
from tests.cli.invoke import kvbench_here
from tests.conftest import REPOSITORY
from tests.missing import need

need("prometheus_api_client")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as told:
        yield told


def test_the_extra_asks_for_a_version_that_has_all_that_is_used() -> None:
    """Time-outs came with 0.5.7 of the client, closing with 0.7.1; checks against a real one find it too late."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    asked = [*project["project"]["optional-dependencies"]["prometheus"], *project["dependency-groups"]["dev"]]
    bounds = [Requirement(line).specifier for line in asked if line.startswith("prometheus-api-client")]
    assert len(bounds) == 2
    for bound in bounds:
        assert "0.7.0" not in bound
        assert version("prometheus-api-client") in bound


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


@pytest.mark.parametrize("status", [429, 503])
def test_does_not_wait_as_long_as_a_server_would_have_it(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", waited.append)
    server.more["Retry-After"] = "3600"
    server.answer = lambda query: good(query) if len(server.queries) > 2 else (status, b"later")
    assert reader(tmp_path, server).now() == 1234.5
    assert sum(waited) <= 2


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            {"warnings": ["store 10.0.0.7: refused"]},
            "store 10.0.0.7: refused",
        ),
        ({"isPartial": True}, "it says isPartial"),
    ],
)
def test_an_answer_in_part_is_no_answer(tmp_path: Path, server: Server, said: dict[str, object], why: str) -> None:
    """As of a Thanos whose store is away, or a Prometheus whose remote is: replicas would be missing in silence."""

    def in_part(query: dict[str, str]) -> tuple[int, Body]:
        status, body = good(query)
        assert isinstance(body, dict)
        return status, {**body, **said}

    server.answer = in_part
    with pytest.raises(ReadFailed, match=f"answered in part only: {why}"):
        reader(tmp_path, server).read(100.0, 160.0, lambda: None)


@pytest.mark.parametrize(
    "said", [{"warnings": []}, {"warnings": None}, {"isPartial": False}, {"infos": ["PromQL info: no counter"]}]
)
def test_a_whole_answer_is_one_whatever_else_it_says(
    tmp_path: Path, server: Server, said: dict[str, object]
) -> None:
    def whole(query: dict[str, str]) -> tuple[int, Body]:
        status, body = good(query)
        assert isinstance(body, dict)
        return status, {**body, **said}

    server.answer = whole
    assert reader(tmp_path, server).read(100.0, 160.0, lambda: None).samples["candidate"]["a:1"]


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, b"", InputError, "wants other credentials"),
        (403, b"", InputError, "does not let these credentials read"),
        (404, b"", InputError, "has no query API at this address"),
        (400, b'{"status":"error","error":"parse error: bad"}', InputError, "parse error: bad"),
        (422, b"", ReadFailed, "answered with status 422"),
        (422, b'{"status":"error","error":"too many samples"}', ReadFailed, "status 422: too many samples"),
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
        (("--every", "1e30"), "--every: must lie between 1us and 365d, got 1e30"),
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
