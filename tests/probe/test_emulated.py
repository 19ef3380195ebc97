"""A whole probe of an emulated engine, whose costs are known: they are found again."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import EngineError
from kvbench.probe import command
from kvbench.probe.command import probe_profile
from kvbench.probe.decode import paces_together
from kvbench.probe.series import LEAST
from kvbench.probe.setting import Options
from kvbench.spec.loading import load_profile
from tests.cli.invoke import kvbench_here

TOKEN_S, LOAD_BLOCK_S, READ_BLOCK_S, TRANSFER_S, BLOCK = 1e-4, 4e-3, 4e-3, 0.02, 128
TRUTH = {
    "computed": TOKEN_S,
    "device": 0.0,
    "host": LOAD_BLOCK_S / BLOCK,
    "disk": (LOAD_BLOCK_S + READ_BLOCK_S) / BLOCK,
}
MACHINE_S = 2e-6
"""A token of a prompt also costs the machine that emulates: JSON, hashing, the way through the loopback."""
EVEN = {
    "host": TRANSFER_S / (TRUTH["computed"] - TRUTH["host"]),
    "disk": 2 * TRANSFER_S / (TRUTH["computed"] - TRUTH["disk"]),
}

LOOSE_LENGTHS, LOOSE_LIMIT_S = (256, 1024), 60.0

PROFILE = f"""
name: known
engine:
  kind: emulated
  model: tiny
  args: {{max-model-len: 2800}}
  emulation:
    costs:
      {{request: 1ms, step: 1ms, sequence: 0, token: {TOKEN_S}, token_context: 0, load_block: {LOAD_BLOCK_S},
       store_block: 1us, read_block: {READ_BLOCK_S}, write_block: 1us, transfer: {TRANSFER_S},
       disk_transfer: {TRANSFER_S}, lookup: 0, block_bytes: 4KiB}}
    noise: {{launch: 0, level: 0.01, correlation: 50ms, step: 0.01}}
  inject: INJECT
tiers:
  device: {{blocks: 24}}
  host: {{size: 240KiB}}
  disk: {{path: DISK}}
"""


def a_profile(folder: Path, inject: str = "{}") -> Path:
    file = folder / "known.yaml"
    file.write_text(PROFILE.replace("DISK", str(folder / "kv")).replace("INJECT", inject), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `probe.json` holds after eighteen seconds, most of which are waits."""
    folder = tmp_path_factory.mktemp("probe")
    options = Options(limit_s=18.0, interval=1e-6, confidence=0.999)
    document, directory = probe_profile(
        load_profile(a_profile(folder)), options, folder / "out", lambda line: None, group_s=0.25
    )
    stored: dict[str, Any] = json.loads((directory / "probe.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(document))
    assert "<svg" in (directory / "probe.html").read_text(encoding="utf-8")
    return stored


@pytest.mark.parametrize("source", TRUTH)
def test_the_cost_of_a_token_from_each_source_lies_in_its_interval(found: dict[str, Any], source: str) -> None:
    low, high = found["cost_per_token_ci"][source]
    assert low - MACHINE_S <= TRUTH[source] <= high + MACHINE_S
    assert high - low < 0.5 * TOKEN_S


def test_intervals_of_different_costs_do_not_overlap(found: dict[str, Any]) -> None:
    """Halved, since they were asked for at 99.9 %."""
    intervals = [found["cost_per_token_ci"][source] for source in ("device", "host", "disk", "computed")]
    for (low, high), (next_low, next_high) in pairwise(intervals):
        assert high - (high - low) / 4 < next_low + (next_high - next_low) / 4


@pytest.mark.parametrize("tier", EVEN)
def test_the_break_even_length_is_found_and_runs_on_both_sides_of_it_do_not_contradict(
    found: dict[str, Any], tier: str
) -> None:
    low, high = found["break_even_ci"][tier]
    assert low - BLOCK <= EVEN[tier]
    assert high is None or EVEN[tier] <= high + BLOCK  # None: not proven up to the longest
    checks = [check for check in found["checks"] if check["source"] == tier]
    assert checks
    assert all(check["agrees"] is not False for check in checks)


def test_every_point_was_verified_and_says_how_many_probes_it_rests_on(found: dict[str, Any]) -> None:
    assert {point["source"] for point in found["points"]} == set(TRUTH)
    assert all(point["n"] >= 1 and point["ttft_s"] > 0 for point in found["points"])
    assert sum(found["thrown_away"].values()) <= 0.1 * sum(point["n"] for point in found["points"])
    assert found["not_reached"] == []
    assert not found["interval_reached"]
    assert found["conditions"]["device_tokens"] == 24 * BLOCK
    assert found["conditions"]["host_tokens"] == 60 * BLOCK
    assert found["emulated"] is True


def test_steps_are_timed_while_one_request_decodes_and_while_several_do(found: dict[str, Any]) -> None:
    assert [each["requests"] for each in found["decode"]] == [1, 4]
    for each in found["decode"]:
        assert each["gaps"] > 0
        assert each["itl_s"] > 0
    assert {each["suffix_tokens"] for each in found["suffixes"]} == {64, 256}


def test_an_answers_pace_counts_while_all_are_under_way() -> None:
    times = [[10, 20, 40, 60], [15, 30, 50, 90]]  # from 15, when both have begun, to 60, when one has ended
    assert paces_together(times) == [(2, pytest.approx(20e-9)), (2, pytest.approx(17.5e-9))]
    assert paces_together([[10, 20], [30]]) == []


def test_tiers_that_never_give_anything_back_are_said_not_to_be_reached(tmp_path: Path) -> None:
    answer = kvbench_here(
        *("probe", a_profile(tmp_path, "{no_promotions: true}"), "--limit", "6s", "--lengths", "256,512"),
        *("--out", tmp_path / "out", "--json"),
    )
    document = json.loads(answer.out)
    assert answer.code == 0
    assert {"host", "disk"} <= set(document["not_reached"])
    assert document["thrown_away"]["host"] >= 1
    assert document["cost_per_token_s"]["host"] is None
    assert document["cost_per_token_s"]["computed"] > 0


def test_beside_a_background_load_probes_are_still_told_apart(tmp_path: Path) -> None:
    answer = kvbench_here(
        *("probe", a_profile(tmp_path), "--limit", "4s", "--lengths", "256,1024", "--background", "4/s"),
        *("--out", tmp_path / "out", "--json"),
    )
    document = json.loads(answer.out)
    assert answer.code == 0
    loaded = document["under_load"]
    assert {"computed", "device"} <= {point["source"] for point in loaded["points"]}
    assert loaded["cost_per_token_s"].keys() == document["cost_per_token_s"].keys()


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A probe that is content with intervals of any width, alone and beside a load that hits nothing. Checks of its
    break-even lengths, which take all of their time, are left out."""
    folder = tmp_path_factory.mktemp("loose")
    options = Options(lengths=LOOSE_LENGTHS, limit_s=LOOSE_LIMIT_S, interval=1e9, background_per_s=2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "CHECKS", 0)
        document, _ = probe_profile(
            load_profile(a_profile(folder)), options, folder / "out", lambda line: None, group_s=0.25
        )
    return document


def test_a_probe_is_over_when_its_intervals_are_as_narrow_as_asked(loose: dict[str, Any]) -> None:
    assert loose["interval_reached"] is True
    assert loose["seconds"] < 0.7 * LOOSE_LIMIT_S, "what its series may take at most"
    counts = {(point["source"], point["prefix_tokens"]): point["n"] for point in loose["points"]}
    assert all(counts[source, length] >= LEAST for source in TRUTH for length in LOOSE_LENGTHS)
    assert all(interval is not None for interval in loose["cost_per_token_ci"].values())


@pytest.mark.parametrize("source", TRUTH)
def test_beside_a_load_every_source_has_its_points(loose: dict[str, Any], source: str) -> None:
    points = [point for point in loose["under_load"]["points"] if point["source"] == source]
    assert sum(point["n"] for point in points) >= 1
    assert all(point["ttft_s"] > 0 for point in points)
    assert source not in loose["under_load"]["not_reached"]


def test_a_server_without_metrics_cannot_be_probed(tmp_path: Path) -> None:
    profile = load_profile(a_profile(tmp_path, "{missing_metrics: {after: 0}}"))
    with pytest.raises(EngineError, match="no probe can be verified"):
        probe_profile(profile, Options(limit_s=2.0), tmp_path / "out", lambda line: None)


def test_people_get_a_table_and_the_way_to_the_files(tmp_path: Path) -> None:
    answer = kvbench_here(
        *("probe", a_profile(tmp_path), "--limit", "3s", "--lengths", "256,512", "--out", tmp_path / "out")
    )
    assert answer.code == 0
    assert "computing a token costs" in answer.out
    assert "while 4 requests decode, a token comes every" in answer.out
    assert "probe.json" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--lengths", "many"),
        ("--limit", "0s"),
        ("--interval", "x"),
        ("--background", "-1/s"),
        ("--lengths", "9999"),
    ],
    ids=" ".join,
)
def test_wrong_options_are_told_as_the_users(arguments: tuple[str, str], tmp_path: Path) -> None:
    answer = kvbench_here("probe", a_profile(tmp_path), *arguments, "--out", tmp_path / "out", "--json")
    assert answer.code == 2
    assert json.loads(answer.out)["error"]
