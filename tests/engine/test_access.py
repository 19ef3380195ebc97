"""Headers and TLS on the wire: every client of kvbench brings what the profile says; nothing keeps the secrets."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbench.access import request_headers, trust
from kvbench.engine.attached import AttachedEngine
from kvbench.engine.base import Endpoint, Launch
from kvbench.errors import EngineError, InputError
from kvbench.load.run import run_load
from kvbench.observe.fetch import client, fetch
from kvbench.observe.scrape import scrape_once
from kvbench.probe.sender import Sender
from kvbench.spec.access import Access, FromEnvironment
from kvbench.spec.profile import Profile
from kvbench.workload.storage import write_schedule
from tests.load.play import plan_for, request, schedule
from tests.standin.gateway import Gateway, gateway
from tests.standin.server import MODEL, Behaviour, stand_in

HEADERS = {"X-Tenant": "team-a", "X-Gateway-Token": {"env": "GATEWAY_TOKEN"}}
SECRET = "s3cret-of-the-gateway"
REQUIRED = {"X-Tenant": "team-a", "X-Gateway-Token": SECRET}


@pytest.fixture(params=["http", "https"])
def guarded(
    request: pytest.FixtureRequest, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Gateway, Access]]:
    """A server behind a gateway that asks for both headers, and what gets one through."""
    monkeypatch.setenv("GATEWAY_TOKEN", SECRET)
    tls = certificate if request.param == "https" else None
    with stand_in() as (url, _), gateway(url, requires=REQUIRED, certificate=tls) as made:
        yield made, Access.model_validate({"headers": HEADERS, "ca_file": certificate[1] if tls else None})


def attach(url: str, access: Access, **engine: object) -> AttachedEngine:
    spec = {"kind": "attached", "base_url": url, "model": MODEL, **access.model_dump(exclude_none=True), **engine}
    profile = Profile.model_validate({"name": "arm", "engine": spec})
    return AttachedEngine(profile, Launch(Path(), Path("log"), None, "arm-1"))


def test_the_engine_brings_them_with_every_request(guarded: tuple[Gateway, Access]) -> None:
    made, access = guarded
    engine = attach(made.url, access)
    endpoint = engine.start(lambda line: None)
    assert endpoint.access == access
    assert engine.effective().version == "0.32.0"
    assert engine.state().alive
    engine.reset()
    assert {"/health", "/version", "/v1/models", "/metrics", "/reset_prefix_cache"} <= {p.path for p in made.passed}
    assert all(passed.let_in for passed in made.passed)


def test_the_load_brings_them_and_writes_no_secret(guarded: tuple[Gateway, Access], tmp_path: Path) -> None:
    made, access = guarded
    write_schedule(schedule(*(request(i, i * 0.05) for i in range(3))), tmp_path / "schedule.parquet")
    plan = plan_for(made.url, tmp_path, model=MODEL, access=access)
    assert run_load(plan, on_event=lambda _: None, should_stop=lambda: False).figures["failed"] == 0
    assert [passed.path for passed in made.passed] == ["/v1/completions"] * 3
    assert all(passed.let_in for passed in made.passed)
    assert SECRET not in plan.model_dump_json()
    assert all(SECRET.encode() not in path.read_bytes() for path in tmp_path.iterdir() if path.is_file())


def test_the_probe_and_the_scraper_bring_them(guarded: tuple[Gateway, Access]) -> None:
    made, access = guarded
    endpoint = Endpoint(made.url, f"{made.url}/metrics", MODEL, (32, 255), access)
    sender = Sender(endpoint, seed=1)
    assert sender.probe(1, 64).prompt_tokens == 72
    sender.close()
    assert scrape_once(endpoint.metrics_url, access=access)["prompt_tokens"] == 72
    assert [passed.path for passed in made.passed] == ["/v1/completions", "/metrics"]
    assert all(passed.let_in for passed in made.passed)


def test_without_them_the_gateway_is_named(guarded: tuple[Gateway, Access]) -> None:
    made, access = guarded
    with pytest.raises(InputError, match=r"refuses the request \(401\)\n.*api_key_env, or in headers"):
        attach(made.url, access.model_copy(update={"headers": {}})).start(lambda line: None)


def test_a_server_that_nobody_vouches_for_is_told_with_the_key(certificate: tuple[Path, Path]) -> None:
    with (
        stand_in() as (url, _),
        gateway(url, certificate=certificate) as made,
        pytest.raises(EngineError, match=r"CERTIFICATE_VERIFY_FAILED.*\n.*engine\.ca_file"),
    ):
        attach(made.url, Access()).start(lambda line: None)
    assert made.passed == []


def test_an_authority_vouches_for_its_own_servers_alone(certificate: tuple[Path, Path]) -> None:
    context = trust(Access(ca_file=certificate[1]))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_file_that_holds_no_authority_is_named_with_its_key(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(
        InputError, match=rf"engine\.ca_file: {file} holds no certificate that can be read: .*\n.*PEM"
    ):
        trust(Access(ca_file=file))
    with pytest.raises(InputError, match=r"engine\.ca_file: "):
        attach("https://127.0.0.1:1", Access(ca_file=file))
    with pytest.raises(InputError, match=r"engine\.ca_file: "):
        client(1.0, Access(ca_file=file))


@pytest.mark.parametrize("value", [None, "", "a\r\nX-Evil: 1", "schlüssel", " a", "a\n"])
@pytest.mark.parametrize("key", ["headers", "api_key_env"])
def test_a_variable_that_is_not_there_or_cannot_be_sent_is_one_error_without_its_value(
    monkeypatch: pytest.MonkeyPatch, value: str | None, key: str
) -> None:
    monkeypatch.delenv("A_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("A_TOKEN", value)
    headers = {"X-Token": FromEnvironment(env="A_TOKEN")}
    access = Access(headers=headers) if key == "headers" else Access(api_key_env="A_TOKEN")
    says = "the environment has no A_TOKEN" if not value else "A_TOKEN holds what no HTTP header can carry"
    with pytest.raises(InputError, match=says) as refused:
        request_headers(access)
    assert str(refused.value).startswith("engine.headers.X-Token: " if key == "headers" else "engine.api_key_env: ")
    assert "Evil" not in str(refused.value)
    assert "schlüssel" not in str(refused.value)


def test_another_authorization_than_bearer_is_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASIC", "Basic dXNlcjpwdw==")
    access = Access(headers={"Authorization": FromEnvironment(env="BASIC")})
    assert request_headers(access) == {"Authorization": "Basic dXNlcjpwdw=="}


def test_where_a_metrics_page_is_moved_to_another_server_headers_stay_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a page that redirects to another port, then the secret is not told there."""
    monkeypatch.setenv("GATEWAY_TOKEN", SECRET)
    access = Access.model_validate({"headers": HEADERS})
    with (
        stand_in() as (far, _),
        gateway(far) as there,
        stand_in(Behaviour(redirect_to=there.url)) as (near, _),
        gateway(near) as here,
        client(5.0, access) as http,
    ):
        assert "prompt_tokens" in fetch(http, f"{here.url}/metrics", 5.0).text
    assert [passed.headers.get("x-gateway-token") for passed in here.passed] == [SECRET]
    assert [passed.headers.get("x-gateway-token") for passed in there.passed] == [None]
