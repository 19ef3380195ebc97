"""The rollback rule on a stored comparison: inside single rounds of the candidate, the baseline as a control."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvbench.judge import wording
from kvbench.judge.case import Case, JudgedRound, Ruling
from kvbench.judge.evaluation import unknown
from kvbench.judge.phases import measured_end, measured_start
from kvbench.judge.sustained import Moment, Watched, enough_time_seen, exceedances, firing_share, watch
from kvbench.judge.verdict import RuleResult, Status
from kvbench.spec.rules import LATENCIES, Guardrail, Sustained

__all__ = ["evaluate_sustained"]

LEFT_WAITING = "if those who left before their first token would have waited on beyond the budget"


def evaluate_sustained(rule: Guardrail, sustained: Sustained, case: Case) -> Ruling:
    """Judge a sustained rule. It fails when it fires in the candidate alone; where it only might fire, counting
    whoever left before a first token as over budget, it is unknown."""
    if rule.metric not in LATENCIES or rule.max is None or rule.quantile is None:
        return unknown(rule, "guardrail", "as a sustained rule needs a latency, a quantile and `max`")
    if not case.pairs:
        return unknown(rule, "guardrail", "was not measured: there is no complete pair of rounds")
    candidate = [_watched(rule, sustained, pair.candidate) for pair in case.pairs]
    baseline = [_watched(rule, sustained, pair.baseline) for pair in case.pairs]
    status, why = _status(rule, sustained, case, candidate, baseline)
    result = RuleResult(
        rule=rule.id,
        kind="guardrail",
        status=status,
        metric=rule.metric,
        quantile=rule.quantile,
        class_=rule.class_,
        baseline=_largest(baseline),
        candidate=_largest(candidate),
        unit="fraction",
        limit=firing_share(rule.quantile),
        windows=_windows(case, candidate),
        text=_text(rule, rule.max, sustained, _first_fired(case, candidate)) + why,
    )
    return Ruling(result)


def _status(
    rule: Guardrail, sustained: Sustained, case: Case, candidate: list[Watched], baseline: list[Watched]
) -> tuple[Status, str]:
    """What the rule says, and how its sentence ends."""

    def might_fire(rounds: Iterable[JudgedRound]) -> bool:
        short = (round_ for round_ in rounds if not np.isnan(round_.latencies.waited(rule.metric)).all())
        return any(_watched(rule, sustained, round_, most=True).fired for round_ in short)

    if any(watched.fired for watched in candidate):
        if any(watched.fired for watched in baseline):
            return "unknown", "; it fires in the baseline as well"
        if might_fire(pair.baseline for pair in case.pairs):
            return "unknown", f"; the baseline does as well {LEFT_WAITING}"
        return "fail", ""
    if might_fire(pair.candidate for pair in case.pairs):
        return "unknown", f": fires {LEFT_WAITING}"
    if enough_time_seen(candidate):
        return "pass", ": never fired"
    return "unknown", ": too few requests or too short rounds to be evaluated 90 % of the time"


def _watched(rule: Guardrail, sustained: Sustained, round_: JudgedRound, *, most: bool = False) -> Watched:
    counts = exceedances(round_.latencies, rule.metric, rule.class_, rule.max or 0.0, most=most)
    start_s, end_s = measured_start(round_.workload), measured_end(round_.workload)
    return watch(counts, sustained, rule.quantile or 0.0, start_s, end_s)


def _first_fired(case: Case, several: list[Watched]) -> tuple[int, Moment] | None:
    for pair, watched in zip(case.pairs, several, strict=True):
        if watched.fired is not None:
            return pair.candidate.index, watched.fired
    return None


def _largest(several: list[Watched]) -> float | None:
    """The largest share over budget that was seen over a whole `for`."""
    return max((watched.worst.for_share for watched in several if watched.worst), default=None)


def _windows(case: Case, several: list[Watched]) -> list[dict[str, float | str | None]]:
    """For each round the moment it fired, else its worst one."""
    rows: list[dict[str, float | str | None]] = []
    for pair, watched in zip(case.pairs, several, strict=True):
        row: dict[str, float | str | None] = {"round": float(pair.candidate.index)}
        moment = watched.fired or watched.worst
        if moment is not None:
            row |= {
                "t_s": moment.t_s,
                "for_share": moment.for_share,
                "window_share": moment.window_share,
                "requests": float(moment.requests),
                "requests_over": float(moment.requests_over),
            }
        row["fired"] = "yes" if watched.fired else "no"
        rows.append(row)
    return rows


def _text(rule: Guardrail, budget_s: float, sustained: Sustained, fired: tuple[int, Moment] | None) -> str:
    words = (
        f"{wording.what(rule.metric, rule.quantile, rule.class_)} over {wording.value(budget_s, 's')}, "
        f"sustained for {wording.value(sustained.for_s, 's')}"
    )
    if fired is None:
        return words
    index, moment = fired
    return (
        f"{words}: fired {wording.value(moment.t_s, 's')} into round {index} with "
        f"{wording.share(moment.for_share)} of requests over budget, {wording.share(moment.window_share)} in the "
        f"latest {wording.value(sustained.window, 's')}"
    )
