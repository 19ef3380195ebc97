"""Where prompt tokens came from in the measured part of a round, from the canonical counters. Tokens.

What the engine does not tell is None, never zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.judge.series import Series, series_by
from kvbench.spec.engine_metrics import COUNTER_RESET, ENGINE_METRICS, PROCESS

__all__ = ["BY_SOURCE", "COUNTERS", "LOSSES", "SOURCES", "Counters", "add_sources"]

SOURCES = ("device", "host", "disk", "computed")
"""Hot to cold, then the miss."""
BY_SOURCE = "prompt_tokens_by_source"
COUNTERS = tuple(
    name + part
    for name, metric in ENGINE_METRICS.items()
    if metric.kind != "gauge"
    for part in (("_sum", "_count") if metric.kind == "histogram" else ("",))
)
"""Canonical series that only grow for as long as the process lives."""
LOSSES = ("iterations_unseen", "metric_events_lost")
"""Counters of what was never counted, tokens by source among it."""


class Counters:
    """The counters of one round, read once from its table of metrics."""

    def __init__(self, metrics: pd.DataFrame) -> None:
        self._series: dict[str, list[tuple[dict[str, str], Series]]] = {name: [] for name in COUNTERS}
        for (name, labels), series in series_by(metrics[metrics["name"].isin(COUNTERS)], "name", "labels"):
            self._series[name].append((json.loads(labels), series))
        self._buckets: dict[str, list[tuple[float, Series]]] = {}
        buckets = metrics[metrics["name"].str.endswith("_bucket")]
        for (name, labels), series in series_by(buckets, "name", "labels"):
            self._buckets.setdefault(name.removesuffix("_bucket"), []).append(
                (float(json.loads(labels)["le"]), series)
            )
        self._first_s = float(metrics["t_s"].min()) if len(metrics) else math.inf
        told = metrics[metrics["name"] == COUNTER_RESET]
        self._told_resets = [
            (str(json.loads(labels).get("counter")), float(t_s))
            for labels, t_s in zip(told["labels"], told["t_s"], strict=True)
        ]

    def span(self, name: str) -> tuple[float, float] | None:
        """Times of the first and the last scrape that show a counter."""
        times = [moment for _, (times, _) in self._series[name] for moment in (times[0], times[-1])]
        return (float(min(times)), float(max(times))) if times else None

    def by_source(self, since_s: float) -> dict[str, float | None]:
        """Increase of each source from the last scrape at or before `since_s` to the last scrape. None where
        anything went uncounted in between."""
        everything = self._series[BY_SOURCE]
        scraped = _scraped_by([series for _, series in everything], since_s)
        if not scraped or self.lost(since_s) or self._began_anew(BY_SOURCE, since_s):
            return dict.fromkeys(SOURCES)
        return {
            source: _total([series for labels, series in everything if labels.get("source") == source], since_s)
            for source in SOURCES
        }

    def increase(self, name: str, since_s: float = -math.inf) -> float | None:
        """Increase of a counter over all its label sets, from the last scrape at or before `since_s` (default: the
        first scrape) to the last; None when it was not there or was reset."""
        several = [series for _, series in self._series[name]]
        span = self.span(name)
        moment_s = span[0] if span and since_s == -math.inf else since_s
        if not _scraped_by(several, moment_s) or self._began_anew(name, moment_s):
            return None
        return _total(several, moment_s)

    def grown(self, name: str, since_s: float) -> float | None:
        """Increase of a counter that may have come with its first event, and so began at zero; None when it never
        came, was reset, or nothing was scraped by then."""
        several = [series for _, series in self._series[name]]
        if self._first_s > since_s or self._began_anew(name, since_s):
            return None
        return _total(several, since_s)

    def unbroken(self, names: Collection[str], since_s: float) -> bool:
        """Whether something was scraped by then, and none of these counters began anew after it."""
        fell = any(at_s > since_s for name, at_s in self.resets() if name in names)
        return self._first_s <= since_s and not fell and not self._began_anew(PROCESS, since_s)

    def buckets(self, name: str, since_s: float) -> dict[float, float] | None:
        """Increase of each bucket of a histogram by its upper edge; None as for `grown`."""
        found: dict[float, float] = {}
        for edge, series in self._buckets.get(name, ()):
            increase = _increase(series, since_s)
            if increase is None:
                return None
            found[edge] = found.get(edge, 0.0) + increase
        whole = self._first_s <= since_s and not self._began_anew(f"{name}_count", since_s)
        return found if found and whole else None

    def _began_anew(self, name: str, since_s: float, until_s: float = math.inf) -> bool:
        """Whether a counter is told to have been reset, alone or with all of its process: that of one rank may have
        been while the sum over ranks went on growing, and a new process may have counted further than the old."""
        told = (at_s for counter, at_s in self._told_resets if counter in (name, PROCESS))
        return any(since_s < at_s <= until_s for at_s in told)

    def lost(self, since_s: float = -math.inf, until_s: float = math.inf) -> dict[str, float]:
        """How much each of `LOSSES` grew, as far as any did; one that appears late began at zero."""
        moments = (max(since_s, self._first_s), until_s)
        grown = {
            name: sum(last - first for first, last in (_ends(series, *moments) for _, series in self._series[name]))
            for name in LOSSES
        }
        return {name: amount for name, amount in grown.items() if amount > 0}

    def source_times(self) -> npt.NDArray[np.float64]:
        """When the tokens by source were scraped, in order."""
        series = [times for _, (times, _) in self._series[BY_SOURCE]]
        return np.unique(np.concatenate(series)) if series else np.empty(0)

    def sources_between(self, first_s: float, last_s: float) -> dict[str, float] | None:
        """Increase of each source between two scrapes; None unless all four are told apart at both."""
        grown = dict.fromkeys(SOURCES, math.nan)
        if self.lost(first_s, last_s) or self._began_anew(BY_SOURCE, first_s, last_s):
            return None
        for labels, (times, values) in self._series[BY_SOURCE]:
            source = labels.get("source", "")
            began, ended = _ends((times, values), first_s, last_s)
            increase = ended - began
            if increase < 0 or times[0] > last_s or (source not in grown and increase > 0):
                return None
            if source in grown:
                grown[source] = increase
        return None if any(map(math.isnan, grown.values())) else grown

    def resets(self) -> list[tuple[str, float]]:
        """Counters that fell, each with the time of the first scrape that shows it.

        Also those of which a single rank's fell while their sum went on growing.
        """
        found: dict[str, float] = {}
        for name, several in self._series.items():
            for _, (times, values) in several:
                fell = np.flatnonzero(np.diff(values) < 0)
                if len(fell):
                    found[name] = min(found.get(name, math.inf), float(times[fell[0] + 1]))
        for name, at_s in self._told_resets:
            found[name] = min(found.get(name, math.inf), at_s)
        return list(found.items())


def add_sources(rounds: Iterable[dict[str, float | None]]) -> dict[str, float | None]:
    """Sum over rounds; a source that is unknown in one of them is unknown."""
    each = list(rounds)
    return {source: _sum([tokens[source] for tokens in each]) for source in SOURCES}


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _scraped_by(several: list[Series], moment_s: float) -> bool:
    """Whether a scrape at or before a moment showed any of these: then one that came later began at zero."""
    return any(float(times[0]) <= moment_s for times, _ in several)


def _total(several: list[Series], since_s: float) -> float | None:
    return _sum([_increase(series, since_s) for series in several])


def _ends(series: Series, first_s: float, last_s: float) -> tuple[float, float]:
    """Its values at two moments; zero before its first scrape."""
    times, values = series
    places = np.searchsorted(times, (first_s, last_s), side="right") - 1
    first, last = (float(values[place]) if place >= 0 else 0.0 for place in places)
    return first, last


def _increase(series: Series, since_s: float) -> float | None:
    times, values = series
    before = int(np.searchsorted(times, since_s, side="right"))
    first = float(values[before - 1]) if before else 0.0
    rest = values[max(before - 1, 0) :]
    return None if np.any(np.diff(rest) < 0) else float(rest[-1]) - first
