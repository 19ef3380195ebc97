"""The transfer budget: what restoring takes against computing again, and below which length promotions lose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.doctor.budget import break_even_bytes_per_s, budget_disk, budget_host, recompute
from kvbench.doctor.host import Host
from kvbench.doctor.probe_costs import ProbeCosts, read_probe
from kvbench.errors import InputError
from tests.doctor.good_host import GPU, HOST, KIB, embedded, profile

COSTS = ProbeCosts(
    "costs.json", {"computed": 1e-4, "device": 1e-6, "host": 1e-5, "disk": 2e-5}, {"host": 300, "disk": 900}
)


def probed(**changed: object) -> Host:
    return replace(HOST, probe=replace(COSTS, **changed))  # type: ignore[arg-type]


def test_without_a_probe_the_assumption_is_named() -> None:
    cost = recompute(profile(), HOST)
    assert cost is not None
    assert cost.s_per_token == pytest.approx(2 * 8e9 / (0.4 * 989e12))
    assert cost.how == "assumed: 8 billion parameters a token at 40% of the peak of 1 H100"
    assert not cost.measured


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA H200", 989e12),
        ("something else", 989e12),
    ],
)
def test_the_peak_is_that_of_the_gpu_that_is_here(name: str, peak: float) -> None:
    cost = recompute(profile(), replace(HOST, gpus=(replace(GPU, name=name),)))
    assert cost is not None
    assert cost.s_per_token == pytest.approx(2 * 8e9 / (0.4 * peak))


def test_a_line_through_host_and_disk_gives_the_break_even() -> None:
    """8,192 tokens of 128 KiB are 1 GiB: over 55 GB/s they take 20 ms, and reading them at 6 GB/s takes 179 ms."""
    row = budget_host(profile(), HOST)
    assert "8,192 tokens (1 GiB) come back from host in 20 ms" in row.text
    per_token = 128 * KIB / 55e9
    assert row.value == -(-0.5e-3 / (2 * 8e9 / (0.4 * 989e12) - per_token) // 16) * 16
    assert (row.status, row.unit, row.limit) == ("ok", "tokens", 8192)
    row = budget_disk(profile(), HOST)
    assert "come back from disk in 200 ms" in row.text
    assert f"promotions below {row.value:,} tokens lose" in row.text


def test_a_probe_decides_over_assumptions() -> None:
    row = budget_host(profile(), probed())
    assert (row.status, row.value) == ("ok", 300)
    assert "come back from host in 81.9 ms (measured, costs.json)" in row.text
    assert "computing them takes 819 ms (measured, costs.json)" in row.text
    assert budget_disk(profile(), probed()).value == 900


def test_measured_hits_that_never_pay_fail() -> None:
    row = budget_disk(profile(), probed(break_even_tokens={"host": 300}))
    assert (row.status, row.value) == ("fail", None)
    assert "every promotion loses" in row.text


def test_hits_that_did_not_pay_as_far_as_was_probed_may_do_so_beyond() -> None:
    row = budget_disk(profile(), probed(break_even_tokens={}, longest_tokens=2048))
    assert (row.status, row.value) == ("warn", None)
    assert "none of up to 2,048 tokens, the longest that were probed, came back sooner" in row.text
    assert budget_disk(profile(), probed(break_even_tokens={}, longest_tokens=8192)).status == "fail"


def test_a_break_even_beyond_the_longest_prompt_loses_all_of_them() -> None:
    row = budget_host(profile(), probed(break_even_tokens={"host": 20_000}))
    assert (row.status, row.value) == ("fail", 20_000)


def test_a_tier_that_the_probe_did_not_reach_is_worked_out() -> None:
    row = budget_disk(profile(), probed(cost_per_token_s={"computed": 1e-4}, break_even_tokens={}))
    assert row.status == "ok"
    assert "/s read, then" in row.text


def test_the_slowest_useful_read_is_the_speed_at_which_kv_is_computed() -> None:
    made = break_even_bytes_per_s(profile(), probed())
    assert made is not None
    assert made[0] == pytest.approx(128 * KIB / 1e-4)


def test_a_throttle_of_the_profile_counts() -> None:
    host = replace(HOST, model=replace(HOST.model, kv_bytes_per_token=2048), gpus=())  # type: ignore[type-var]
    free = budget_host(embedded(), host)
    slowed = budget_host(embedded(disk=None), host)
    assert free == slowed
    throttled = embedded().model_copy(deep=True)
    assert throttled.tiers.host is not None
    tiers = throttled.tiers.model_copy(update={"host": throttled.tiers.host.model_copy(update={"throttle": 1e6})})
    row = budget_host(throttled.model_copy(update={"tiers": tiers}), host)
    assert "throttled to 977 KiB/s" in row.text
    assert (free.status, row.status) == ("ok", "warn")


def test_several_gpus_copy_at_once() -> None:
    two = replace(HOST, gpus=(GPU, replace(GPU, index=1)))
    of = profile(args={"tensor-parallel-size": 2})
    assert "102 GiB/s measured to 2 GPUs" in budget_host(of, two).text


def test_a_probe_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    costs = {"computed": 1e-4, "device": None, "host": 1e-5}
    file.write_text(json.dumps({"points": [], "cost_per_token_s": costs, "break_even_tokens": {"host": None}}))
    assert read_probe(file) == ProbeCosts(str(file), {"computed": 1e-4, "host": 1e-5}, {})


def test_how_far_was_probed_is_read(tmp_path: Path) -> None:
    points = [{"source": "host", "prefix_tokens": tokens} for tokens in (1024, 4096, 2048)]
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"points": points, "cost_per_token_s": {"computed": 1e-4}, "break_even_tokens": {}}))
    assert read_probe(file).longest_tokens == 4096


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"cost_per_token_s": {}, "break_even_tokens": {}}', '{"cost_per_token_s": 3}', "\udcff"],
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "costs.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="kvbench probe"):
        read_probe(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        read_probe(tmp_path / "nowhere")
