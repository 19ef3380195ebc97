"""Headers, authority and route of attached servers: what a profile may say of them, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.spec.access import FromEnvironment
from kvbench.spec.crosscheck import named_differences
from kvbench.spec.loading import load_profile
from kvbench.spec.profile import Profile

SECRET = "name the variable: {env: NAME}"


def write(folder: Path, *lines: str, kind: str = "attached", url: str = "http://h:8000") -> Path:
    engine = [f"kind: {kind}", "model: tiny", *([f"base_url: '{url}'"] if kind == "attached" else []), *lines]
    file = folder / "p.yaml"
    file.write_text("name: p\nengine:\n" + "".join(f"  {line}\n" for line in engine), encoding="utf-8")
    return file


def test_headers_are_text_or_the_name_of_a_variable(tmp_path: Path) -> None:
    headers = "headers: {X-Tenant: team-a, X-Api-Version: 2, X-Gateway-Token: {env: GATEWAY_TOKEN}}"
    engine = load_profile(write(tmp_path, headers)).engine
    assert engine.headers == {
        "X-Tenant": "team-a",
        "X-Api-Version": "2",
        "X-Gateway-Token": FromEnvironment(env="GATEWAY_TOKEN"),
    }
    assert engine.access.headers == engine.headers
    stored = load_profile(tmp_path / "p.yaml").model_dump(mode="json")
    assert Profile.model_validate(stored).engine == engine


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("'X Tenant': a", "is no name of an HTTP header"),
        ("'X-Tenant:': a", "is no name of an HTTP header"),
        ("'': a", "is no name of an HTTP header"),
        ("Schlüssel: a", "is no name of an HTTP header"),
        *(
            (f"{name}: a", "is set by kvbench itself")
            for name in ("Host", "content-length", "Content-Type", "Accept")
        ),
        *((f"{name}: a", "is set by kvbench itself") for name in ("Accept-Encoding", "User-Agent", "x-request-id")),
        *((f"{name}: {{env: A}}", "is set by kvbench itself") for name in ("Transfer-Encoding", "CONNECTION")),
        ("Authorization: Basic-abc", SECRET),
        ("Proxy-Authorization: abc", SECRET),
        ("X-Gateway-Token: abc", SECRET),
        ("x_api_key: abc", SECRET),
        ("apikey: abc", SECRET),
        ("Ocp-Apim-Subscription-Key: abc", SECRET),
        ("Cookie: a=b", SECRET),
        ("X-Tenant: ''", "expected visible ASCII characters"),
        ("X-Tenant: ' a'", "expected visible ASCII characters"),
        ('X-Tenant: "a\\r\\nX-Evil: 1"', "expected visible ASCII characters"),
        ("X-Tenant: schlüssel", "expected visible ASCII characters"),
        ("X-Tenant: [a]", "expected text, or {env: NAME}"),
        ("X-Tenant: true", "expected text, or {env: NAME}"),
        ("X-Tenant: {file: a}", "expected text, or {env: NAME}"),
        ("X-Tenant: {env: 'sk secret'}", "expected the NAME of an environment variable"),
        ("X-Tenant: {env: A, file: b}", "unknown key"),
    ],
)
def test_what_no_header_can_be_is_refused_with_its_line(tmp_path: Path, header: str, says: str) -> None:
    file = write(tmp_path, f"headers: {{{header}}}")
    with pytest.raises(InputError) as refused:
        load_profile(file)
    assert str(refused.value).startswith(f"{file}:6: engine.headers")
    assert says in str(refused.value)
    for secret in ("abc", "sk secret", "a=b", "Evil"):
        assert secret not in str(refused.value).replace("X-Tenant", "")


def test_a_header_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"headers.x-tenant: is given twice \(X-Tenant\)"):
        load_profile(write(tmp_path, "headers: {X-Tenant: a, x-tenant: b}"))


def test_authorization_comes_of_a_variable_and_of_one_alone(tmp_path: Path) -> None:
    assert load_profile(write(tmp_path, "headers: {Authorization: {env: BASIC}}")).engine.headers
    with pytest.raises(InputError, match="is what api_key_env becomes; give one of the two"):
        load_profile(write(tmp_path, "headers: {Authorization: {env: BASIC}}", "api_key_env: KEY"))


def test_an_authority_is_a_file_beside_the_profile_and_needs_tls(tmp_path: Path) -> None:
    engine = load_profile(write(tmp_path, "ca_file: certs/ca.pem", url="https://h")).engine
    assert engine.ca_file == engine.access.ca_file == tmp_path / "certs/ca.pem"
    scraped = load_profile(write(tmp_path, "ca_file: /ca.pem", "metrics_url: https://h/metrics")).engine
    assert scraped.ca_file == Path("/ca.pem")
    with pytest.raises(InputError, match=r"engine\.ca_file: vouches for a server at https://"):
        load_profile(write(tmp_path, "ca_file: ca.pem"))


@pytest.mark.parametrize("written", ["tok/tokenizer.json", "./tok/tokenizer.json"])
def test_a_tokenizer_is_a_file_beside_the_profile(tmp_path: Path, written: str) -> None:
    assert (
        load_profile(write(tmp_path, f"tokenizer: {written}")).engine.tokenizer == tmp_path / "tok/tokenizer.json"
    )


def test_the_route_is_completions_or_chat(tmp_path: Path) -> None:
    assert load_profile(write(tmp_path)).engine.api == "completions"
    assert load_profile(write(tmp_path, "api: chat")).engine.api == "chat"
    with pytest.raises(InputError, match=r"'chats' is not known here.*chat"):
        load_profile(write(tmp_path, "api: chats"))


@pytest.mark.parametrize("line", ["headers: {X-Tenant: a}", "ca_file: /ca.pem", "api: chat"])
@pytest.mark.parametrize("kind", ["vllm", "tensorrt-llm", "emulated"])
def test_an_engine_that_kvbench_starts_has_none_of_them(tmp_path: Path, kind: str, line: str) -> None:
    with pytest.raises(InputError, match=f"engine.{line.partition(':')[0]}: belongs to kind: attached"):
        load_profile(write(tmp_path, line, kind=kind))


def test_arms_may_be_reached_in_different_ways_but_not_by_different_routes() -> None:
    def arm(**engine: object) -> Profile:
        spec = {"kind": "attached", "model": "m", "base_url": "https://h", **engine}
        return Profile.model_validate({"name": "arm", "engine": spec})

    assert named_differences(arm(headers={"X-Arm": "a"}, ca_file="/ca"), arm(headers={"X-Arm": "b"})) == {}
    assert list(named_differences(arm(), arm(api="chat"))) == ["engine.api"]
