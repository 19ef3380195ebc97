"""Scrapes as the rows of `metrics.parquet`. Of histograms sum and count, and of a few the changes of their buckets;
the others stay in the raw file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from kvbench.observe.buckets import BucketReader
from kvbench.observe.canonical import canonical, parse_engine
from kvbench.observe.continuity import Fall, carried, falls
from kvbench.observe.exposition import Exposition
from kvbench.observe.fetch import Fetched
from kvbench.observe.identities import IdentityWatch, settled
from kvbench.observe.iteration_stats import IterationStats, looks_like_iteration_stats
from kvbench.observe.mapping import CanonicalSample
from kvbench.record.tables import METRICS
from kvbench.spec.engine_metrics import COUNTER_RESET, IDENTITY_GAP

__all__ = ["metric_rows"]

_BY_SOURCE = "prompt_tokens_by_source"
_HOST, _DISK, _COMPUTED = ((("source", source),) for source in ("host", "disk", "computed"))


def metric_rows(scrapes: Iterable[Fetched], origin: float) -> pa.Table:
    """Canonical samples of every scrape; `t_s` is when the answer was there, from `origin` (monotonic seconds).

    Beside them what the scrapes say together: which counters fell since the scrape before, and by how much the
    identities of the engine's own sums are missed.
    """
    rows = _without_claims(
        [
            (scrape.attempt.ended - origin, sample)
            for scrape, samples in _read(scrape for scrape in scrapes if scrape.text)
            for sample in samples
        ]
    )
    labels = {sample.labels: "" for _, sample in rows}
    labels = {key: json.dumps(dict(key), sort_keys=True) for key in labels}
    return pa.table(
        {
            "t_s": [t_s for t_s, _ in rows],
            "name": [sample.name for _, sample in rows],
            "labels": [labels[sample.labels] for _, sample in rows],
            "value": [sample.value for _, sample in rows],
        },
        schema=METRICS,
    )


def _read(scrapes: Iterable[Fetched]) -> Iterator[tuple[Fetched, list[CanonicalSample]]]:
    """Each scrape with what it and the one before it say."""
    before: Exposition | None = None
    records, identities, buckets = IterationStats(), IdentityWatch(), BucketReader()
    for scrape in scrapes:
        if looks_like_iteration_stats(scrape.text):
            fell = records.add(scrape.text)
            yield scrape, [*records.samples(), *_resets(fell)]
            continue
        exposition = parse_engine(scrape.text, buckets=False)
        fell = falls(before, exposition) if before is not None else []
        if fell:
            identities.forget()
        yield (
            scrape,
            [
                *canonical(exposition),
                *buckets.changed(scrape.text),
                *_resets(fell),
                *_gaps(exposition, identities),
            ],
        )
        before = carried(before, exposition)


def _resets(fell: Iterable[Fall]) -> Iterator[CanonicalSample]:
    for fall in fell:
        yield CanonicalSample(COUNTER_RESET, (("counter", fall.counter),), fall.by)


def _gaps(exposition: Exposition, identities: IdentityWatch) -> Iterator[CanonicalSample]:
    at = "rest" if settled(exposition) else "load"
    for gap in identities.gaps(exposition):
        yield CanonicalSample(IDENTITY_GAP, (("at", at), ("identity", gap.identity.id)), gap.share)


def _without_claims(rows: list[tuple[float, CanonicalSample]]) -> list[tuple[float, CanonicalSample]]:
    """A server that once serves tokens from a tier it does not name cannot tell host from disk at any time.

    Such a scrape has no host among its sources, so no other may have one: zero would be a claim.
    """
    told: dict[float, set[object]] = {}
    for t_s, sample in rows:
        if sample.name == _BY_SOURCE:
            told.setdefault(t_s, set()).add(sample.labels)
    silent = any(_COMPUTED in sources and _HOST not in sources for sources in told.values())
    if not silent:
        return rows
    return [row for row in rows if not (row[1].name == _BY_SOURCE and row[1].labels in (_HOST, _DISK))]
