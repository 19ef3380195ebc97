"""Scrapes as the rows of `metrics.parquet`. Of histograms sum and count; their buckets stay in the raw file."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa

from kvbench.observe.canonical import CanonicalSample, canonical, parse_engine
from kvbench.observe.fetch import Fetched
from kvbench.record.tables import METRICS

__all__ = ["metric_rows"]

_TIER_SOURCES = {(("source", "host"),), (("source", "disk"),)}


def metric_rows(scrapes: Iterable[Fetched], origin: float) -> pa.Table:
    """Canonical samples of every scrape; `t_s` is when the answer was there, from `origin` (monotonic seconds).

    A server that once serves tokens from a tier it does not name cannot tell host from disk at any time, so neither
    is in the table: zero would be a claim.
    """
    rows = [
        (scrape.attempt.ended - origin, sample)
        for scrape in scrapes
        if scrape.text
        for sample in _samples(scrape.text)
    ]
    silent = any(_is_elsewhere(sample) for _, sample in rows)
    kept = [(t_s, sample) for t_s, sample in rows if not (silent and _is_tier_source(sample))]
    return pa.table(
        {
            "t_s": [t_s for t_s, _ in kept],
            "name": [sample.name for _, sample in kept],
            "labels": [json.dumps(dict(sample.labels), sort_keys=True) for _, sample in kept],
            "value": [sample.value for _, sample in kept],
        },
        schema=METRICS,
    )


def _samples(text: str) -> list[CanonicalSample]:
    try:
        return canonical(parse_engine(text, buckets=False))
    except ValueError:
        return []  # a page that only began like an exposition; it stays in the raw file


def _is_elsewhere(sample: CanonicalSample) -> bool:
    here = sample.name == "prompt_tokens_by_source" and sample.labels == (("source", "elsewhere"),)
    return here and sample.value > 0


def _is_tier_source(sample: CanonicalSample) -> bool:
    return sample.name == "prompt_tokens_by_source" and sample.labels in _TIER_SOURCES
