"""What vLLM's answers prove, from payloads captured on real servers and from changed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvbench.engine.base import Effective
from kvbench.engine.proof import ask_server, compare, same_version
from kvbench.errors import EngineError
from kvbench.spec.profile import Profile

MIB = 2**20
TIERING: dict[str, Any] = {
    "kv_connector": "OffloadingConnector",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 8 * MIB,
        "secondary_tiers": [{"type": "fs", "root_dir": "/kv"}],
    },
}


@pytest.fixture
def captured(shared_dir: Path) -> Path:
    return shared_dir / "facts" / "vllm-0.32.0"


def effective(
    metrics: str,
    connector: dict[str, Any] | None,
    *,
    tiers: dict[str, Any],
    mapped: int | None = 0,
    version: str = "0.32.0",
    says_configuration: bool = True,
    env: dict[str, str] | None = None,
    attached: bool = False,
) -> Effective:
    """The proof of a profile of 66 blocks by a server with these answers."""
    models = {"data": [{"id": "tiny", "max_model_len": 8192}]}
    answers: dict[str, object] = {
        "/version": {"version": version},
        "/v1/models": models,
        "/server_info": {"vllm_config": {"kv_transfer_config": connector, "cache_config": {}}},
    }

    if not says_configuration:
        answers["/server_info"] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text=metrics)
        return httpx.Response(200, text=json.dumps(answers[request.url.path]))

    there = {
        "kind": "attached",
        "base_url": "http://engine",
        "metrics_url": "http://engine/metrics",
        "model": "tiny",
    }
    launched = {
        "kind": "vllm",
        "command": ["x"],
        "version": "0.32.0",
        "model": "tiny",
        "args": {"max-model-len": 8192},
        "env": env or {},
    }
    engine = there if attached else launched
    profile = Profile.model_validate(
        {"name": "arm", "engine": engine, "tiers": {"device": {"blocks": 66}, **tiers}}
    )
    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://engine") as client:
        seen = ask_server(client, "/metrics")
    seen.host_mapped_bytes = mapped
    return compare(profile, seen)


HOST = {"host": {"size": 8 * MIB}}
DISK = {**HOST, "disk": {"path": "/kv"}}


@pytest.mark.shared
def test_a_baseline_is_proven_to_have_no_tier(captured: Path) -> None:
    proof = effective((captured / "baseline-idle.prom").read_text(), None, tiers={})
    assert (proof.differences, proof.unknown) == ((), ())
    assert (proof.host_bytes, proof.disk, proof.device_blocks, proof.block_tokens) == (0, False, 66, 128)
    assert (proof.kv_dtype, proof.prefix_caching) == ("auto", True)


@pytest.mark.shared
def test_both_tiers_are_proven_with_the_size_asked(captured: Path) -> None:
    metrics = (captured / "tiering-idle.prom").read_text()
    proof = effective(metrics, TIERING, tiers=DISK, mapped=8 * MIB - 262144)
    assert (proof.differences, proof.unknown) == ((), ())
    assert (proof.host_bytes, proof.disk) == (8 * MIB - 262144, True)


@pytest.mark.shared
def test_a_baseline_with_a_tier_is_different_in_every_sign_of_it(captured: Path) -> None:
    proof = effective((captured / "tiering-after-load.prom").read_text(), TIERING, tiers={}, mapped=8 * MIB)
    (host, disk) = proof.differences
    for sign in ("OffloadingConnector", "metrics of KV offload", "looked up elsewhere", "8 MiB of offload memory"):
        assert sign in host
    assert disk == "the profile has no disk tier, but the server has one"
    assert proof.host_bytes is None


@pytest.mark.shared
@pytest.mark.parametrize(
    ("mapped", "configured", "words"),
    [
        (3 * MIB, 8 * MIB, "maps 3 MiB, not 8 MiB as asked"),
        (16 * MIB, 8 * MIB, "maps 16 MiB, not 8 MiB as asked"),
        (8 * MIB, 4 * MIB, "configured with 4194304 bytes, not 8388608 as asked"),
        (0, 8 * MIB, "no process maps its memory"),
    ],
)
def test_a_host_tier_of_another_size_is_a_difference(
    captured: Path, mapped: int, configured: int, words: str
) -> None:
    connector = {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": float(configured)},
    }
    proof = effective((captured / "cpu-tier-idle.prom").read_text(), connector, tiers=HOST, mapped=mapped)
    assert any(words in difference for difference in proof.differences)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("running", "env", "differences"),
    [
        (
            "SimpleCPUOffloadConnector",
            {},
            ("the host tier's connector is SimpleCPUOffloadConnector, not OffloadingConnector as asked",),
        ),
        ("SimpleCPUOffloadConnector", {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}, ()),
        (
            "OffloadingConnector",
            {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"},
            ("the host tier's connector is OffloadingConnector, not SimpleCPUOffloadConnector as asked",),
        ),
        ("OffloadingConnector", {"VLLM_USE_SIMPLE_KV_OFFLOAD": "0"}, ()),
    ],
)
def test_another_connector_than_asked_for_is_a_difference(
    captured: Path, running: str, env: dict[str, str], differences: tuple[str, ...]
) -> None:
    connector = {"kv_connector": running, "kv_connector_extra_config": {"cpu_bytes_to_use": float(8 * MIB)}}
    metrics = (captured / "cpu-tier-idle.prom").read_text()
    assert effective(metrics, connector, tiers=HOST, mapped=8 * MIB, env=env).differences == differences


@pytest.mark.shared
def test_secondary_tiers_that_the_engine_ignored_are_found_out(captured: Path) -> None:
    """Under CPUOffloadingSpec vLLM takes `secondary_tiers` without a word and serves without them."""
    proof = effective((captured / "cpu-tier-idle.prom").read_text(), TIERING, tiers=DISK, mapped=8 * MIB)
    assert proof.differences == ("the profile has a disk tier, but the server has none",)


OBJECTS = {"type": "obj", "bucket": "kv", "endpoint_override": "store:9000"}


def tiering(*types: str) -> dict[str, Any]:
    """A connector with secondary tiers of these types."""
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 8 * MIB,
        "secondary_tiers": [{"type": type_} for type_ in types],
    }
    return {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}


@pytest.mark.shared
@pytest.mark.parametrize(
    ("asked", "types", "disk"),
    [
        ([OBJECTS], ["obj"], True),
        ([{"type": "kvcr"}], ["kvcr"], True),
        ([{"type": "p2p"}], ["p2p"], False),
        ([{"type": "p2p"}, OBJECTS], ["p2p", "obj"], True),
    ],
)
def test_secondary_tiers_without_a_file_tier_are_as_asked(
    captured: Path, asked: list[dict[str, Any]], types: list[str], disk: bool
) -> None:
    metrics = (captured / "tiering-idle.prom").read_text()
    proof = effective(metrics, tiering(*types), tiers={**HOST, "secondary": asked}, mapped=8 * MIB)
    assert (proof.differences, proof.unknown, proof.disk) == ((), (), disk)


@pytest.mark.shared
def test_an_object_store_that_the_server_lacks_is_found_out(captured: Path) -> None:
    metrics = (captured / "tiering-idle.prom").read_text()
    proof = effective(metrics, tiering("p2p"), tiers={**HOST, "secondary": [OBJECTS]}, mapped=8 * MIB)
    assert proof.differences == ("the profile has a disk tier, but the server has none",)


@pytest.mark.shared
def test_metrics_of_secondary_tiers_alone_do_not_tell_which_of_them_there_is(captured: Path) -> None:
    metrics = (captured / "tiering-idle.prom").read_text()
    proof = effective(metrics, None, tiers={**HOST, "secondary": [{"type": "p2p"}]}, says_configuration=False)
    assert proof.differences == ()
    assert "whether there is a disk tier" in proof.unknown
    proof = effective(metrics, None, tiers=HOST, says_configuration=False)
    assert proof.differences == ("the profile has no disk tier, but the server has one",)


@pytest.mark.shared
def test_a_tier_that_is_not_there_is_found_out(captured: Path) -> None:
    proof = effective((captured / "baseline-idle.prom").read_text(), None, tiers=DISK)
    assert "the profile has a host tier, but the server has none" in proof.differences
    assert proof.host_bytes == 0


@pytest.mark.shared
def test_another_number_of_blocks_is_a_difference(captured: Path) -> None:
    metrics = (captured / "baseline-idle.prom").read_text().replace('num_gpu_blocks="66"', 'num_gpu_blocks="65"')
    proof = effective(metrics, None, tiers={})
    assert proof.differences == ("the number of device blocks is 65, not 66 as asked",)


@pytest.mark.shared
def test_a_device_whose_size_nobody_tells_is_unknown_also_where_the_engine_chose_it(captured: Path) -> None:
    metrics = (captured / "baseline-idle.prom").read_text().replace('num_gpu_blocks="66"', 'num_gpu_blocks="None"')
    proof = effective(metrics, None, tiers={"device": {"memory_utilization": 0.9}})
    assert proof.device_blocks is None
    assert "the number of device blocks" in proof.unknown


def test_a_server_of_another_version_is_an_error_of_its_own() -> None:
    with pytest.raises(EngineError, match=r"pins version 0\.32\.0, and the server that runs is 0\.33\.0"):
        effective("", None, tiers={}, version="0.33.0")


def test_garbage_as_metrics_leaves_the_tiers_unknown() -> None:
    proof = effective("<html>", None, tiers={})
    assert proof.differences == ()
    assert "that there is no host tier" in proof.unknown


@pytest.mark.parametrize(
    ("pinned", "running", "same"),
    [("0.32.0", "0.32.0", True), ("0.32.0", "0.32.0+cpu", True), ("0.32.0", "0.32.1", False)],
)
def test_a_build_label_is_no_other_version(pinned: str, running: str, same: bool) -> None:
    assert same_version(pinned, running) is same


LMCACHE = {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": {"lmcache.mp.port": 5555}}
SIMPLE = {"kv_connector": "SimpleCPUOffloadConnector", "kv_connector_extra_config": {}}
SIMPLE_METRICS = "# TYPE vllm:simple_kv_offload_stores counter\nvllm:simple_kv_offload_stores_total 1.0\n"
SIZE, HAS_DISK = "the size of the host tier", "whether there is a disk tier"


@pytest.mark.shared
@pytest.mark.parametrize("says_configuration", [True, False])
def test_of_a_running_lmcache_what_vllm_does_not_tell_is_unknown(captured: Path, says_configuration: bool) -> None:
    metrics = (captured / "baseline-idle.prom").read_text()
    tiers = {"host": {"size": 8 * MIB, "via": "lmcache"}, "disk": {"path": "/kv"}}
    proof = effective(
        metrics, LMCACHE, tiers=tiers, attached=True, mapped=None, says_configuration=says_configuration
    )
    assert proof.differences == ()
    assert {SIZE, HAS_DISK} <= set(proof.unknown)
    assert (proof.host_bytes, proof.disk) == (None, None)


@pytest.mark.shared
def test_a_running_server_with_another_connector_than_lmcaches_is_a_difference(captured: Path) -> None:
    metrics = (captured / "cpu-tier-idle.prom").read_text()
    tiers = {"host": {"size": 8 * MIB, "via": "lmcache"}}
    (difference,) = effective(metrics, TIERING, tiers=tiers, attached=True, mapped=None).differences
    assert "OffloadingConnector, not LMCacheMPConnector or LMCacheConnectorV1" in difference


@pytest.mark.shared
def test_a_running_server_may_have_vllms_other_connector(captured: Path) -> None:
    metrics = (captured / "baseline-idle.prom").read_text() + SIMPLE_METRICS
    silent = effective(metrics, None, tiers=DISK, attached=True, mapped=None, says_configuration=False)
    assert silent.differences == ()
    assert {SIZE, HAS_DISK} <= set(silent.unknown)
    told = effective(metrics, {**SIMPLE, "kv_connector_extra_config": {"cpu_bytes_to_use": 8 * MIB}},
                     tiers=DISK, attached=True, mapped=None)  # fmt: skip
    assert told.differences == ()


@pytest.mark.parametrize("tiers", [{}, HOST, DISK], ids=["none", "host", "disk"])
def test_a_page_that_is_not_vllms_tells_nothing_of_tiers(tiers: dict[str, Any]) -> None:
    page = "# TYPE trtllm_request_success counter\ntrtllm_request_success_total 1.0\n"
    proof = effective(page, None, tiers=tiers, attached=True, mapped=None, says_configuration=False)
    assert proof.differences == ()
    assert (proof.host_bytes, proof.disk) == (None, None)
