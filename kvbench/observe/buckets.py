"""Buckets of the few histograms whose quantiles a report shows, as canonical samples. Those of all would be most of
a run's metrics.

A bucket is told when it has changed since the scrape before: in between it stands still.
"""

from __future__ import annotations

import math

from kvbench.observe.canonical import canonical
from kvbench.observe.exposition import parse
from kvbench.observe.mapping import CanonicalSample, Labels
from kvbench.observe.metric_table import MAPPINGS
from kvbench.spec.engine_metrics import BUCKETED

__all__ = ["BucketReader"]

_FAMILIES = frozenset(mapping.family for mapping in MAPPINGS if mapping.name in BUCKETED)
_NAMES = frozenset(f"{name}_bucket" for name in BUCKETED)


class BucketReader:
    """Of one server, from scrape to scrape."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, Labels], float] = {}

    def changed(self, text: str) -> list[CanonicalSample]:
        """The buckets in one answer that are not as they were in the one before."""
        every = canonical(parse(text, _FAMILIES))
        found = [
            sample
            for sample in every
            if sample.name in _NAMES
            and _has_edge(sample)
            and self._told.get((sample.name, sample.labels)) != sample.value
        ]
        self._told |= {(sample.name, sample.labels): sample.value for sample in found}
        return found


def _has_edge(sample: CanonicalSample) -> bool:
    """Whether it says what it counts up to; a line without is no bucket, whatever its name."""
    try:
        return not math.isnan(float(dict(sample.labels).get("le", "nan")))
    except ValueError:
        return False
