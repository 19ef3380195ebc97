"""A running server is probed, and what cannot be seen stays unknown."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbench.engine.attached import AttachedEngine
from kvbench.engine.base import Launch
from kvbench.engine.ports import free_port
from kvbench.errors import EngineError, InputError
from kvbench.spec.profile import Profile
from tests.engine.answering import Answering
from tests.standin.server import Behaviour, stand_in

VLLM_METRICS = """# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="True",num_gpu_blocks="66"} 1.0
# TYPE vllm:external_prefix_cache_queries counter
vllm:external_prefix_cache_queries_total{engine="0"} 0.0
"""


class Server:
    """A server whose answers a test sets."""

    def __init__(self) -> None:
        model = {"id": "tiny", "owned_by": "vllm", "max_model_len": 8192}
        self.get: dict[str, tuple[int, str]] = {
            "/health": (200, ""),
            "/version": (200, '{"version": "0.32.0"}'),
            "/v1/models": (200, json.dumps({"data": [model]})),
            "/metrics": (200, VLLM_METRICS),
        }
        self.post: dict[str, tuple[int, str]] = {}
        self.seen: list[tuple[str, str | None]] = []
        answers = self

        class Handler(Answering):
            def do_GET(self) -> None:
                self._answer(answers.get)

            def do_POST(self) -> None:
                self._answer(answers.post)

            def _answer(self, table: dict[str, tuple[int, str]]) -> None:
                answers.seen.append((self.path, self.headers["Authorization"]))
                status, body = table.get(self.path.partition("?")[0], (404, '{"detail": "Not Found"}'))
                self.answer(status, body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def attach(url: str, tiers: dict | None = None, **engine: object) -> AttachedEngine:
    spec = {"kind": "attached", "base_url": url, "model": "/models/m", "served_name": "tiny", **engine}
    profile = Profile.model_validate({"name": "arm", "engine": spec, "tiers": tiers or {}})
    return AttachedEngine(profile, Launch(Path(), Path("log"), None, "arm-1"))


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_address_is_taken_with_or_without_v1(server: Server, suffix: str) -> None:
    endpoint = attach(server.url + suffix).start(quiet)
    assert endpoint.base_url == server.url
    assert endpoint.metrics_url == f"{server.url}/metrics"
    assert endpoint.model == "tiny"
    assert endpoint.token_id_range == (32, 255)


def test_vllm_gets_its_own_request_fields_and_others_do_not(server: Server) -> None:
    assert attach(server.url).start(quiet).extra_body == {"ignore_eos": True, "return_token_ids": True}
    server.get["/v1/models"] = (200, '{"data": [{"id": "tiny", "owned_by": "tensorrt_llm"}]}')
    server.get["/metrics"] = (404, "")
    assert attach(server.url).start(quiet).extra_body == {}


def test_a_server_that_takes_no_token_ids_needs_a_way_to_count_those_of_text(server: Server) -> None:
    server.get["/v1/models"] = (200, '{"data": [{"id": "tiny", "owned_by": "someone"}]}')
    server.get["/metrics"] = (404, "")
    server.post["/v1/completions"] = (400, '{"error": "prompt must be a string"}')
    with pytest.raises(InputError, match="takes prompts as text alone") as refused:
        attach(server.url).start(quiet)
    assert "engine.tokenizer" in str(refused.value)
    server.post["/v1/completions"] = (200, "{}")
    assert attach(server.url).start(quiet).words == ()


def test_what_can_be_seen_is_proven_and_the_rest_is_unknown(server: Server) -> None:
    engine = attach(server.url, {"device": {"blocks": 66}})
    engine.start(quiet)
    effective = engine.effective()
    assert (effective.version, effective.model, effective.max_model_len) == ("0.32.0", "tiny", 8192)
    assert (effective.device_blocks, effective.block_tokens, effective.prefix_caching) == (66, 128, True)
    assert effective.host_bytes is None
    assert effective.differences == ()
    assert "that there is no host tier" in effective.unknown


def test_a_server_without_metrics_proves_little_and_differs_in_nothing(server: Server) -> None:
    server.get["/metrics"] = (404, "")
    engine = attach(server.url, {"device": {"blocks": 66}, "host": {"size": "1GiB"}})
    engine.start(quiet)
    effective = engine.effective()
    assert effective.differences == ()
    assert {"the number of device blocks", "the size of the host tier", "whether there is a disk tier"} <= set(
        effective.unknown
    )


def test_a_declared_tier_that_the_metrics_disprove_is_a_difference(server: Server) -> None:
    engine = attach(server.url, {"host": {"size": "1GiB"}})
    engine.start(quiet)
    assert engine.effective().differences == ("the profile has a host tier, but the server has none",)


def test_a_server_that_redirects_is_named_with_where_to() -> None:
    with stand_in() as (there, _), stand_in(Behaviour(redirect_to=there)) as (here, _):
        engine = attach(here, served_name="stand-in")
        with pytest.raises(InputError, match=rf"{here} redirects to {there}\n.*base_url"):
            engine.start(quiet)


def test_a_server_on_ipv6_is_reached() -> None:
    with stand_in(host="::1") as (url, _):
        endpoint = attach(f"{url}/v1", served_name="stand-in").start(quiet)
    assert endpoint.base_url == url
    assert endpoint.metrics_url == f"{url}/metrics"


@pytest.mark.parametrize("metrics_url", ["http://127.0.0.1:1/metrics", "http://no-such-host.invalid/metrics"])
def test_metrics_that_cannot_be_had_leave_things_unknown(server: Server, metrics_url: str) -> None:
    engine = attach(server.url, {"device": {"blocks": 66}}, metrics_url=metrics_url)
    assert engine.start(quiet).metrics_url == metrics_url
    assert "the number of device blocks" in engine.effective().unknown


@pytest.mark.parametrize("key", ["s3cret\r\nX-Evil: 1", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("SERVER_KEY", key)
    with pytest.raises(InputError, match="SERVER_KEY holds what no HTTP header can carry") as caught:
        attach("http://127.0.0.1:1", api_key_env="SERVER_KEY")
    assert key[:6] not in str(caught.value)


def test_nothing_answers(server: Server) -> None:
    with pytest.raises(EngineError, match="nothing answers at"):
        attach(f"http://127.0.0.1:{free_port()}").start(quiet)


def test_another_version_than_pinned(server: Server) -> None:
    with pytest.raises(EngineError, match=r"pins version 0\.31\.0, and the server that runs is 0\.32\.0"):
        attach(server.url, version="0.31.0").start(quiet)
    attach(server.url, version="0.32.0+cpu").start(quiet)


def test_a_model_that_is_not_served_is_told_with_the_nearest_name(server: Server) -> None:
    with pytest.raises(EngineError, match=r"does not serve tinny; it serves tiny\n.*did you mean tiny"):
        attach(server.url, served_name="tinny").start(quiet)


@pytest.mark.parametrize("answer", [(200, "not json"), (200, "[]"), (200, '{"data": 1}'), (500, "")])
def test_garbage_in_place_of_models(server: Server, answer: tuple[int, str]) -> None:
    server.get["/v1/models"] = answer
    with pytest.raises(EngineError, match="does not list its models"):
        attach(server.url).start(quiet)


def test_an_unhealthy_server(server: Server) -> None:
    server.get["/health"] = (503, "")
    with pytest.raises(EngineError, match="/health answers 503"):
        attach(server.url).start(quiet)
    state = attach(server.url).state()
    assert (state.alive, state.detail) == (False, "/health answers 503")


def test_a_key_is_read_from_the_environment_and_sent_as_bearer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", "s3cret")
    endpoint = attach(server.url, api_key_env="SERVER_KEY").start(quiet)
    assert endpoint.access.api_key_env == "SERVER_KEY"
    assert {key for _, key in server.seen} == {"Bearer s3cret"}
    monkeypatch.delenv("SERVER_KEY")
    with pytest.raises(InputError, match="the environment has no SERVER_KEY"):
        attach(server.url, api_key_env="SERVER_KEY")


def test_a_reset_is_asked_for_where_it_is_offered(server: Server) -> None:
    engine = attach(server.url, {"host": {"size": "1GiB"}, "disk": {"path": "/kv"}})
    (remains, disk) = engine.reset()
    assert "does not offer a reset" in remains
    assert disk.startswith("disk: ")
    server.post["/reset_prefix_cache"] = (200, '{"success": true}')
    assert attach(server.url).reset() == ()
    assert server.seen[-1][0] == "/reset_prefix_cache?reset_external=true"


def test_processes_of_a_server_on_this_host_are_found(server: Server) -> None:
    engine = attach(server.url)
    assert engine.state().alive
    assert os.getpid() not in engine.state().pids
    engine.stop()
    assert engine.state().alive, "stopping leaves it running"
