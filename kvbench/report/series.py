"""Numbers behind the charts, from a run's tables. Times in seconds, rates in tokens per second; no drawing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.judge.columns import flag
from kvbench.judge.sources import SOURCES
from kvbench.report.data import RoundTables

__all__ = [
    "Dots",
    "Sample",
    "SourceRates",
    "class_names",
    "itl_sample",
    "measured",
    "source_rates",
    "thin_curve",
    "thin_dots",
    "ttft_dots",
    "ttft_sample",
]

Numbers = npt.NDArray[np.float64]

SOURCE_COUNTER = "prompt_tokens_by_source"
"""Canonical name of the counter of prompt tokens; its label `source` is one of `SOURCES`, or `elsewhere`."""
ANSWERED = ("ok", "aborted")
"""A TTFT counts whether or not the user stayed to the end."""
ORIGINS = ("computed", "cached", "unknown")
MOSTLY_CACHED = 0.5
"""A request counts as cached when at least this share of its prompt tokens was not computed."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Sorted values that were measured, and how many requests gave none: they failed, or their user left before."""

    values: Numbers
    failed: int
    left: int = 0

    def __len__(self) -> int:
        return len(self.values) + self.failed + self.left

    @classmethod
    def pooled(cls, samples: Sequence[Sample]) -> Sample:
        """Several as one."""
        values = np.sort(np.concatenate([np.empty(0), *(sample.values for sample in samples)]))
        return cls(values, sum(sample.failed for sample in samples), sum(sample.left for sample in samples))

    @property
    def median(self) -> float | None:
        """Of all of them, those that gave no value beyond every one that did; None: it is one of these."""
        ends = [len(self) // 2] if len(self) % 2 else [len(self) // 2 - 1, len(self) // 2]
        return float(self.values[ends].mean()) if len(self) and ends[-1] < len(self.values) else None


@dataclass(frozen=True, eq=False)
class Dots:
    """Requests as points: intended time and TTFT."""

    t_s: Numbers
    ttft_s: Numbers

    def __len__(self) -> int:
        return len(self.t_s)


@dataclass(frozen=True, eq=False)
class SourceRates:
    """Prompt tokens per second by source between consecutive scrapes; `t_s` has one edge more than rates."""

    t_s: Numbers
    rates: dict[str, Numbers]


def measured(requests: pd.DataFrame) -> pd.DataFrame:
    """The requests that count: of measured phases, without priming."""
    return requests[requests["measured"].astype(bool) & (requests["phase"] != "prime")]


def class_names(rounds: Sequence[RoundTables]) -> list[str]:
    """Classes that have measured requests, in alphabetical order."""
    return sorted({str(name) for tables in rounds for name in measured(tables.requests)["class"].unique()})


def ttft_sample(requests: pd.DataFrame, class_: str) -> Sample:
    """TTFT of the measured requests of one class."""
    rows = measured(requests)
    rows = rows[rows["class"] == class_]
    answered = rows[rows["status"].isin(ANSWERED) & rows["first_token_s"].notna()]
    values = (answered["first_token_s"] - answered["intended_s"]).to_numpy(dtype=float)
    left = int(((rows["status"] == "aborted") & rows["first_token_s"].isna()).sum())
    return Sample(np.sort(values), failed=len(rows) - len(answered) - left, left=left)


def itl_sample(tables: RoundTables) -> Sample:
    """Every gap between consecutive tokens of one measured, completed request, all classes together; without those
    whose user was to leave, as of these the slow ones are not completed."""
    rows = measured(tables.requests)
    rows = rows[(rows["status"] != "aborted") & ~(flag(rows, "leaves") & (rows["status"] == "ok"))]
    completed = set(rows.loc[rows["status"] == "ok", "id"])
    tokens = tables.tokens[tables.tokens["id"].isin(completed)].sort_values(["id", "index"], kind="stable")
    times, ids = tokens["t_s"].to_numpy(dtype=float), tokens["id"].to_numpy()
    gaps = np.diff(times)[np.diff(ids) == 0] if len(ids) > 1 else np.empty(0)
    return Sample(np.sort(gaps), failed=len(rows) - len(completed))


def ttft_dots(rounds: Sequence[RoundTables]) -> dict[str, Dots]:
    """Measured requests of all rounds, split by whether most of the prompt was cached; keys of `ORIGINS`."""
    if not rounds:
        return {}
    rows = pd.concat([measured(tables.requests) for tables in rounds], ignore_index=True)
    rows = rows[rows["status"].isin(ANSWERED) & rows["first_token_s"].notna()]
    prompt = rows["prompt_tokens_engine"].astype(float)
    share = rows["cached_tokens"].astype(float) / prompt.where(prompt > 0)
    chosen = {"computed": share < MOSTLY_CACHED, "cached": share >= MOSTLY_CACHED, "unknown": share.isna()}
    t_s = rows["intended_s"].to_numpy(dtype=float)
    ttft_s = rows["first_token_s"].to_numpy(dtype=float) - t_s
    return {origin: Dots(t_s[chosen[origin]], ttft_s[chosen[origin]]) for origin in ORIGINS}


def source_rates(metrics: pd.DataFrame, bins: int = 120) -> SourceRates | None:
    """Rates by source from the counters, over at most `bins` steps; None when they were not recorded.

    A counter that falls was reset: that step is unknown (NaN), not zero.
    """
    rows = metrics[metrics["name"] == SOURCE_COUNTER]
    if rows.empty:
        return None
    source = rows["labels"].map(lambda labels: json.loads(labels).get("source"))
    counters = rows.assign(source=source).pivot_table(index="t_s", columns="source", values="value", aggfunc="sum")
    grew = [name for name in counters.columns if counters[name].max() > counters[name].min()]
    names = [name for name in (*SOURCES, *sorted(set(grew) - set(SOURCES))) if name in counters.columns]
    counters = counters[names].dropna(how="all")
    if len(counters) < 2 or counters.shape[1] == 0:
        return None
    stride = -(-(len(counters) - 1) // bins)
    kept = counters.iloc[sorted({*range(0, len(counters), stride), len(counters) - 1})]
    t_s = kept.index.to_numpy(dtype=float)
    rates = {str(name): np.diff(kept[name].to_numpy(dtype=float)) / np.diff(t_s) for name in counters.columns}
    return SourceRates(t_s, {name: np.where(rate < 0, np.nan, rate) for name, rate in rates.items()})


def thin_curve(values: Numbers, limit: int = 300) -> npt.NDArray[np.int64]:
    """Ranks of sorted `values` to draw a distribution through: even steps, the slowest tenth denser."""
    n = len(values)
    if n <= limit:
        return np.arange(n)
    half = limit // 2
    body = np.linspace(0, n - 1, half)
    tail = n - 1 - np.geomspace(1, n * 0.1, limit - half)
    return np.unique(np.concatenate([body, tail]).round().astype(np.int64))


def thin_dots(dots: Dots, limit: int) -> Dots:
    """At most `limit` points: the slowest quarter of that in full, of the others every k-th in order of time."""
    if len(dots) <= limit:
        return dots
    slowest = np.argsort(dots.ttft_s, kind="stable")[-(limit // 4) :]
    others = np.setdiff1d(np.argsort(dots.t_s, kind="stable"), slowest, assume_unique=True)
    others = others[np.argsort(dots.t_s[others], kind="stable")]
    step = np.linspace(0, len(others) - 1, limit - len(slowest)).round().astype(np.int64)
    chosen = np.sort(np.concatenate([slowest, others[step]]))
    return Dots(dots.t_s[chosen], dots.ttft_s[chosen])
