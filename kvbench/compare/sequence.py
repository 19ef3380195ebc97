"""The sequence of rounds: interleaved (A B, B A, ...), spoiled pairs repeated, judged after each pair.

Of several candidates, one whose verdict is certain is launched no more while the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    names = [arm.name for arm in journal.manifest.arms]
    try:
        for index in range(1, journal.manifest.rounds_planned + 1):
            _record_group(journal, view, rounds, index, names)
            if journal.manifest.kind == "compare":
                verdict = judge_rounds(journal.manifest, rounds)
                still_open = _undecided(verdict, journal.manifest)
                if not still_open:
                    break
                names = [journal.manifest.arms[0].name, *still_open]
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


def _undecided(verdict: Verdict, manifest: Manifest) -> list[str]:
    """Candidates whose verdict more rounds may change, in the order given."""
    return [one.candidate for one in verdict.candidates or [verdict] if not decided(one, manifest.rules)]


def _record_group(
    journal: Journal, view: LiveView, rounds: dict[tuple[str, int], ArmRound], index: int, names: list[str]
) -> None:
    """Record round `index` of every arm of `names` that lacks it; repeat what is spoiled while anything is."""
    while True:
        for name in order_of(names, index):
            if (name, index) in rounds:
                continue
            prove_only = any(round_.config_differences for round_ in rounds.values())
            rounds[name, index] = record_round(_job(journal, name, index, prove_only), journal, view)
        spoil = _spoiled(journal.manifest, rounds, index)
        if spoil is None:
            return
        if journal.spoiled_attempts(index) >= MAX_REPEATS:
            if journal.manifest.kind == "run":  # nobody judges it, so it must not look as if it were whole
                because = "; ".join(spoil.because)
                raise LoadError(f"round {index} was spoiled {MAX_REPEATS + 1} times: {because}")
            return
        text = f"round {index} is repeated: {'; '.join(spoil.because)}"
        kept = [name for name in names if name not in spoil.arms]
        if kept:
            text += f"; not in {', '.join(kept)}, where a repeat would hide something"
        journal.mark_spoiled(index, spoil.because, spoil.arms)
        journal.warn(text)
        view.note(text)
        for name in spoil.arms:
            rounds.pop((name, index), None)


@dataclass(frozen=True)
class _Spoil:
    """Arms whose round is to be repeated, and why: findings of kinds that pass, as sentences."""

    arms: tuple[str, ...]
    because: list[str]


def _spoiled(manifest: Manifest, rounds: dict[tuple[str, int], ArmRound], index: int) -> _Spoil | None:
    """What of the rounds at `index` does not count and is to be repeated.

    The baseline is repeated with every candidate that nothing has to be kept of. A candidate's round that shows
    what a repeat would hide stays and is paired with the baseline's repeat, so that it neither goes free nor takes
    the repeat from the others. What happened to the baseline itself shows in every pair: then nothing is repeated.
    """
    baseline = manifest.arms[0].name
    if manifest.kind == "run":
        faults = list(rounds[baseline, index].load_faults)
        return _Spoil((baseline,), faults) if faults else None
    judged = (manifest.rules, manifest.workload)
    pairs = [
        RoundPair(index, rounds[baseline, index], rounds[candidate, index])
        for candidate in candidates(manifest)
        if (baseline, index) in rounds and (candidate, index) in rounds
    ]
    free = [pair for pair in pairs if not unforgiven(pair, *judged)]
    if len(free) < len(pairs) and _inseparable(manifest, rounds):
        return None
    because = list(dict.fromkeys(finding.text for pair in free for finding in spoiled(pair, *judged)))
    return _Spoil((baseline, *(pair.candidate.arm for pair in free)), because) if because else None


def _inseparable(manifest: Manifest, rounds: dict[tuple[str, int], ArmRound]) -> bool:
    """Whether the arms are repeated together or not at all: attached servers get a schedule of their own for it,
    and no load is driven any more once an arm is not what was asked for."""
    attached = any(arm.profile.engine.kind == "attached" for arm in manifest.arms)
    return attached or any(round_.config_differences for round_ in rounds.values())


def _job(journal: Journal, name: str, index: int, prove_only: bool) -> RoundJob:
    return RoundJob(
        profile=journal.manifest.arm(name).profile,
        index=index,
        attempt=journal.spoiled_attempts(index),
        order=len(journal.manifest.rounds),
        prove_only=prove_only,
    )
