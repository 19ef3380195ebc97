"""Several candidates that share a baseline: no repeat hides a fault, and who is decided is launched no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kvbench.compare import sequence
from kvbench.compare.round import RoundJob
from kvbench.compare.sequence import _spoiled
from kvbench.compare.stored import judge_rounds
from kvbench.judge.evidence import ArmRound, EngineEvent
from kvbench.record.journal import Journal
from kvbench.record.manifest import ArmRecord, Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory
from kvbench.report.progress import LiveView
from tests.judge.build import BASELINE, TIERED, host_rows, pair, rules, workload

BUSY = {"host": host_rows(foreign=3.0)}
DIED = {"events": (EngineEvent("died", 31.0, "signal 9"),), "complete": False}
RESIDUE = {"residue": ("the disk tier holds 3 blocks before the first request",)}

OTHER = TIERED.model_copy(update={"name": "other"})
ARMS = [
    ArmRecord(name=profile.name, role=role, profile=profile)  # type: ignore[arg-type]
    for profile, role in ((BASELINE, "baseline"), (TIERED, "candidate"), (OTHER, "candidate"))
]
MANIFEST = Manifest(
    kvbench="0", name="x", run_id="x", kind="compare", state="running", created_utc="2026-01-01T00:00:00Z",
    host={}, seed=1, arms=ARMS, workload=workload(), rules=rules(), rounds_planned=3,
)  # fmt: skip


def rounds(**changes: dict[str, object]) -> dict[tuple[str, int], ArmRound]:
    """One sound round of every arm, some of them changed."""
    sound = pair(1, ratio=0.3, hits=0.5)
    arms = {"base": sound.baseline, "tiered": sound.candidate, "other": replace(sound.candidate, arm="other")}
    return {(name, 1): replace(arms[name], **changes.get(name, {})) for name in arms}  # type: ignore[arg-type]


def repeated(manifest: Manifest = MANIFEST, **changes: dict[str, object]) -> tuple[str, ...]:
    """Arms whose round is repeated after one in which these arms were changed."""
    spoil = _spoiled(manifest, rounds(**changes), 1)
    return () if spoil is None else spoil.arms


def test_a_busy_host_in_one_arm_repeats_the_whole_group() -> None:
    assert _spoiled(MANIFEST, rounds(), 1) is None
    spoil = _spoiled(MANIFEST, rounds(tiered=BUSY), 1)
    assert spoil is not None
    assert spoil.arms == ("base", "tiered", "other")
    (sentence,) = spoil.because
    assert "something else used the host" in sentence
    shared = _spoiled(MANIFEST, rounds(base=BUSY), 1)
    assert shared is not None
    assert len(shared.because) == 1, "what both pairs share is said once"


@pytest.mark.parametrize("fault", [DIED, RESIDUE], ids=["died", "residue"])
def test_a_repeat_never_hides_what_is_not_forgiven(fault: dict[str, object]) -> None:
    """Its round stays, and the others are repeated without it; what the baseline suffered stays in all of them."""
    assert repeated(tiered=BUSY, other=fault) == ("base", "tiered")
    assert repeated(tiered=fault, other=BUSY) == ("base", "other")
    assert repeated(base=BUSY, tiered=fault) == ("base", "other")
    assert repeated(tiered=BUSY | fault) == ()
    assert repeated(tiered=fault) == ()
    assert repeated(base=BUSY, tiered=fault, other=fault) == ()
    assert repeated(base=fault, tiered=BUSY) == ()


def test_arms_that_cannot_be_repeated_apart_are_repeated_together_or_not_at_all() -> None:
    """A repeat at attached servers has a schedule of its own, and none is driven at an engine not as asked."""
    attached = BASELINE.model_copy(update={"engine": BASELINE.engine.model_copy(update={"kind": "attached"})})
    arms = [ARMS[0].model_copy(update={"profile": attached}), *ARMS[1:]]
    manifest = MANIFEST.model_copy(update={"arms": arms})
    assert repeated(manifest, tiered=BUSY) == ("base", "tiered", "other")
    assert repeated(manifest, tiered=BUSY, other=RESIDUE) == ()
    assert repeated(tiered=BUSY, other={"config_differences": ("another model runs",)}) == ()


class TestTheSequence:
    """Given a candidate whose engine dies in every round, and one whose first attempt at a round is spoiled."""

    def test_who_is_decided_is_launched_no_more_while_the_others_go_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = Journal(
            RunDirectory.create(tmp_path, "x"), MANIFEST.model_copy(update={"rules": rules(rounds=(1, 3))})
        )
        played: list[tuple[int, str]] = []

        def record_round(job: RoundJob, journal: Journal, view: LiveView) -> ArmRound:
            played.append((job.index, job.profile.name))
            return replace(rounds(other=DIED)[job.profile.name, 1], index=job.index)

        monkeypatch.setattr(sequence, "record_round", record_round)
        verdict = sequence.carry_out(journal, LiveView(Console(quiet=True), [arm.name for arm in ARMS], rounds=3))
        assert verdict is not None
        assert verdict.candidates is not None
        assert [(one.candidate, one.verdict, one.rounds.done) for one in verdict.candidates] == [
            ("tiered", "INCONCLUSIVE", 3),
            ("other", "NO_GO", 1),
        ]
        assert played == [
            (1, "base"), (1, "tiered"), (1, "other"), (2, "tiered"), (2, "base"), (3, "base"), (3, "tiered"),
        ]  # fmt: skip

    def record(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[Journal, dict[tuple[str, int], ArmRound]]:
        run = RunDirectory.create(folder, "x")
        journal = Journal(run, MANIFEST.model_copy(update={"rules": rules(rounds=(1, 1))}))
        played: list[str] = []

        def record_round(job: RoundJob, journal: Journal, view: LiveView) -> ArmRound:
            name = job.profile.name
            played.append(name)
            run.round_directory(name, job.index).mkdir(parents=True)
            journal.add(
                RoundRecord(
                    arm=name, index=job.index, state="done", launch=job.label, started_utc="x", order=job.order
                )
            )
            changes = {"tiered": BUSY if job.attempt == 0 else {}, "other": DIED}
            return rounds(**changes)[name, 1]  # type: ignore[arg-type]

        monkeypatch.setattr(sequence, "record_round", record_round)
        found: dict[tuple[str, int], ArmRound] = {}
        view = LiveView(Console(quiet=True), ["base", "tiered", "other"], rounds=1)
        sequence._record_group(journal, view, found, 1, ["base", "tiered", "other"])
        assert played == ["base", "tiered", "other", "base", "tiered"]
        return journal, found

    def test_the_healthy_one_is_repeated_and_the_broken_one_stays_broken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal, found = self.record(tmp_path, monkeypatch)
        states = [(record.arm, record.state) for record in journal.manifest.rounds]
        assert states == [
            ("base", "spoiled"), ("tiered", "spoiled"), ("other", "done"), ("base", "done"), ("tiered", "done"),
        ]  # fmt: skip
        assert (journal.run.path / "arms" / "other" / "round-1").is_dir()
        assert (journal.run.path / "arms" / "tiered" / "round-1.spoiled-1").is_dir()
        assert journal.manifest.warnings[0].endswith("; not in other, where a repeat would hide something")
        verdict = judge_rounds(journal.manifest, found)
        assert verdict.candidates is not None
        each = {one.candidate: one for one in verdict.candidates}
        stability = next(rule for rule in each["other"].rules if rule.rule == "stability")
        assert (each["other"].verdict, stability.status) == ("NO_GO", "fail")
        assert each["tiered"].verdict == "INCONCLUSIVE", "one round decides nothing, but it counts"
        assert verdict.verdict == "NO_GO"
