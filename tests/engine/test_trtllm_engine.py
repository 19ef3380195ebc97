"""Starting TensorRT-LLM, played by a stand-in with strict models and draining statistics: proof and faults."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvbench.engine.base import Launch
from kvbench.engine.create import create_engine
from kvbench.engine.launched import LaunchedEngine
from kvbench.engine.tensorrt_llm import command_of, render
from kvbench.engine.trtllm_engine import EXTRA_BODY, TensorRtLlmEngine, check_startable
from kvbench.engine.trtllm_reader import RECORDS_NAME
from kvbench.engine.trtllm_schema import check_with_engine
from kvbench.errors import EngineError, InputError
from kvbench.observe.canonical import canonical, parse_engine
from kvbench.observe.scrape import scrape_once
from kvbench.spec.profile import Profile
from tests.engine.test_keeper import gone, wait_for

STAND_IN = Path(__file__).with_name("tensorrt_llm_stand_in.py")


pytestmark = pytest.mark.usefixtures("home")


def a_profile(
    *, args: dict | None = None, engine: dict | None = None, tiers: dict | None = None, **env: str
) -> Profile:
    return Profile.model_validate(
        {
            "name": "arm",
            "engine": {
                "kind": "tensorrt-llm",
                "command": [sys.executable, str(STAND_IN)],
                "version": "1.2.1",
                "model": "/models/m",
                "args": args or {},
                "env": {f"STAND_IN_{key}": value for key, value in env.items()},
                **(engine or {}),
            },
            "tiers": tiers or {"device": {"blocks": 8}},
        }
    )


TIERED = {"device": {"blocks": 8}, "host": {"size": "4MiB"}}  # 16 blocks of the stand-in's


def started(profile: Profile, tmp_path: Path, engines: list[LaunchedEngine]) -> TensorRtLlmEngine:
    directory = tmp_path / "launch"
    directory.mkdir(exist_ok=True)
    engine = create_engine(profile, Launch(directory, directory / "engine-1.log", None, "arm-1"))
    assert isinstance(engine, TensorRtLlmEngine)
    engines.append(engine)
    engine.start(lambda _: None)
    return engine


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TensorRtLlmEngine, Path]]:
    """One server with a host tier for tests that only ask it; and the folder of its launch."""
    folder = tmp_path_factory.mktemp("tiered")
    made: list[TensorRtLlmEngine] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVBENCH_HOME", str(folder / "home"))
        yield started(a_profile(tiers=TIERED), folder, made), folder / "launch"
        made[0].stop()


def endpoint_of(engine: TensorRtLlmEngine) -> tuple[str, str]:
    assert engine._endpoint is not None
    return engine._endpoint.base_url, engine._endpoint.metrics_url


HTTP = httpx.Client(timeout=10, trust_env=False)
"""One for all: making one takes longer than asking."""


def complete(base_url: str, prompt: list[int], **fields: object) -> httpx.Response:
    body = {"model": "/models/m", "prompt": prompt, "max_tokens": 2, "stream": True, **EXTRA_BODY, **fields}
    return HTTP.post(f"{base_url}/v1/completions", json=body)


def sources(metrics_url: str) -> dict[str, float]:
    samples = canonical(parse_engine(HTTP.get(metrics_url).text))
    return {dict(s.labels)["source"]: s.value for s in samples if s.name == "prompt_tokens_by_source"}


def a_prompt(which: int) -> list[int]:
    return [32 + which] * 128  # four blocks; the last is always computed


def test_a_started_server_proves_its_tiers_and_serves_a_page(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    engine = started(a_profile(tiers=TIERED), tmp_path, engines)
    effective = engine.effective()
    assert effective.differences == ()
    assert (effective.version, effective.model, effective.device_blocks) == ("1.2.1", "/models/m", 8)
    assert effective.block_tokens == 32
    assert effective.raw["blocks_by_level"] == [8, 16]
    assert any("16 blocks" in what for what in effective.unknown), "its size in bytes is not told"
    pids = engine.state().pids
    assert len(pids) == 1
    base_url, metrics_url = endpoint_of(engine)
    assert base_url != metrics_url.removesuffix("/metrics"), "only kvbench's reader may ask for the statistics"
    values = scrape_once(metrics_url)
    assert "kv_cache_usage" not in values, "the only request so far was kvbench's own"
    engine.stop()
    assert all(gone(pid) for pid in pids)
    with pytest.raises(httpx.HTTPError):
        HTTP.get(metrics_url)


def test_tokens_are_told_by_the_tier_they_came_from(tiered: tuple[TensorRtLlmEngine, Path]) -> None:
    base_url, metrics_url = endpoint_of(tiered[0])
    for which in range(4):  # three whole blocks each: the first two prompts have to leave the device
        assert complete(base_url, a_prompt(which)).status_code == 200
    assert '"cached_tokens": 96' in complete(base_url, a_prompt(3)).text
    assert '"cached_tokens": 96' in complete(base_url, a_prompt(0)).text
    assert wait_for(lambda: (told := sources(metrics_url))["host"] == told["device"] == 96), sources(metrics_url)
    told = sources(metrics_url)
    assert told["computed"] >= 4 * 128 + 2 * 32
    assert told["elsewhere"] == told["disk"] == 0
    page = HTTP.get(metrics_url).text
    assert "trtllm_request_success_total{" in page, "the server's own page is part of it"


def test_everything_that_was_read_is_kept(tiered: tuple[TensorRtLlmEngine, Path]) -> None:
    base_url, _ = endpoint_of(tiered[0])
    complete(base_url, a_prompt(1))
    kept = tiered[1] / RECORDS_NAME

    def kinds() -> set[str]:
        with gzip.open(kept, "rt") as lines:
            return {json.loads(line)["kind"] for line in lines}

    assert wait_for(lambda: kinds() == {"metrics", "kv_cache_events", "perf_metrics"})


def test_a_baseline_that_gets_a_host_tier_by_itself_is_caught(
    tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = started(a_profile(HOST_BY_ITSELF="1"), tmp_path, engines)
    effective = engine.effective()
    assert effective.host_bytes is None
    assert effective.differences == ("the profile has no host tier, but the server keeps 64 blocks in host memory",)


def test_a_proven_baseline_has_no_host_tier(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    effective = started(a_profile(), tmp_path, engines).effective()
    assert (effective.host_bytes, effective.disk, effective.differences) == (0, False, ())


def test_the_server_takes_no_field_of_vllms(tiered: tuple[TensorRtLlmEngine, Path]) -> None:
    base_url, _ = endpoint_of(tiered[0])
    assert complete(base_url, a_prompt(1), return_token_ids=True).status_code == 400
    assert complete(base_url, a_prompt(1)).status_code == 200


def test_a_server_that_is_healthy_and_refuses_every_request_is_named(
    tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    with pytest.raises(EngineError, match="refuses a request of 16 tokens with 503"):
        started(a_profile(COMPLETIONS="503"), tmp_path, engines)


def test_a_start_that_dies_says_why(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB"
    with pytest.raises(EngineError, match="out of memory"):
        started(a_profile(DIE=words), tmp_path, engines)


def test_a_server_of_another_version_is_an_error(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    with pytest.raises(EngineError, match=r"pins version 1\.2\.1, and the server that runs is 1\.3\.0"):
        started(a_profile(VERSION="1.3.0"), tmp_path, engines)


def test_a_command_that_is_not_here_is_told_before_anything_starts() -> None:
    with pytest.raises(InputError, match="trtllm-serve-9 cannot be found"):
        check_startable(a_profile(engine={"command": ["trtllm-serve-9"]}), lambda _: None)


FAKE = """
from pydantic import BaseModel, ConfigDict


class KvCacheConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    host_cache_size: int | None = None
    event_buffer_max_size: int = 0
    tokens_per_block: int = 32
    secondary_offload_min_priority: int | None = 35


class TorchLlmArgs(BaseModel):
    enable_iter_perf_stats: bool = False
    return_perf_metrics: bool = False
    perf_metrics_max_requests: int = 0
    stream_interval: int = 1
"""
"""A TensorRT-LLM that can be imported, with models of its own."""


def with_package(tmp_path: Path, text: str = FAKE) -> dict:
    package = tmp_path / "site" / "tensorrt_llm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "llmapi.py").write_text(text)
    return {"env": {"PYTHONPATH": str(tmp_path / "site")}}


def test_the_engines_own_models_read_the_yaml_where_they_can_be_imported(tmp_path: Path) -> None:
    said: list[str] = []
    profile = a_profile(engine=with_package(tmp_path))
    command = command_of(profile)
    (text,) = render(profile, port=1, file=Path("f")).files.values()
    for _ in range(2):
        defaults = check_with_engine(profile, text, command, None, said.append)
        assert defaults == {"secondary_offload_min_priority": "35"}, "the default is the engine's, not assumed"
    assert len(said) == 1, "asked once"


def test_defaults_that_the_engines_own_models_tell_are_shown_written_and_kept(
    tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    said: list[str] = []
    engine = create_engine(
        a_profile(engine=with_package(tmp_path)), Launch(tmp_path, tmp_path / "engine-1.log", None, "arm-1")
    )
    assert isinstance(engine, TensorRtLlmEngine)
    engines.append(engine)
    engine.start(said.append)
    assert "arm: left to TensorRT-LLM, by its own word: secondary_offload_min_priority 35" in said
    line = "kv_cache_config.secondary_offload_min_priority: 35 (told by this engine)"
    assert f"#   {line}\n" in (tmp_path / "trtllm.yaml").read_text()
    raw = engine.effective().raw
    assert raw["defaults_told"] == {"secondary_offload_min_priority": "35"}
    left = raw["defaults_left"]
    assert isinstance(left, list)
    assert line in left
    assert "kv_cache_config.onboard_blocks: true" in left, "not told, so it is what 1.2 is known for"


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        ({"blocks": 8, "kv_dtype": "fp8"}, {"kv_dtype"}),
        ({"memory_utilization": 0.5}, {"memory_utilization"}),
        ({"blocks": 8}, set()),
    ],
)
def test_what_was_asked_for_and_is_told_by_no_server_is_unknown(
    device: dict, asked: set[str], tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    effective = started(a_profile(tiers={"device": device}), tmp_path, engines).effective()
    assert (effective.kv_dtype, effective.prefix_caching, effective.differences) == (None, None, ())
    assert set(effective.unknown) & {"kv_dtype", "memory_utilization"} == asked
    assert "whether the device keeps prefixes" in effective.unknown


def test_after_an_upgrade_its_models_read_the_yaml_again(tmp_path: Path) -> None:
    said: list[str] = []
    profile = a_profile(engine=with_package(tmp_path))
    (text,) = render(profile, port=1, file=Path("f")).files.values()
    information = tmp_path / "site" / "tensorrt_llm-1.2.1.dist-info"
    information.mkdir()
    check_with_engine(profile, text, command_of(profile), None, said.append)
    information.rename(information.with_name("tensorrt_llm-1.3.0.dist-info"))
    (tmp_path / "site" / "tensorrt_llm" / "llmapi.py").write_text(FAKE.replace("= 35", "= 100"))
    defaults = check_with_engine(profile, text, command_of(profile), None, said.append)
    assert defaults == {"secondary_offload_min_priority": "100"}
    assert len(said) == 2


def test_a_yaml_that_the_engines_own_models_refuse_is_told_before_anything_starts(tmp_path: Path) -> None:
    engine = with_package(tmp_path, FAKE.replace("host_cache_size", "host_cache_bytes"))
    with pytest.raises(InputError, match="TensorRT-LLM refuses its YAML"):
        check_startable(a_profile(engine=engine), lambda _: None)
    fewer = with_package(tmp_path / "other", FAKE.replace("stream_interval", "streaming"))
    with pytest.raises(InputError, match="it has no stream_interval"):
        check_startable(a_profile(engine=fewer), lambda _: None)


def test_a_page_without_its_server_is_the_servers_fault(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    engine = started(a_profile(), tmp_path, engines)
    _, metrics_url = endpoint_of(engine)
    assert engine._process is not None
    engine._process.stop()
    assert HTTP.get(metrics_url).status_code == 503
