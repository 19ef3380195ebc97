"""The rollback rule over live metrics: the same counts and the same function as on a stored run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.canary.health import clock
from kvbench.canary.histogram import Counts, counts_over
from kvbench.canary.observed import Observed
from kvbench.canary.series import Group
from kvbench.judge import wording
from kvbench.judge.sustained import (
    FEWEST_OVER,
    Exceedances,
    Moment,
    Watched,
    enough_time_seen,
    firing_share,
    watch,
)
from kvbench.judge.verdict import RuleResult, Status
from kvbench.spec.rules import Guardrail, Sustained

__all__ = ["exceedances_of", "judge_sustained"]


@dataclass(frozen=True)
class _Seen:
    """A group under the rule: as few over budget as there can be, and as many."""

    least: Watched
    most: Watched
    alone: tuple[str, ...]
    """Replicas that fire by themselves."""
    heard: bool
    """Whether there was any request in the latest `for`; without one its share is no figure."""

    @property
    def fired(self) -> Moment | None:
        return self.least.fired


def exceedances_of(several: Iterable[Counts], *, most: bool) -> Exceedances:
    """Counts of all replicas in order of time. Scrapes behind a gap are left out: their time is not known.

    A histogram tells gaps over budget but not whose they were; they count as few requests as can have had them.
    """
    columns: list[list[np.ndarray]] = [[], [], [], [], []]
    for counts in several:
        kept = ~np.isin(counts.t_s, counts.unusual)
        over = counts.over_most if most else counts.over_least
        clumped = np.maximum(counts.samples / np.maximum(counts.requests, 1.0), 1.0)
        for column, values in zip(
            columns, (counts.t_s, counts.samples, over, counts.requests, over / clumped), strict=True
        ):
            column.append(values[kept])
    t_s, *rows = (np.concatenate(column) if column else np.empty(0) for column in columns)
    order = np.argsort(t_s, kind="stable")
    return Exceedances(t_s[order], *(row[order] for row in rows))


def judge_sustained(
    rule: Guardrail, sustained: Sustained, seen: Observed, candidate: Group, baseline: Group | None, start_s: float
) -> RuleResult:
    """It fails when it fires in the candidate alone; it passes at the end, having been evaluable throughout."""
    mine = _watched(rule, sustained, seen, candidate, start_s)
    control = None if baseline is None else _watched(rule, sustained, seen, baseline, start_s)
    status, why = _status(seen, mine, control, sustained)
    return RuleResult(
        rule=rule.id,
        kind="guardrail",
        status=status,
        metric=rule.metric,
        quantile=rule.quantile,
        class_=rule.class_,
        baseline=None if control is None else _largest(control),
        candidate=_largest(mine),
        unit="fraction",
        limit=firing_share(rule.quantile or 0.0),
        windows=_rows(mine),
        text=f"{_words(rule, sustained)}{why}",
    )


def _watched(rule: Guardrail, sustained: Sustained, seen: Observed, group: Group, start_s: float) -> _Seen:
    several = [counts_over(replica, rule.metric, rule.max or 0.0) for replica in group.replicas]
    known = [counts for counts in several if counts is not None]
    # A scrape tells what happened before it, so the last moment to look at is one scrape ago.
    end_s = seen.end_s - group.interval_s

    def watched(counts: Sequence[Counts], *, most: bool) -> Watched:
        return watch(exceedances_of(counts, most=most), sustained, rule.quantile or 0.0, start_s, end_s)

    alone = tuple(
        counts.replica
        for counts in (known if len(known) > 1 else ())
        if _might_fire(counts, rule, sustained) and watched([counts], most=False).fired
    )
    least = watched(known, most=False)
    exact = all(counts.exact for counts in known)
    heard = bool(least.moments) and any(_any_since(counts, least.moments[-1].t_s, sustained) for counts in known)
    return _Seen(least, least if exact else watched(known, most=True), alone, heard)


def _any_since(counts: Counts, t_s: float, sustained: Sustained) -> bool:
    """Whether there is a sample in the `for` up to a moment."""
    return bool(np.any(counts.samples[(counts.t_s > t_s - sustained.for_s) & (counts.t_s <= t_s)]))


def _might_fire(counts: Counts, rule: Guardrail, sustained: Sustained) -> bool:
    """Whether looking closely is worth it: any `for` that fires lies in two neighbouring stretches of its length,
    and one of these has at least half of what it takes."""
    if counts.over_least.sum() < FEWEST_OVER:
        return False
    stretch = np.floor((counts.t_s - counts.t_s[0]) / sustained.for_s).astype(int)
    over = np.bincount(stretch, counts.over_least)
    return bool(np.any(over[:-1] + over[1:] >= FEWEST_OVER) or over.max() >= FEWEST_OVER)


def _status(  # noqa: PLR0911 - one return for each thing that can be said
    seen: Observed, mine: _Seen, control: _Seen | None, sustained: Sustained
) -> tuple[Status, str]:
    """What the rule says, and in which words."""
    if mine.fired is not None:
        why = _fired(mine.fired, sustained)
        if mine.alone:
            why += f"; by itself on {wording.listed(mine.alone)}"
        if control is not None and control.fired is not None:
            return "unknown", f"{why}; it fires in the baseline as well, which is sick itself"
        return "fail", why
    if mine.alone:
        return "unknown", f": fired on {wording.listed(mine.alone)} alone, not in the group"
    if mine.most.fired is not None:
        return "unknown", ": fired only if all between the two bucket edges around the budget are over it"
    if not seen.final:
        return "unknown", ": never fired so far; it passes at the end of the watch"
    if enough_time_seen([mine.most]):
        return "pass", ": never fired"
    return "unknown", _hardly_evaluable(mine.most)


def _hardly_evaluable(watched: Watched) -> str:
    looks = len(watched.moments)
    if not looks:
        return ": what was seen is shorter than that"
    share = wording.share(watched.evaluable / looks)
    return f": too few requests or scrapes; it could be evaluated {share} of the time, 90 % is needed"


def _words(rule: Guardrail, sustained: Sustained) -> str:
    return (
        f"{wording.what(rule.metric, rule.quantile, rule.class_)} over {wording.value(rule.max or 0.0, 's')}, "
        f"sustained for {wording.value(sustained.for_s, 's')}"
    )


def _fired(moment: Moment, sustained: Sustained) -> str:
    return (
        f": fired at {clock(moment.t_s)} with {wording.share(moment.for_share)} over budget, "
        f"{wording.share(moment.window_share)} in the latest {wording.value(sustained.window, 's')}"
    )


def _largest(seen: _Seen) -> float | None:
    return seen.least.worst.for_share if seen.least.worst else None


def _rows(seen: _Seen) -> list[dict[str, float | str | None]]:
    """The moment it fired, else its worst one; and the latest."""
    watched = seen.least
    decisive = watched.fired or watched.worst
    rows = [] if decisive is None else [_row(decisive, "fired" if watched.fired else "worst", heard=True)]
    return [*rows, _row(watched.moments[-1], "latest", heard=seen.heard)] if watched.moments else rows


def _row(moment: Moment, at: str, *, heard: bool) -> dict[str, float | str | None]:
    return {
        "at": at,
        "t_s": moment.t_s,
        "for_share": moment.for_share if heard else None,
        "window_share": moment.window_share if moment.requests else None,
        "requests": float(moment.requests),
        "requests_over": float(moment.requests_over),
        "fired": "yes" if at == "fired" else "no",
    }
