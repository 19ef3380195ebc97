"""The sequence of rounds: interleaved (A B, B A, ...), spoiled pairs repeated, judged after each pair."""

from __future__ import annotations

from kvbench.compare.round import RoundJob, record_round
from kvbench.compare.stored import candidates, judge_rounds, read_round
from kvbench.errors import Interrupted, KvbenchError, LoadError, RecordError
from kvbench.judge.evidence import ArmRound, RoundPair
from kvbench.judge.judge import decided
from kvbench.judge.validity import spoiled, unforgiven
from kvbench.judge.verdict import Verdict
from kvbench.record.journal import Journal
from kvbench.record.manifest import Manifest
from kvbench.report.progress import LiveView

__all__ = ["MAX_REPEATS", "carry_out", "order_of"]

MAX_REPEATS = 2
"""A pair spoiled by something that passes is repeated at most twice (DESIGN, validity)."""


def order_of(arms: list[str], index: int) -> list[str]:
    """Arms in the order in which round `index` (from 1) plays them."""
    return arms if index % 2 else list(reversed(arms))


def carry_out(journal: Journal, view: LiveView) -> Verdict | None:
    """Record what is missing, pair by pair, until the verdict is certain; None when one arm was recorded.

    The manifest says at any moment what is there, so that a stopped run goes on from it.
    """
    rounds: dict[tuple[str, int], ArmRound] = {
        (r.arm, r.index): read_round(journal.run, r) for r in journal.manifest.rounds if r.state == "done"
    }
    journal.set_state("running")
    verdict: Verdict | None = None
    try:
        for index in range(1, journal.manifest.rounds_planned + 1):
            _record_group(journal, view, rounds, index)
            if journal.manifest.kind == "compare":
                verdict = judge_rounds(journal.manifest, rounds)
                if decided(verdict, journal.manifest.rules):
                    break
    except Interrupted:
        journal.set_state("interrupted")
        raise
    except KvbenchError:
        journal.set_state("failed")
        raise
    except OSError as error:
        journal.set_state("failed")
        place = f": {error.filename}" if error.filename else ""
        raise RecordError(
            f"the round cannot be recorded: {error.strerror or error}{place}",
            do="mend that, then `--resume` goes on from what was recorded",
        ) from error
    journal.set_state("finished")
    return verdict


def _record_group(journal: Journal, view: LiveView, rounds: dict[tuple[str, int], ArmRound], index: int) -> None:
    """Record round `index` of every arm that lacks it; repeat the group while it is spoiled."""
    names = [arm.name for arm in journal.manifest.arms]
    while True:
        for name in order_of(names, index):
            if (name, index) in rounds:
                continue
            prove_only = any(round_.config_differences for round_ in rounds.values())
            rounds[name, index] = record_round(_job(journal, name, index, prove_only), journal, view)
        findings = _spoiled(journal.manifest, rounds, index)
        if not findings:
            return
        if journal.spoiled_attempts(index) >= MAX_REPEATS:
            if journal.manifest.kind == "run":  # nobody judges it, so it must not look as if it were whole
                raise LoadError(f"round {index} was spoiled {MAX_REPEATS + 1} times: {'; '.join(findings)}")
            return
        text = f"round {index} is repeated: {'; '.join(findings)}"
        journal.mark_spoiled(index, findings)
        journal.warn(text)
        view.note(text)
        for name in names:
            rounds.pop((name, index), None)


def _spoiled(manifest: Manifest, rounds: dict[tuple[str, int], ArmRound], index: int) -> list[str]:
    """Why the rounds at `index` do not count, as sentences; findings of kinds that pass.

    All arms are repeated together, so none is while any candidate's pair shows what a repeat would hide.
    """
    baseline = manifest.arms[0].name
    if manifest.kind == "run":
        return list(rounds[baseline, index].load_faults)
    judged = (manifest.rules, manifest.workload)
    pairs = [
        RoundPair(index, rounds[baseline, index], rounds[candidate, index])
        for candidate in candidates(manifest)
        if (baseline, index) in rounds and (candidate, index) in rounds
    ]
    if any(unforgiven(pair, *judged) for pair in pairs):
        return []
    return list(dict.fromkeys(finding.text for pair in pairs for finding in spoiled(pair, *judged)))


def _job(journal: Journal, name: str, index: int, prove_only: bool) -> RoundJob:
    return RoundJob(
        profile=journal.manifest.arm(name).profile,
        index=index,
        attempt=journal.spoiled_attempts(index),
        order=len(journal.manifest.rounds),
        prove_only=prove_only,
    )
