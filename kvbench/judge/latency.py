"""Latencies of one arm in one round, from its tables: measured requests only, seconds, nothing trimmed.

A failed request counts at the request time-out in every latency that it would have had. What was never due
(`unsent`) is no request; one whose user left as planned (`aborted`) has at most a TTFT, and where no token had come
that is known only to lie between what the user waited and the time-out. The decision is made on one quantile a
round; requests are never treated as independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.judge.evidence import ArmRound

__all__ = ["CARRIES_BEYOND", "RoundLatencies", "Sample", "carries", "numbers"]

CARRIES_BEYOND = 3
"""A quantile needs this many requests beyond it in a round: with fewer it is the maximum by another name."""

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NOBODY: Floats = np.empty(0)
UNTIL_FIRST_TOKEN = ("ttft", "ttft_service")
"""Latencies that end with the first token: a user who leaves before it cuts them short."""


def carries(n: int, quantile: float) -> bool:
    """Whether `n` requests a round can carry `quantile`: n * (1 - quantile) >= 3."""
    return n * (1 - quantile) >= CARRIES_BEYOND - 1e-9


def numbers(table: pd.DataFrame, column: str) -> Floats:
    """A column as floats; null is NaN."""
    values: Floats = table[column].to_numpy(dtype=np.float64, na_value=np.nan)
    return values


class Sample:
    """Values of one latency: those measured, how many count at the time-out because their request failed, and how
    long those had waited whose user left before there was a value."""

    def __init__(
        self, values: Floats, at_timeout: int, requests: int, timeout_s: float, waited: Floats = NOBODY
    ) -> None:
        self.values = values
        self.at_timeout = at_timeout
        self.requests = requests
        """Requests behind the values: for ITL fewer than there are values."""
        self.timeout_s = timeout_s
        self.waited = waited

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
        most = self._quantiles(self.values, wanted)
        if not len(self.waited):
            return list(zip(most, most, strict=True))
        return list(zip(self._quantiles(np.concatenate([self.values, self.waited]), wanted), most, strict=True))

    def _quantiles(self, values: Floats, wanted: Sequence[float]) -> list[float]:
        """Of `values`, with everything else at the time-out."""
        count = len(self)
        if count == 0:
            return [float("nan")] * len(wanted)
        places = [(count - 1) * quantile for quantile in wanted]
        ranks = sorted({rank for place in places for rank in (int(place), min(int(place) + 1, count - 1))})
        known = [rank for rank in ranks if rank < len(values)]
        ordered = np.partition(values, known) if known else values
        # Cutting off what lies beyond the time-out keeps the order, so it is enough to do it here.
        at = {
            rank: min(float(ordered[rank]), self.timeout_s) if rank < len(values) else self.timeout_s
            for rank in ranks
        }
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
        )


class RoundLatencies:
    """The measured requests of one round as columns of equal length, in the order of the table."""

    def __init__(self, recorded: ArmRound, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._recorded = recorded
        self._per_request: dict[str, Floats] = {}
        table = recorded.requests
        status = table["status"]
        self._kept: Bools = (table["measured"] == True).to_numpy(dtype=bool) & ~(  # noqa: E712 - null is not measured
            status == "unsent"
        ).to_numpy(dtype=bool)
        self.completed: Bools = (status == "ok").to_numpy(dtype=bool)[self._kept]
        self.left: Bools = (status == "aborted").to_numpy(dtype=bool)[self._kept]
        self.failed: Bools = ~(self.completed | self.left)
        self.ids = self.column("id").astype(np.int64)
        codes, names = pd.factorize(table["class"])
        self._class_codes = codes[self._kept]
        self._class_names = [str(name) for name in names]

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> Floats:
        """A column of the table of requests for the measured requests; null is NaN."""
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
        chosen = self.of_class(class_)
        if metric == "itl":
            return self._itl_sample(chosen)
        values, waited = self.per_request(metric), self.waited(metric)
        waited = waited[chosen & ~np.isnan(waited)]
        chosen = chosen & ~np.isnan(values)
        measured = values[chosen & ~self.failed]
        at_timeout = int((chosen & self.failed).sum())
        requests = len(measured) + at_timeout + len(waited)
        return Sample(measured, at_timeout, requests, self.timeout_s, waited)

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
        has_one = self._asked > 1 if metric in ("itl", "tpot") else np.ones(len(self), dtype=bool)
        if metric in ("ttft", "ttft_service", "e2e"):
            # An answer without a token is no answer: it counts like a failure.
            values = np.where(np.isnan(values) & self.completed, self.timeout_s, values)
        if metric not in ("ttft", "ttft_service"):
            has_one &= ~self.left
        return np.where(self.failed & has_one, self.timeout_s, np.where(has_one, values, np.nan))

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
    def _asked(self) -> Floats:
        return self.column("output_tokens_asked")

    @cached_property
    def token_arrivals(self) -> tuple[Floats, npt.NDArray[np.int32]]:
        """Arrival times of the tokens of measured, completed requests in order, and the request of each."""
        tokens = self._recorded.tokens
        ids = tokens["id"].to_numpy(dtype=np.int64)
        owners = _positions(self.ids, ids)
        owners[owners >= 0] = np.where(self.completed[owners[owners >= 0]], owners[owners >= 0], -1)
        kept = owners >= 0
        times, index = tokens["t_s"].to_numpy(dtype=np.float64), tokens["index"].to_numpy()
        if not kept.all():  # else the table's own times are as good as a copy of them, which is 8 bytes a token
            owners, times, index = owners[kept], times[kept], index[kept]
        step = np.diff(owners)
        if np.any((step < 0) | ((step == 0) & (np.diff(index) < 0))):
            order = np.lexsort((index, owners))
            owners, times = owners[order], times[order]
        return times, owners.astype(np.int32)

    @cached_property
    def gaps(self) -> tuple[Floats, npt.NDArray[np.int32]]:
        """Gaps between consecutive tokens: length, and the request it belongs to."""
        times, owners = self.token_arrivals
        same = owners[1:] == owners[:-1]
        return np.diff(times)[same], owners[1:][same]

    def gap_ends(self) -> Floats:
        """When each gap of `gaps` ended."""
        times, owners = self.token_arrivals
        ends: Floats = times[1:][owners[1:] == owners[:-1]]
        return ends

    def _longest_gap(self) -> Floats:
        """Of every request; kept by `per_request` alone, because a million requests are 8 MB each time."""
        lengths, owners = self.gaps
        longest = np.full(len(self), -np.inf)
        np.maximum.at(longest, owners, lengths)
        return np.where(np.isneginf(longest), np.nan, longest)

    def _itl_sample(self, chosen: Bools) -> Sample:
        """Every gap; a failed request counts with all the gaps it should have had, each at the time-out."""
        lengths, owners = self.gaps
        inside = chosen[owners]
        failed = self.failed & chosen & (self._asked > 1)
        with_gaps = np.zeros(len(self), dtype=bool)
        with_gaps[owners[inside]] = True
        return Sample(
            lengths[inside],
            int((self._asked[failed] - 1).sum()),
            int(with_gaps.sum()) + int(failed.sum()),
            self.timeout_s,
        )

    @cached_property
    def multi_token_event_share(self) -> float:
        """Share of events that carried several tokens, of measured, completed requests; NaN without events."""
        times, owners = self.token_arrivals
        if len(times) == 0:
            return float("nan")
        opens = np.ones(len(times), dtype=bool)
        opens[1:] = (owners[1:] != owners[:-1]) | (times[1:] != times[:-1])
        several = self.column("multi_token_events")[self.completed]
        return float(np.nansum(several) / opens.sum())


def _positions(known: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each of `wanted` stands in `known`, -1 for those that are not there."""
    if len(known) == 0 or len(wanted) == 0:
        return np.full(len(wanted), -1, dtype=np.int64)
    low, high = int(known.min()), int(known.max())
    if high - low > 16 * len(known) + 1024:
        return pd.Index(known).get_indexer(pd.Index(wanted)).astype(np.int64)
    # Ids are places in a schedule, so a table over their range is small and ten times faster than hashing.
    table = np.full(high - low + 1, -1, dtype=np.int64)
    table[known - low] = np.arange(len(known))
    inside = (wanted >= low) & (wanted <= high)
    return np.where(inside, table[np.where(inside, wanted - low, 0)], -1)
