"""The rollback rule: too many requests over budget for too long, counted as exceedances. Seconds.

Counts add up across windows, rounds and scrapes, where percentiles do not; so a stored run and a live gate feed the
same function.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvbench.judge.latency import RoundLatencies
from kvbench.spec.rules import Sustained

__all__ = [
    "MOST_LOOKS",
    "Exceedances",
    "Moment",
    "Watched",
    "enough_time_seen",
    "exceedances",
    "firing_share",
    "looks_at",
    "watch",
]

Floats = npt.NDArray[np.float64]
Owners = npt.NDArray[np.int32]

FEWEST_REQUESTS = 20
"""A window with fewer requests says nothing."""
FEWEST_OVER = 5
"""So few requests over budget do not fire, however few there are in all."""
EVALUABLE = 0.9
"""The rule passes only if it could be evaluated for this share of the time."""
LOOKS_PER_WINDOW = 10
MOST_LOOKS = 1_000_000
"""At one round: as many as a window of a second has in a round of a day. Each is kept, so more fill the memory."""


@dataclass(frozen=True, eq=False)
class Exceedances:
    """Counts along time, in order of time; an entry may stand for one request or for a whole scrape."""

    t_s: Floats
    samples: Floats
    over: Floats
    requests: Floats
    requests_over: Floats
    """The same as `over` unless a request has several samples, as with ITL."""
    owners: Owners | None = field(default=None, kw_only=True)
    """Whose samples they are where a request has several entries: it then counts once in each stretch of time in
    which it has one. None: no two entries are of one request."""


@dataclass(frozen=True)
class Moment:
    """What the rule saw at one moment."""

    t_s: float
    for_share: float
    window_share: float
    requests: int
    """Requests in the latest window."""
    requests_over: int
    """Requests over budget in the whole `for`."""
    evaluable: bool
    fires: bool


@dataclass(frozen=True)
class Watched:
    """All looks at one stretch of time."""

    moments: tuple[Moment, ...]

    @property
    def fired(self) -> Moment | None:
        """The first moment at which the rule fired."""
        return next((moment for moment in self.moments if moment.fires), None)

    @property
    def evaluable(self) -> int:
        return sum(moment.evaluable for moment in self.moments)

    @property
    def worst(self) -> Moment | None:
        """The moment with the largest share over budget, over the whole `for`."""
        seen = [moment for moment in self.moments if moment.evaluable]
        return max(seen, key=lambda moment: moment.for_share) if seen else None


def firing_share(quantile: float) -> float:
    """Share over budget from which the rule fires: five times what the quantile allows, or ten points more."""
    allowed = 1 - quantile
    return min(5 * allowed, allowed + 0.10)


def enough_time_seen(several: Iterable[Watched]) -> bool:
    """Whether the rule could be evaluated for long enough to pass."""
    every = list(several)
    looks = sum(len(watched.moments) for watched in every)
    return looks > 0 and sum(watched.evaluable for watched in every) >= EVALUABLE * looks


def looks_at(rule: Sustained, start_s: float, end_s: float) -> int:
    """How many times a round is looked at that is measured from `start_s` to `end_s`."""
    after_first_s = end_s - (start_s + rule.for_s)
    return max(int(np.floor(after_first_s / (rule.window / LOOKS_PER_WINDOW) + 1e-9)) + 1, 0)


def watch(counts: Exceedances, rule: Sustained, quantile: float, start_s: float, end_s: float) -> Watched:
    """Look from the first moment with a whole `for` behind it to the end, ten times a window.

    Both stretches end at the moment itself; a sample on their far edge is outside.
    """
    step = rule.window / LOOKS_PER_WINDOW
    first = start_s + rule.for_s
    moments: Floats = first + step * np.arange(looks_at(rule, start_s, end_s), dtype=np.float64)
    whole = [_within(counts, values, moments, rule.for_s) for values in (counts.samples, counts.over)]
    latest = [_within(counts, values, moments, rule.window) for values in (counts.samples, counts.over)]
    requests = _requests_within(counts, counts.requests, moments, rule.window)
    over = _requests_within(counts, counts.requests_over, moments, rule.for_s)
    limit = firing_share(quantile) - 1e-12
    found = []
    for place, moment in enumerate(moments):
        for_share, window_share = _share(whole, place), _share(latest, place)
        evaluable = bool(requests[place] >= FEWEST_REQUESTS)
        fires = evaluable and for_share >= limit and window_share >= limit and over[place] >= FEWEST_OVER
        found.append(
            Moment(
                float(moment),
                for_share,
                window_share,
                int(requests[place]),
                int(over[place]),
                evaluable,
                bool(fires),
            )
        )
    return Watched(tuple(found))


def _within(counts: Exceedances, values: Floats, moments: Floats, span_s: float) -> Floats:
    """Sum of `values` in (moment - span, moment] for every moment."""
    running = np.concatenate([[0.0], np.cumsum(values)])
    tolerance = 1e-9 * span_s
    last = np.searchsorted(counts.t_s, moments + tolerance, side="right")
    first = np.searchsorted(counts.t_s, moments - span_s + tolerance, side="right")
    return np.asarray(running[last] - running[first])


def _requests_within(counts: Exceedances, values: Floats, moments: Floats, span_s: float) -> Floats:
    """As `_within`, a request with several entries in the stretch counted once.

    It is in the stretch from each of its entries on until that one is out of it or the next one comes, which do not
    overlap: so many have begun less so many that are over.
    """
    if counts.owners is None:
        return _within(counts, values, moments, span_s)
    kept = values > 0
    t_s, owners = counts.t_s[kept], counts.owners[kept]
    by_owner = np.argsort(owners, kind="stable")
    same = owners[by_owner][1:] == owners[by_owner][:-1]
    over_s = t_s + span_s
    over_s[by_owner[:-1][same]] = np.minimum(over_s[by_owner[:-1][same]], t_s[by_owner[1:][same]])
    until = moments + 1e-9 * span_s
    begun, over = (np.searchsorted(times, until, side="right") for times in (t_s, np.sort(over_s)))
    return np.asarray(begun - over, dtype=np.float64)


def _share(stretch: list[Floats], place: int) -> float:
    samples, over = stretch[0][place], stretch[1][place]
    return float(over / samples) if samples else 0.0


def exceedances(
    round_: RoundLatencies, metric: str, class_: str, budget_s: float, *, most: bool = False
) -> Exceedances:
    """Counts of one round: a request stands at its intended time, a gap at its end; failures are over budget,
    whatever the time-out.

    One whose user left before its first token is over budget when it had waited longer than that; else it may be,
    and counts so with `most`.
    """
    if metric == "itl":
        return _itl_exceedances(round_, class_, budget_s)
    values, waited = round_.per_request(metric), round_.waited(metric)
    values = np.where(np.isnan(waited), values, np.inf if most else waited)
    values[round_.unanswered] = np.inf
    chosen = round_.of_class(class_) & (round_.counted(metric) | ~np.isnan(waited))
    ones = np.ones(int(chosen.sum()))
    over = (values[chosen] > budget_s).astype(np.float64)
    return _ordered(round_.column("intended_s")[chosen], ones, over, ones, over)


def _itl_exceedances(round_: RoundLatencies, class_: str, budget_s: float) -> Exceedances:
    """Gaps are the samples, each of one request. A failed request stands at its intended time with all the gaps it
    should have had."""
    gaps = round_.gaps
    chosen = gaps.of(round_.of_class(class_) & ~round_.leaves)
    lengths, ended_s = gaps.values[chosen], round_.gap_ends()[chosen]
    owners = np.repeat(np.arange(len(round_), dtype=np.int32), gaps.counts)[chosen]
    over = (lengths > budget_s).astype(np.float64)
    asked = round_.column("output_tokens_asked")
    failed = round_.failed & round_.of_class(class_) & (asked > 1)
    missing, ones = asked[failed] - 1, np.ones(int(failed.sum()))
    return _ordered(
        np.concatenate([ended_s, round_.column("intended_s")[failed]]),
        np.concatenate([np.ones(len(lengths)), missing]),
        np.concatenate([over, missing]),
        np.concatenate([np.ones(len(lengths)), ones]),
        np.concatenate([over, ones]),
        np.concatenate([owners, np.flatnonzero(failed).astype(np.int32)]),
    )


def _ordered(
    t_s: Floats,
    samples: Floats,
    over: Floats,
    requests: Floats,
    requests_over: Floats,
    owners: Owners | None = None,
) -> Exceedances:
    """In order of time; what has no time (a turn that could not be sent) stands at the end."""
    order = np.argsort(t_s, kind="stable")
    return Exceedances(
        t_s[order],
        samples[order],
        over[order],
        requests[order],
        requests_over[order],
        owners=None if owners is None else owners[order],
    )
