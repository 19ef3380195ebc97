"""Latencies of one arm in one round, from its tables: measured requests only, seconds, nothing trimmed.

A failed request counts at the request time-out in every latency that it would have had. What was never due
(`unsent`) is no request. One whose user left as planned (`aborted`) has at most a TTFT, and where no token had come
that is known only to lie between what the user waited and the time-out. What goes on after the first token is told
of users who were to stay: who is to leave is drawn with the schedule, while those who are gone in the end are those
whose answers were slow. The decision is made on one quantile a round; requests are never treated as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.judge.columns import Bools, Floats, Ids, at_ranks, flag, numbers, rows
from kvbench.judge.evidence import ArmRound

__all__ = ["CARRIES_BEYOND", "UNTIL_FIRST_TOKEN", "PerRequest", "RoundLatencies", "Sample", "carries"]

CARRIES_BEYOND = 3
"""A quantile needs this many requests beyond it in a round: with fewer it is the maximum by another name."""

Counts = npt.NDArray[np.int32]

NOBODY: Floats = np.empty(0)
UNTIL_FIRST_TOKEN = ("ttft", "ttft_service")
"""Latencies that end with the first token: a user who leaves before it cuts them short."""


def carries(n: int, quantile: float) -> bool:
    """Whether `n` requests a round can carry `quantile`: n * (1 - quantile) >= 3."""
    return n * (1 - quantile) >= CARRIES_BEYOND - 1e-9


class PerRequest(NamedTuple):
    """Figures of which a request has several: of the first request, then of the second, and so on."""

    values: Floats
    counts: Counts
    """How many each request has."""

    def of(self, chosen: Bools) -> Bools:
        """Which of the values belong to some of the requests."""
        return np.repeat(chosen, self.counts)

    @property
    def starts(self) -> npt.NDArray[np.intp]:
        """Where those of each request that has any begin."""
        return (np.cumsum(self.counts) - self.counts)[self.counts > 0]


class Sample:
    """Values of one latency: those measured, how many count at the time-out because their request failed, and how
    long those had waited whose user left before there was a value."""

    def __init__(
        self,
        values: Floats,
        at_timeout: int,
        requests: int,
        timeout_s: float,
        waited: Floats = NOBODY,
        *,
        own: bool = False,
    ) -> None:
        self.values = values
        self.at_timeout = at_timeout
        self.requests = requests
        """Requests behind the values: for ITL fewer than there are values."""
        self.timeout_s = timeout_s
        self.waited = waited
        self._own = own
        """Nobody else has these values, so their order may be changed."""

    def __len__(self) -> int:
        return len(self.values) + self.at_timeout + len(self.waited)

    def quantiles(self, *wanted: float) -> list[float]:
        """Quantiles with linear interpolation between order statistics; NaN when there is no value, or when it is
        those whose user left that would tell it."""
        return [low if low == high else float("nan") for low, high in self.bounds(*wanted)]

    def bounds(self, *wanted: float) -> list[tuple[float, float]]:
        """The least and the most that each quantile can be; they differ only by those whose user left.

        A latency that was cut short is at least what had passed of it and at most the time-out, so the quantiles
        are at least those with the one in its place and at most those with the other: the worst-case bounds of data
        that are missing (Manski, 1989), which assume nothing about who leaves.
        """
        most = self._quantiles(self.values if self._own else self.values.copy(), wanted)
        if not len(self.waited):
            return list(zip(most, most, strict=True))
        return list(zip(self._quantiles(np.concatenate([self.values, self.waited]), wanted), most, strict=True))

    def _quantiles(self, values: Floats, wanted: Sequence[float]) -> list[float]:
        """Of `values`, whose order is changed, with everything else at the time-out."""
        count = len(self)
        if count == 0:
            return [float("nan")] * len(wanted)
        places = [(count - 1) * quantile for quantile in wanted]
        ranks = sorted({rank for place in places for rank in (int(place), min(int(place) + 1, count - 1))})
        known = [rank for rank in ranks if rank < len(values)]
        at = dict.fromkeys(ranks, self.timeout_s)
        # Cutting off what lies beyond the time-out keeps the order, so it is enough to do it here.
        at |= {rank: min(value, self.timeout_s) for rank, value in zip(known, at_ranks(values, known), strict=True)}
        results = []
        for place in places:
            low, high = int(place), min(int(place) + 1, count - 1)
            results.append(at[low] + (at[high] - at[low]) * (place - low))
        return results

    @classmethod
    def pooled(cls, samples: Sequence[Sample]) -> Sample:
        """Several samples, at least one, as one; the time-out is that of the first."""
        return cls(
            np.concatenate([sample.values for sample in samples]),
            sum(sample.at_timeout for sample in samples),
            sum(sample.requests for sample in samples),
            samples[0].timeout_s,
            np.concatenate([sample.waited for sample in samples]),
            own=True,
        )


class RoundLatencies:
    """The measured requests of one round as columns of equal length, in the order of the table."""

    def __init__(self, recorded: ArmRound, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._recorded = recorded
        self._per_request: dict[str, Floats] = {}
        table = recorded.requests
        status = table["status"]
        self._kept = rows(flag(table, "measured") & ~(status == "unsent").to_numpy(dtype=bool))
        self.completed: Bools = (status == "ok").to_numpy(dtype=bool)[self._kept]
        self.left: Bools = (status == "aborted").to_numpy(dtype=bool)[self._kept]
        self.failed: Bools = ~(self.completed | self.left)
        self.leaves: Bools = self.left | flag(table, "leaves")[self._kept]
        """Those whose user was to leave, whether or not the answer was there before; of a table that does not tell,
        those who left."""
        self.ids = table["id"].to_numpy(dtype=np.int64)[self._kept]
        codes, names = pd.factorize(table["class"])
        self._class_codes = codes.astype(np.int32)[self._kept]
        self._class_names = [str(name) for name in names]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def unanswered(self) -> Bools:
        """Requests that failed, or whose answer came without a token: there is no time at which it was there."""
        return self.failed | (self.completed & np.isnan(self.column("first_token_s")))

    def column(self, name: str) -> Floats:
        """A column of the table of requests for the measured requests, to be read only; null is NaN."""
        return numbers(self._recorded.requests, name)[self._kept]

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Classes that have measured requests, by name."""
        return tuple(sorted(self._class_names[code] for code in np.unique(self._class_codes) if code >= 0))

    def of_class(self, class_: str) -> Bools:
        """Which requests belong to a class; "all" is every one."""
        if class_ == "all":
            return np.ones(len(self), dtype=bool)
        if class_ not in self._class_names:
            return np.zeros(len(self), dtype=bool)
        return np.asarray(self._class_codes == self._class_names.index(class_))

    def sample(self, metric: str, class_: str) -> Sample:
        """All values of a latency in a class."""
        return self.by_class(metric)(class_)

    def by_class(self, metric: str) -> Callable[[str], Sample]:
        """What gives all values of a latency in a class: for several classes, as it is read only once."""
        if metric == "itl":
            gaps = self.gaps
            return lambda class_: self._itl_sample(gaps, self.of_class(class_))
        values = self._per_request.get(metric)
        if values is None:
            values = self._with_failures(metric)
        counted = self._counted(metric, values)
        waited = self.waited(metric) if self.left.any() else None

        def sample(class_: str) -> Sample:
            members = self.of_class(class_)
            chosen = members & counted
            measured = values[rows(chosen & ~self.failed)]
            at_timeout = int((chosen & self.failed).sum())
            waiting = NOBODY if waited is None else waited[members & ~np.isnan(waited)]
            requests = len(measured) + at_timeout + len(waiting)
            return Sample(measured, at_timeout, requests, self.timeout_s, waiting)

        return sample

    def counted(self, metric: str) -> Bools:
        """Which requests a quantile of `metric` is of: those with a value; beyond the first token only those whose
        user was to stay, and failures."""
        return self._counted(metric, self.per_request(metric))

    def _counted(self, metric: str, values: Floats) -> Bools:
        told = ~np.isnan(values)
        return told if metric in UNTIL_FIRST_TOKEN else told & (~self.leaves | self.failed)

    def waited(self, metric: str) -> Floats:
        """How long each request had waited whose user left before its first token, where that cut `metric` short;
        zero where it is not known. NaN: every other request."""
        if metric not in UNTIL_FIRST_TOKEN or not self.left.any():
            return np.full(len(self), np.nan)
        since = self.column("intended_s" if metric == "ttft" else "sent_s")
        waited = np.nan_to_num(self.column("ended_s") - since).clip(0.0, self.timeout_s)
        return np.where(self.left & np.isnan(self.column("first_token_s")), waited, np.nan)

    def per_request(self, metric: str) -> Floats:
        """One value a request: a latency, or for `itl` its longest gap. NaN: it has none, or it is not known."""
        if metric not in self._per_request:
            self._per_request[metric] = self._with_failures(metric)
        return self._per_request[metric]

    def _with_failures(self, metric: str) -> Floats:
        values = self._completed(metric)
        has_one = self.column("output_tokens_asked") > 1 if metric in ("itl", "tpot") else self.of_class("all")
        if metric in ("ttft", "ttft_service", "e2e"):
            # An answer without a token is no answer: it counts like a failure.
            values[np.isnan(values) & self.completed] = self.timeout_s
        if metric not in ("ttft", "ttft_service"):
            has_one &= ~self.left
        values[~has_one] = np.nan
        values[self.failed & has_one] = self.timeout_s
        return values

    def _completed(self, metric: str) -> Floats:
        if metric == "itl":
            return self._longest_gap()
        first, last = self.column("first_token_s"), self.column("last_token_s")
        match metric:
            case "ttft":
                return first - self.column("intended_s")
            case "ttft_service":
                return first - self.column("sent_s")
            case "e2e":
                return last - self.column("intended_s")
            case "tpot":
                gaps = self.column("output_tokens_received") - 1
                return np.where(gaps > 0, (last - first) / np.where(gaps > 0, gaps, 1), np.nan)
        raise ValueError(f"{metric} is not a latency")

    @cached_property
    def token_arrivals(self) -> PerRequest:
        """Arrival times of the tokens of measured, completed requests, in order."""
        tokens = self._recorded.tokens
        places = np.flatnonzero(self.completed).astype(np.int32)
        owners = _positions(self.ids[places], places, tokens["id"].to_numpy(dtype=np.int64))
        kept = owners >= 0
        times, index = tokens["t_s"].to_numpy(dtype=np.float64), tokens["index"].to_numpy()
        if not kept.all():  # else the table's own times are as good as a copy of them, which is 8 bytes a token
            owners, times, index = owners[kept], times[kept], index[kept]
        step = np.diff(owners)
        if np.any((step < 0) | ((step == 0) & (np.diff(index) < 0))):
            order = np.lexsort((index, owners))
            owners, times = owners[order], times[order]
        return PerRequest(times, np.bincount(owners, minlength=len(self)).astype(np.int32))

    @property
    def gaps(self) -> PerRequest:
        """Gaps between consecutive tokens. Not kept: they are as quickly made as read."""
        times, counts = self.token_arrivals
        return PerRequest(np.diff(times)[self._end_gaps[1:]], np.maximum(counts - 1, 0))

    def gap_ends(self) -> Floats:
        """When each gap of `gaps` ended."""
        return self.token_arrivals.values[self._end_gaps]

    @property
    def _end_gaps(self) -> Bools:
        """Which tokens of `token_arrivals` came after another one of the same request."""
        later = np.ones(len(self.token_arrivals.values), dtype=bool)
        later[self.token_arrivals.starts] = False
        return later

    def _longest_gap(self) -> Floats:
        """Of every request."""
        gaps, longest = self.gaps, np.full(len(self), np.nan)
        if len(gaps.values):
            longest[gaps.counts > 0] = np.maximum.reduceat(gaps.values, gaps.starts)
        return longest

    def _itl_sample(self, gaps: PerRequest, chosen: Bools) -> Sample:
        """Every gap; a failed request counts with all the gaps it should have had, each at the time-out."""
        asked = self.column("output_tokens_asked")
        failed = self.failed & chosen & (asked > 1)
        stayed = chosen & ~self.leaves
        return Sample(
            gaps.values[rows(gaps.of(stayed))],
            int((asked[failed] - 1).sum()),
            int(((gaps.counts > 0) & stayed).sum()) + int(failed.sum()),
            self.timeout_s,
        )

    @cached_property
    def multi_token_event_share(self) -> float:
        """Share of events that carried several tokens, of measured, completed requests; NaN without events."""
        tokens = len(self.token_arrivals.values)
        if tokens == 0:
            return float("nan")
        events = tokens - int((self.gaps.values == 0).sum())
        several = self.column("multi_token_events")[self.completed]
        return float(np.nansum(several) / events)


def _positions(known: Ids, places: Counts, wanted: Ids) -> Counts:
    """Of each of `wanted` the place of that which is known by this id, -1 for those that are not there."""
    if len(known) == 0 or len(wanted) == 0:
        return np.full(len(wanted), -1, dtype=np.int32)
    low, high = int(known.min()), int(known.max())
    if high - low > 16 * len(known) + 1024:
        found = pd.Index(known).get_indexer(pd.Index(wanted))
        return np.where(found >= 0, places[found], np.int32(-1))
    # Ids are places in a schedule, so a table over their range is small and ten times faster than hashing. What
    # lies outside it is looked up in its last entry.
    table = np.full(high - low + 2, -1, dtype=np.int32)
    table[known - low] = places
    at = wanted - low
    at[(at < 0) | (at > high - low)] = -1
    return table[at]
