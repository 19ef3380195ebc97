"""The emulated server, really launched: routes, streams, proof, reset, injected faults, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from kvbench.engine.base import Endpoint, Engine, Launch
from kvbench.engine.create import create_engine, render_profile
from kvbench.engine.emulated.launched import EmulatedEngine
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.ports import check_free
from kvbench.observe.canonical import parse_engine, source_counters
from kvbench.spec.emulation import Noise
from kvbench.spec.profile import Profile
from tests.engine.emulated.build import BLOCK, a_profile
from tests.engine.test_keeper import gone

FAST = {"request": 0.001, "step": 0.001, "sequence": 0.0, "token": 1e-6, "token_context": 0.0, "block_bytes": 4096}


def quick(inject: dict | None = None, *, tiered: bool = False) -> Profile:
    """A profile whose requests take milliseconds."""
    options: dict = {"blocks": 40, "host_blocks": 60, "disk": True} if tiered else {"blocks": 40}
    arm = a_profile(**options)
    engine = arm.engine.model_dump(mode="json", exclude_none=True)
    engine["emulation"] = {"costs": FAST, "noise": Noise(launch=0, level=0, step=0).model_dump()}
    if inject:
        engine["inject"] = inject
    return Profile.model_validate({**arm.model_dump(mode="json", exclude_none=True), "engine": engine})


@contextmanager
def launched(profile: Profile, directory: Path) -> Iterator[tuple[Engine, Endpoint]]:
    disk = plan_disk_directory(directory / "kv", "arm-1") if profile.tiers.disk else None
    engine = create_engine(profile, Launch(directory, directory / "engine-1.log", disk, "arm-1"))
    try:
        yield engine, engine.start(lambda _: None)
    finally:
        engine.stop()


def body(prompt: list[int], count: int = 4, **more: object) -> dict:
    return {"model": "tiny", "prompt": prompt, "max_tokens": count, "return_token_ids": True, **more}


def complete(endpoint: Endpoint, prompt: list[int], count: int = 4) -> dict:
    answer = httpx.post(
        f"{endpoint.base_url}/v1/completions", json=body(prompt, count), trust_env=False, timeout=10
    )
    answer.raise_for_status()
    return answer.json()


def stream(endpoint: Endpoint, prompt: list[int], count: int = 4) -> list[dict | str]:
    """The events of a streamed answer; httpx.RemoteProtocolError when it breaks off."""
    asked = body(prompt, count, stream=True, stream_options={"include_usage": True})
    with httpx.stream(
        "POST", f"{endpoint.base_url}/v1/completions", json=asked, trust_env=False, timeout=10
    ) as got:
        lines = [line.removeprefix("data: ") for line in got.iter_lines() if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def prompt_of(document: int, tokens: int = 320) -> list[int]:
    return [32 + (document * 31 + i * i) % 200 for i in range(tokens)]


def scrape(endpoint: Endpoint) -> str:
    return httpx.get(endpoint.metrics_url, trust_env=False, timeout=10).text


def test_an_emulated_engine_is_launched_proven_used_reset_and_leaves_nothing(tmp_path: Path) -> None:
    """Given all three tiers, when prompts overflow device and host, then they come back from the tiers."""
    with launched(quick(tiered=True), tmp_path) as (engine, endpoint):
        effective = engine.effective()
        assert effective.differences == ()
        assert effective.unknown == ()
        assert (effective.device_blocks, effective.block_tokens, effective.host_bytes) == (40, BLOCK, 60 * 4096)
        assert effective.disk is True
        assert effective.version is not None
        assert effective.version.startswith("emulated")
        first = complete(endpoint, prompt_of(0))
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        for document in range(1, 8):
            complete(endpoint, prompt_of(document))
        again = complete(endpoint, prompt_of(0))
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
        counted = source_counters(parse_engine(scrape(endpoint)))
        assert counted["disk"] > 0
        assert sum(counted.values()) == 9 * 320
        assert engine.reset() == ()
        assert complete(endpoint, prompt_of(0))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        pids = engine.state().pids
        assert pids
    assert all(gone(pid) for pid in pids)
    check_free(int(endpoint.base_url.rpartition(":")[2]))
    assert not (tmp_path / "kv").exists()


def test_streams_look_like_those_of_vllm(tmp_path: Path, shared_dir: Path) -> None:
    """Given a captured stream of vLLM, then every event has its keys, and the end is the same."""
    captured = (shared_dir / "facts/vllm-0.32.0/completion-stream-usage-1.sse").read_text().splitlines()
    expected = [json.loads(line.removeprefix("data: ")) for line in captured if line.startswith("data: {")]
    with launched(quick(), tmp_path) as (_, endpoint):
        events = stream(endpoint, prompt_of(1), 4)
    *tokens, usage, done = events
    assert done == "[DONE]"
    assert [len(event["choices"][0]["token_ids"]) for event in tokens] == [1] * 4
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None, None, None, "length"]
    assert set(tokens[0]) == set(expected[0])
    assert set(tokens[0]["choices"][0]) == set(expected[0]["choices"][0])
    assert set(usage) == set(expected[-1])
    assert set(usage["usage"]) == set(expected[-1]["usage"])


def test_chats_look_like_those_of_vllm(tmp_path: Path, shared_dir: Path) -> None:
    """Given a captured chat of vLLM, then every event has its keys; its prompt is what `/tokenize` says."""
    captured = (shared_dir / "facts/vllm-0.32.0/chat-stream-usage-0.sse").read_text().splitlines()
    expected = [json.loads(line.removeprefix("data: ")) for line in captured if line.startswith("data: {")]
    messages = [{"role": "user", "content": "A" + "word" * 40}]
    asked = {"model": "tiny", "messages": messages, "max_tokens": 4, "return_token_ids": True}
    with (
        launched(quick(), tmp_path) as (_, endpoint),
        httpx.Client(base_url=endpoint.base_url, trust_env=False) as http,
    ):
        tokens = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
        streamed = http.post(
            "/v1/chat/completions", json=asked | {"stream": True, "stream_options": {"include_usage": True}}
        ).text
        whole = http.post("/v1/chat/completions", json=asked).json()
        plain = complete(endpoint, tokens)
        assert http.post("/detokenize", json={"tokens": [65]}).json() == {"prompt": "A"}
        assert http.post("/detokenize", json={"tokens": [300]}).status_code == 400
        assert http.post("/tokenize", json={"prompt": "Ab"}).json() == {"count": 2, "tokens": [65, 98]}
        refused = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": 3}]})
    assert (refused.status_code, "role and a text" in refused.text) == (400, True)
    assert bytes(tokens).decode() == f"<user>{messages[0]['content']}\n<assistant>"
    lines = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    assert len(events) == len(expected) == 6
    for mine, theirs in zip(events, expected, strict=True):
        assert set(mine) == set(theirs)
        assert [set(choice) for choice in mine["choices"]] == [set(choice) for choice in theirs["choices"]]
        assert [set(choice["delta"]) for choice in mine["choices"]] == [
            set(choice["delta"]) for choice in theirs["choices"]
        ]
    ids = [choice["token_ids"][0] for event in events[1:-1] for choice in event["choices"]]
    assert ids == whole["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert whole["usage"]["prompt_tokens"] == len(tokens) == events[-1]["usage"]["prompt_tokens"]


def test_metric_families_are_vllms(tmp_path: Path, shared_dir: Path) -> None:
    captured = (shared_dir / "facts/vllm-0.32.0/tiering-after-load.prom").read_text()
    known = {tuple(line.split()[2:]) for line in captured.splitlines() if line.startswith("# TYPE")}
    with launched(quick(tiered=True), tmp_path) as (_, endpoint):
        complete(endpoint, prompt_of(0))
        mine = {tuple(line.split()[2:]) for line in scrape(endpoint).splitlines() if line.startswith("# TYPE")}
    assert len(mine) > 25
    assert mine <= known, mine - known


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'{"prompt": []}', "prompt"),
        (b'{"prompt": [1, -2]}', "token ids"),
        (b'{"prompt": [1], "max_tokens": 0}', "max_tokens"),
        (b'{"prompt": [1], "max_tokens": 4000}', "maximum context length"),
    ],
)
def test_what_is_no_completion_is_refused_in_vllms_form(
    tmp_path_factory: pytest.TempPathFactory, asked: bytes, says: str, plain_server: Endpoint
) -> None:
    answer = httpx.post(f"{plain_server.base_url}/v1/completions", content=asked, trust_env=False)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_other_routes(plain_server: Endpoint) -> None:
    def get(path: str) -> httpx.Response:
        return httpx.get(plain_server.base_url + path, trust_env=False)

    assert get("/health").status_code == 200
    assert get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert get("/nowhere").status_code == 404
    assert get("/server_info?config_format=json").json()["emulated"] is True


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with launched(quick(), tmp_path_factory.mktemp("plain")) as (_, endpoint):
        yield endpoint


def test_faults_of_single_requests(tmp_path: Path) -> None:
    """Given a share of a half for each, then errors, drops, short and corrupt answers are seen."""
    with launched(quick({"errors": {"share": 0.5}}), tmp_path) as (_, endpoint):
        asked = [
            httpx.post(f"{endpoint.base_url}/v1/completions", json=body(prompt_of(n)), trust_env=False).status_code
            for n in range(8)
        ]
    assert sorted(asked) == [200] * 4 + [500] * 4
    faults = {"dropped_streams": {"share": 0.3}, "short_outputs": {"share": 0.3}}
    with launched(quick(faults), tmp_path) as (_, endpoint):
        ends = [_ending(endpoint, n) for n in range(10)]
    assert ends.count("dropped") == 3
    assert ends.count("stop") in (2, 3)
    assert set(ends) == {"dropped", "stop", "length"}


def _ending(endpoint: Endpoint, number: int) -> str:
    try:
        events = stream(endpoint, prompt_of(number), 8)
    except httpx.RemoteProtocolError:
        return "dropped"
    return str(events[-3]["choices"][0]["finish_reason"])


def refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except httpx.HTTPError:
        return True
    return False


def test_faults_of_the_whole_engine(tmp_path: Path) -> None:
    with launched(quick({"freeze": {"after": 1}}), tmp_path) as (engine, endpoint):
        complete(endpoint, prompt_of(0))
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{endpoint.base_url}/v1/completions", json=body(prompt_of(1)), trust_env=False, timeout=0.5)
        assert httpx.get(f"{endpoint.base_url}/health", trust_env=False).status_code == 200
        assert engine.state().alive
    with launched(quick({"death": {"after": 1}}), tmp_path) as (engine, endpoint):
        complete(endpoint, prompt_of(0))
        assert refused(lambda: complete(endpoint, prompt_of(1)))
    assert not engine.state().alive
    with launched(quick({"restart": {"after": 1, "down": 0.2}, "missing_metrics": {"after": 3}}), tmp_path) as (
        _,
        endpoint,
    ):
        complete(endpoint, prompt_of(0))
        before = parse_engine(scrape(endpoint))
        assert refused(lambda: complete(endpoint, prompt_of(1)))
        while refused(lambda: httpx.get(f"{endpoint.base_url}/health", trust_env=False)):
            pass
        after = parse_engine(scrape(endpoint))
        assert after.total("vllm:prompt_tokens") == 0.0 < (before.total("vllm:prompt_tokens") or 0.0)
        complete(endpoint, prompt_of(1))
        assert httpx.get(endpoint.metrics_url, trust_env=False).status_code == 404


def test_a_server_with_another_configuration_or_with_residue_shows_it(tmp_path: Path) -> None:
    with launched(quick({"other_configuration": True, "residue": True}), tmp_path) as (engine, endpoint):
        assert any("device blocks" in difference for difference in engine.effective().differences)
        assert (parse_engine(scrape(endpoint)).total("vllm:prompt_tokens") or 0) > 0


def test_what_is_rendered_is_what_would_be_started() -> None:
    rendered = render_profile(quick({"stalls": {"every": 1.0, "by": 0.1}}))
    (path,) = rendered.files
    assert str(path) in rendered.argv
    assert json.loads(rendered.files[path])["profile"]["engine"]["inject"]["stalls"] == {"every": 1.0, "by": 0.1}


def test_a_request_may_go_past_the_disk_and_the_engine_tells_where_each_was_served(tmp_path: Path) -> None:
    """Given prompts that have been pushed to disk, when one is sent past it, then it is computed, and another
    without that wish comes from disk."""
    with launched(quick(tiered=True), tmp_path) as (engine, endpoint):
        assert isinstance(engine, EmulatedEngine)
        assert endpoint.past_secondary == {"kv_transfer_params": {"kv_load_tiers": []}}
        for document in range(8):
            complete(endpoint, prompt_of(document))
        for number, more in ((7, endpoint.past_secondary), (8, {})):
            answer = httpx.post(
                f"{endpoint.base_url}/v1/completions",
                json=body(prompt_of(number - 7), **more),
                headers={"X-Request-Id": f"kvbench-3-{number}"},
                trust_env=False,
                timeout=10,
            )
            assert answer.status_code == 200
        told = engine.told_sources(3)
    assert told[7] == {"device": 0, "host": 0, "disk": 0}
    assert told[8]["disk"] > 0
    assert set(told) == {7, 8}, "requests of other rounds are not among them"
