"""What counters tell of single requests: of one that was alone between two scrapes, everything. Tokens, seconds.

Between two scrapes at which nothing was under way the counters grew by what the requests between them had. With one
request that is its own split; with several it tells each one's, too, where all that was cached came from one tier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvbench.judge.sources import SOURCES, Counters

__all__ = ["split_by_counters"]

TIERS = SOURCES[:-1]
Numbers = NDArray[np.float64]


def split_by_counters(requests: pd.DataFrame, metrics: pd.DataFrame) -> dict[int, dict[str, int]]:
    """Cached tokens by tier, by request id, of every request about which the counters leave no doubt."""
    counters = Counters(metrics)
    sent = requests[requests["sent_s"].notna()]
    if sent.empty:
        return {}
    sent = sent.sort_values("sent_s", kind="stable")
    begins, ends = (sent[name].to_numpy(dtype=np.float64) for name in ("sent_s", "ended_s"))
    ends = np.where(np.isnan(ends), np.inf, ends)
    found: dict[int, dict[str, int]] = {}
    for first, last, grown in _quiet_spans(counters, begins, ends):
        inside = sent[(begins >= first) & (begins < last)]
        found |= _told(inside, grown)
    return found


def _quiet_spans(
    counters: Counters, begins: Numbers, ends: Numbers
) -> Iterator[tuple[float, float, dict[str, float]]]:
    """Spans between scrapes at which no request was under way, with what each source grew by."""
    times = counters.source_times()
    if not len(times):
        return
    order = np.sort(ends)
    under_way = np.searchsorted(begins, times, side="right") - np.searchsorted(order, times, side="left")
    quiet = times[under_way == 0]
    for first, last in pairwise(quiet):
        if np.searchsorted(begins, last) > np.searchsorted(begins, first):
            grown = counters.sources_between(float(first), float(last))
            if grown is not None:
                yield float(first), float(last), grown


def _told(inside: pd.DataFrame, grown: Mapping[str, float]) -> dict[int, dict[str, int]]:
    """Nothing unless the requests' own figures add up to what the counters say."""
    cached, prompts = inside["cached_tokens"], inside["prompt_tokens_engine"]
    if cached.isna().any() or prompts.isna().any():
        return {}
    tiers = {tier: round(grown[tier]) for tier in TIERS}
    if int(cached.sum()) != sum(tiers.values()) or int(prompts.sum()) != round(sum(grown.values())):
        return {}
    if len(inside) == 1:
        return {int(inside["id"].iloc[0]): tiers}
    used = [tier for tier, tokens in tiers.items() if tokens]
    if len(used) > 1:
        return {}
    only = used[0] if used else TIERS[0]
    return {
        int(id_): {**dict.fromkeys(TIERS, 0), only: int(tokens)}
        for id_, tokens in zip(inside["id"], cached, strict=True)
    }
