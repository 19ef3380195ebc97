"""A gate after its hook: it proves what came of it, says so, and outlives being killed without running it again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.canary.gate import Look
from kvbench.canary.serve import Seen, exposed, verdict_document
from kvbench.canary.verdict import CanaryVerdict, Rollback
from kvbench.judge.verdict import Outcome
from kvbench.report.gate import render_gate_junit, render_gate_markdown
from kvbench.spec.canary import LoadedCanary
from tests.canary.build import T0, Truth, group
from tests.canary.watched import LONG_S, Clock, Killed, Stored, both, gate, killed_while_telling, loaded

SICK = Truth(slow=lambda t: 0.3 if 200 < t < 320 else 0.001)
"""Over its budget until it is restarted."""
SWITCHED = group("canary", replace(SICK, gap=(320, 350), restart_at=350, off_at=350), seconds=LONG_S)
STILL_ON = group("canary", replace(SICK, gap=(320, 350), restart_at=350), seconds=LONG_S)


def armed(folder: Path, code: int = 0) -> tuple[LoadedCanary, Path]:
    """A canary whose hook notes that it was run, and where."""
    told = folder / "told.jsonl"
    hook = ["sh", "-c", f"cat >> {told}; echo >> {told}; exit {code}"]
    return loaded(folder, json.dumps({"hook": hook, "armed": True, "within": "4m", "steady": "60s"})), told


def watched(folder: Path, reader: Stored, canary: LoadedCanary) -> tuple[CanaryVerdict, list[Look]]:
    looks: list[Look] = []
    with gate(folder, reader, canary=canary) as it:
        return it.watch(looks.append), looks


def rollback_of(verdict: CanaryVerdict) -> Rollback:
    assert verdict.rollback is not None
    return verdict.rollback


class TestAfterTheHook:
    def test_the_tier_is_proven_off_and_ttft_back(self, tmp_path: Path) -> None:
        canary, told = armed(tmp_path)
        verdict, looks = watched(tmp_path, Stored(Clock(), both(SWITCHED)), canary)
        assert verdict.verdict is Outcome.NO_GO
        assert verdict.exit_code == 1
        found = rollback_of(verdict)
        assert (found.tier_off.status, found.baseline_back.status) == ("proven", "proven"), found
        assert found.baseline_back.after_s is not None
        assert found.hook_at + found.baseline_back.after_s >= T0 + 350
        assert found.cost is not None
        assert found.cost.without_service_s == pytest.approx((0.0, 30.0))
        waiting = [look.verdict.rollback for look in looks if look.verdict.rollback is not None]
        assert waiting[0].tier_off.status == "waiting"
        assert len(told.read_text().splitlines()) == 1

    def test_a_tier_that_stays_on_is_said_at_the_end_of_the_time(self, tmp_path: Path) -> None:
        canary, _ = armed(tmp_path)
        verdict, _ = watched(tmp_path, Stored(Clock(), both(STILL_ON)), canary)
        found = rollback_of(verdict)
        assert found.tier_off.status == "failed"
        assert found.ended
        assert found.at == pytest.approx(found.hook_at + 240, abs=1)

    def test_a_hook_that_failed_is_not_waited_for(self, tmp_path: Path) -> None:
        canary, _ = armed(tmp_path, code=3)
        verdict, _ = watched(tmp_path, Stored(Clock(), both(SWITCHED)), canary)
        found = rollback_of(verdict)
        assert found.ended
        assert found.at - found.hook_at < 30
        assert found.tier_off.status == "unknown"

    def test_is_told_as_json_junit_markdown_and_metrics(self, tmp_path: Path) -> None:
        canary, _ = armed(tmp_path)
        verdict, _ = watched(tmp_path, Stored(Clock(), both(SWITCHED)), canary)
        document = verdict_document(verdict)
        text = json.dumps(document, allow_nan=False)
        assert json.loads(text)["rollback"]["tier_off"]["status"] == "proven"
        junit = render_gate_junit(verdict, "c")
        assert 'classname="kvbench.c.rollback" name="tier-off"' in junit
        assert "TTFT back" in render_gate_markdown(verdict, "c")
        metrics = exposed(Seen("g", verdict)).decode()
        assert 'kvbench_gate_rollback{gate="g",part="tier_off",status="proven"} 1.0' in metrics
        assert 'kvbench_gate_rollback_after_seconds{gate="g",part="baseline_back"}' in metrics


class TestKilledAfterTheHook:
    @pytest.mark.parametrize("how", ["watch", "once"])
    def test_goes_on_proving_and_does_not_run_it_again(self, tmp_path: Path, how: str) -> None:
        canary, told = armed(tmp_path)
        clock = Clock(killed_at=T0 + 340)
        with gate(tmp_path, Stored(clock, both(SWITCHED)), canary=canary) as it, pytest.raises(Killed):
            it.watch(lambda _: None)
        assert len(told.read_text().splitlines()) == 1
        clock.killed_at, clock.t = None, T0 + 370
        with gate(tmp_path, Stored(clock, both(SWITCHED)), canary=canary) as again:
            verdict = again.watch(lambda _: None) if how == "watch" else again.once()
        assert len(told.read_text().splitlines()) == 1
        assert verdict.verdict is Outcome.NO_GO
        assert verdict.hook is not None
        assert "not again" in verdict.hook.text
        found = rollback_of(verdict)
        assert (found.tier_off.status, found.baseline_back.status) == ("proven", "proven")
        assert found.cost is not None
        assert found.cost.without_service_s == pytest.approx((0.0, 30.0))

    def test_even_while_the_hook_ran(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        canary, told = armed(tmp_path)
        clock = Clock()
        with gate(tmp_path, Stored(clock, both(SWITCHED)), canary=canary) as it:
            killed_while_telling(it, told, monkeypatch)
        verdict, _ = watched(tmp_path, Stored(clock, both(SWITCHED)), canary)
        assert told.read_text() == "once\n"
        assert rollback_of(verdict).tier_off.status == "proven"

    def test_after_the_proof_is_over_says_what_it_had_found(self, tmp_path: Path) -> None:
        canary, told = armed(tmp_path)
        clock = Clock()
        watched(tmp_path, Stored(clock, both(SWITCHED)), canary)
        clock.t = T0 + 340  # one look at the same time, at which the breach is still the latest that is known
        with gate(tmp_path, Stored(clock, both(SWITCHED)), canary=canary, for_s=330.0) as again:
            verdict = again.once()
        assert len(told.read_text().splitlines()) == 1
        assert rollback_of(verdict).tier_off.status == "proven"

    def test_with_scrapes_that_nobody_else_keeps_knows_what_was_before(self, tmp_path: Path) -> None:
        canary, told = armed(tmp_path)
        clock = Clock(killed_at=T0 + 340)
        reader = Stored(clock, both(SWITCHED), looks_back=False)
        with gate(tmp_path, reader, canary=canary) as it, pytest.raises(Killed):
            it.watch(lambda _: None)
        clock.killed_at, clock.t = None, T0 + 370
        verdict, _ = watched(tmp_path, Stored(clock, both(SWITCHED), looks_back=False), canary)
        assert len(told.read_text().splitlines()) == 1
        found = rollback_of(verdict)
        assert found.tier_off.status == "proven"
        assert found.cost is not None
        assert found.cost.cached_share_before == pytest.approx(0.5)
