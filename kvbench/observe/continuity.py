"""Whether counters went on between two scrapes: a reset or restart is told with what it took, never clamped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from kvbench.observe.exposition import Exposition, Sample
from kvbench.observe.metric_table import BY_FAMILY, PROCESS_START
from kvbench.observe.token_sources import COUNTED_IN
from kvbench.observe.vllm_names import CREATED
from kvbench.spec.engine_metrics import PROCESS

__all__ = ["PROCESS", "Beginning", "Fall", "beginning", "carried", "falls", "resets"]


class Fall(NamedTuple):
    """A counter that was lower than before; of several series of one name, all that they lost."""

    counter: str
    """Canonical name, of a histogram with `_sum`, `_count` or `_bucket`; or `process`."""
    by: float
    """In the counter's unit; of `process` by how many seconds it began later."""


class Beginning(NamedTuple):
    """Counters that were created later than those of the scrape before."""

    at_s: float
    """When, Unix seconds by the server's clock."""
    process: bool | None
    """Whether another process answers; False: the same one, its counters alone are new. None: it does not tell."""


def falls(before: Exposition, after: Exposition) -> list[Fall]:
    """What fell between two scrapes of one server, sorted by name.

    Each rank's series is looked at by itself: their sum may grow while one of them began anew. A series that is no
    longer there has lost what it counted; a family that is no longer declared is unknown.
    """
    lost: dict[str, float] = {}
    for mapping in (mapping for family in before.families for mapping in BY_FAMILY.get(family, ())):
        if mapping.metric.kind == "gauge" or not (mapping.applies(before) and mapping.applies(after)):
            continue
        for sample, by in _fallen(before, after, mapping.family):
            if mapping.chosen(sample):
                name = mapping.named(sample)[0]
                lost[name] = lost.get(name, 0.0) + by
    if fell := _sources_fell(before, after):
        lost["prompt_tokens_by_source"] = fell
    if (later := _began_later(before, after)) is not None:
        lost[PROCESS] = later
    return [Fall(name, lost[name]) for name in sorted(lost)]


def _fallen(before: Exposition, after: Exposition, family: str) -> Iterator[tuple[Sample, float]]:
    """The series of a family that were lower than before, each as it was, and by how much."""
    now = _series(after[family])
    for key, sample in _series(before[family]).items():
        value = now[key].value if key in now else 0.0
        if 0 < sample.value - value < math.inf:
            yield sample, sample.value - value


def _sources_fell(before: Exposition, after: Exposition) -> float:
    """By how many tokens the series fell that tell where tokens came from. Several families count the same ones."""
    told_in_both = [family for family in COUNTED_IN if family in before and family in after]
    return max((sum(by for _, by in _fallen(before, after, family)) for family in told_in_both), default=0.0)


def carried(before: Exposition | None, exposition: Exposition) -> Exposition:
    """What was last known of every family: one that this scrape does not tell, or not readably, may come back lower
    than it was."""
    if before is None:
        return exposition
    return Exposition(before.families | exposition.families, before.kinds | exposition.kinds)


def _series(samples: tuple[Sample, ...]) -> dict[tuple[str, tuple[tuple[str, str], ...]], Sample]:
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample for sample in samples}


def _began_later(before: Exposition, after: Exposition) -> float | None:
    """By how much counters that were there before were created anew. One that is created only now is no restart."""
    return _moved(before, after, CREATED) or _moved(before, after, PROCESS_START) or None


def _moved(before: Exposition, after: Exposition, family: str) -> float | None:
    """By how many seconds a beginning is another one than before; None when it is not told in both."""
    first, last = _series(before[family]), _series(after[family])
    moved = [last[key].value - sample.value for key, sample in first.items() if key in last]
    return max(filter(math.isfinite, moved), key=abs, default=None)


def beginning(before: Exposition, after: Exposition) -> Beginning | None:
    """What began between two scrapes; None when all goes on, or when the later one shows an older beginning: then
    one of several servers behind one address has answered."""
    process, counters = _moved(before, after, PROCESS_START), _moved(before, after, CREATED)
    later = process or counters
    if later is None or later <= 0:
        return None
    told = [sample.value for sample in after[PROCESS_START if process else CREATED]]
    return Beginning(max(filter(math.isfinite, told)), None if process is None else process > 0)


def resets(before: Exposition, after: Exposition) -> tuple[str, ...]:
    """Canonical counters that fell, and `process` when the counters were created anew: the engine restarted."""
    return tuple(fall.counter for fall in falls(before, after))
