"""What was read of a group of replicas, and how counters grew between scrapes. Pure; Unix seconds.

A counter that fell began anew: what it counts after is growth, and the fall itself is kept as an event. What a
scrape lacks is not a number, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvbench.canary.families import BY_SOURCE, CACHED, PROMPT, STARTED, UP
from kvbench.spec.engine_metrics import ENGINE_METRICS

__all__ = ["Floats", "Group", "Key", "Replica", "Samples", "key_of", "merge"]

Floats = npt.NDArray[np.float64]
Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
"""Canonical name, or the exposed one before `naming`, and the labels that are not the target's own, sorted."""
Samples = dict[Key, tuple[Floats, Floats]]
"""Times and values of each series of one replica, in order of time."""

SAME_START_S = 2.0
"""`process_start_time_seconds` is computed from the boot time and wavers by less than this between scrapes."""
MISSED = 2.5
"""A step of so many scrape intervals lacks at least one scrape."""
STALE_INTERVALS = 5.0
"""Prometheus itself calls a series stale after five minutes; five missed scrapes say so sooner."""
LEAST_STALE_S = 10.0


_NOTHING = np.empty(0), np.empty(0)


def key_of(name: str, labels: Mapping[str, str]) -> Key:
    """The key of a series by its own labels."""
    return name, tuple(sorted(labels.items()))


def merge(old: Samples, new: Samples) -> Samples:
    """Both, where `new` may repeat what `old` has; times that were known already are left out.

    Most series come in every scrape: those whose times are the same share one array of them.
    """
    merged = dict(old)
    first: dict[bytes, Floats] = {}
    longer: dict[tuple[int, bytes], tuple[npt.NDArray[np.bool_], Floats]] = {}
    for key, (t_s, values) in new.items():
        told = t_s.tobytes()
        known_t, known = old.get(key, _NOTHING)
        if not len(known_t):
            merged[key] = first.setdefault(told, t_s), values
            continue
        if (id(known_t), told) not in longer:
            fresh = t_s > known_t[-1]
            longer[id(known_t), told] = fresh, np.concatenate([known_t, t_s[fresh]])
        fresh, times = longer[id(known_t), told]
        merged[key] = times, np.concatenate([known, values[fresh]])
    return merged


@dataclass(frozen=True, eq=False)
class Replica:
    """One server. `failed_s`: when a scrape of ours, or of Prometheus (`up` is 0), found nobody."""

    name: str
    samples: Samples
    failed_s: Floats = field(default_factory=lambda: np.empty(0))

    @cached_property
    def t_s(self) -> Floats:
        """Times of its scrapes that brought series. Most series come in every scrape, so one array will do."""
        own = [t_s for (name, _), (t_s, _) in self.samples.items() if name != UP]
        longest = max(own, key=len, default=np.empty(0))
        others = [t_s for t_s in own if len(t_s) != len(longest) or not np.array_equal(t_s, longest)]
        return np.unique(np.concatenate([longest, *others])) if others else longest

    @cached_property
    def interval_s(self) -> float:
        """The usual step between scrapes; 0 before there are two."""
        return float(np.median(np.diff(self.t_s))) if len(self.t_s) > 1 else 0.0

    @cached_property
    def steps_s(self) -> Floats:
        """The time that each scrape looks back on; 0 for the first."""
        return np.diff(self.t_s, prepend=self.t_s[:1])

    @cached_property
    def after_gap(self) -> npt.NDArray[np.bool_]:
        """Scrapes before which at least one is missing: their growth stands for longer than one step."""
        return self.steps_s > MISSED * self.interval_s

    @cached_property
    def down_s(self) -> Floats:
        """Times at which a scrape of it failed."""
        down = [t_s[values == 0] for (name, _), (t_s, values) in self.samples.items() if name == UP]
        return np.sort(np.concatenate([self.failed_s, *down]))

    @cached_property
    def up_s(self) -> Floats:
        """Times at which Prometheus had an answer of it, whatever was in it."""
        up = [t_s[values > 0] for (name, _), (t_s, values) in self.samples.items() if name == UP]
        return np.sort(np.concatenate(up)) if up else np.empty(0)

    @cached_property
    def last_sign_s(self) -> float:
        """The last scrape, whether it brought series or failed."""
        signs = (self.t_s, self.up_s, self.down_s)
        return max((float(times[-1]) for times in signs if len(times)), default=-np.inf)

    @property
    def _patience_s(self) -> float:
        return max(STALE_INTERVALS * self.interval_s, LEAST_STALE_S)

    def alive_at(self, t_s: float) -> bool:
        """Whether its last scrape was not long ago."""
        return bool(len(self.t_s)) and bool(t_s - self.t_s[-1] <= self._patience_s)

    def gone_at(self, t_s: float) -> bool:
        """Whether nobody even tries to scrape it any more, as with one that was replaced or scaled away."""
        return bool(t_s - self.last_sign_s > self._patience_s)

    def keys(self, name: str, **labels: str) -> list[Key]:
        """Series of this name whose labels have these values."""
        wanted = set(labels.items())
        return [key for key in self.samples if key[0] == name and wanted <= set(key[1])]

    def has(self, name: str, **labels: str) -> bool:
        """Whether there was ever such a series."""
        return bool(self.keys(name, **labels))

    def grown(self, keys: Iterable[Key]) -> Floats:
        """Growth of some counters together, at each scrape; NaN where none of them is known there."""
        total = np.full(len(self.t_s), np.nan)
        for key in keys:
            each = self._growth(key)
            known = ~np.isnan(each)
            total[known] = np.where(np.isnan(total[known]), 0.0, total[known]) + each[known]
        return total

    def _growth(self, key: Key) -> Floats:
        t_s, values = self.samples[key]
        steps = np.diff(values)
        if len(t_s) == len(self.t_s):  # in every scrape
            return np.concatenate([[np.nan], np.where(steps < 0, values[1:], steps)])
        found = np.full(len(self.t_s), np.nan)
        places = np.searchsorted(self.t_s, t_s)
        found[places[1:]] = np.where(steps < 0, values[1:], steps)
        if len(places) and places[0] > 0:
            # The server was there before and this series was not: it has counted from zero.
            found[places[0]] = values[0]
        return found

    def level(self, keys: Iterable[Key]) -> Floats:
        """Values of some series together at each scrape; NaN where none is known."""
        total = np.full(len(self.t_s), np.nan)
        for key in keys:
            t_s, values = self.samples[key]
            places = np.searchsorted(self.t_s, t_s)
            total[places] = np.where(np.isnan(total[places]), 0.0, total[places]) + values
        return total

    @cached_property
    def restarts_s(self) -> Floats:
        """When another process was first seen: its start is told anew, or by a series that came later.

        The series of a pod that was replaced under its name carry another address.
        """
        found: list[float] = []
        first_s = float(self.t_s[0]) if len(self.t_s) else np.inf
        for name in STARTED:
            for key in self.keys(name):
                t_s, values = self.samples[key]
                found += t_s[1:][np.abs(np.diff(values)) > SAME_START_S].tolist()
                if len(t_s) and min(t_s[0], values[0]) > first_s + SAME_START_S:
                    found.append(float(t_s[0]))
        return np.unique(np.asarray(found, dtype=np.float64))

    @cached_property
    def resets_s(self) -> Floats:
        """When counters fell."""
        found: list[float] = []
        for key, (t_s, values) in self.samples.items():
            if _only_grows(key[0]):
                found += t_s[1:][np.diff(values) < 0].tolist()
        return np.unique(np.asarray(found, dtype=np.float64))

    def within(self, start_s: float, end_s: float) -> Replica:
        """The same replica between two moments; the last scrape before the first is kept to count from."""
        kept: Samples = {}
        before = self.t_s[self.t_s <= start_s]
        first = before[-1] if len(before) else start_s
        for key, (t_s, values) in self.samples.items():
            begin, end = np.searchsorted(t_s, first, "left"), np.searchsorted(t_s, end_s, "right")
            if begin < end:
                kept[key] = (t_s[begin:end], values[begin:end])
        failed = self.failed_s[(self.failed_s > start_s) & (self.failed_s <= end_s)]
        return Replica(self.name, kept, failed)


def _only_grows(name: str) -> bool:
    known = ENGINE_METRICS.get(name)
    return (known is not None and known.kind == "counter") or name.endswith(("_total", "_count", "_bucket"))


@dataclass(frozen=True, eq=False)
class Group:
    """The replicas of one selection."""

    name: str
    replicas: tuple[Replica, ...]

    @cached_property
    def interval_s(self) -> float:
        """The usual step between scrapes of a replica."""
        known = [replica.interval_s for replica in self.replicas if replica.interval_s > 0]
        return float(np.median(known)) if known else 0.0

    @cached_property
    def first_s(self) -> float | None:
        """The first scrape of any replica."""
        return min((float(r.t_s[0]) for r in self.replicas if len(r.t_s)), default=None)

    @cached_property
    def last_s(self) -> float | None:
        """The last scrape of any replica."""
        return max((float(r.t_s[-1]) for r in self.replicas if len(r.t_s)), default=None)

    def has(self, name: str, **labels: str) -> bool:
        """Whether any replica ever had such a series."""
        return any(replica.has(name, **labels) for replica in self.replicas)

    def each(self, change: Callable[[Replica], Replica]) -> Group:
        """The group with every replica changed."""
        return Group(self.name, tuple(change(replica) for replica in self.replicas))

    def grown(self, name: str, **labels: str) -> float | None:
        """Growth of a counter over everything that was read, all replicas together; None where it is not known."""
        known = [replica for replica in self.replicas if replica.has(name, **labels)]
        if not known:
            return None
        return float(sum(np.nansum(replica.grown(replica.keys(name, **labels))) for replica in known))

    @property
    def computed_tokens(self) -> float | None:
        """Prompt tokens that were computed; what was not cached, where no server counts them by source."""
        told = self.grown(BY_SOURCE, source="computed")
        prompt, cached = self.grown(PROMPT), self.grown(CACHED)
        return told if told is not None or prompt is None or cached is None else prompt - cached
