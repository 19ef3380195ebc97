"""What TensorRT-LLM tells only once, added up: iteration records and cache events, as counters that only grow.

Reuse is told in blocks, so tokens are whole blocks: up to one block a request more than was really reused where
partial reuse is on. In 1.2 nothing but the events tells the host tier from the device, and tokens are split when
their events have come, seconds later at most. Pure; not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvbench.observe.iteration_stats import IterationStats
from kvbench.observe.kvbench_names import PREFIX
from kvbench.observe.mapping import CanonicalSample, Labels
from kvbench.spec.engine_metrics import ENGINE_METRICS

__all__ = ["TrtllmLedger"]

DEVICE, HOST = 0, 1
"""Cache levels of events."""

_BY_SOURCE = "prompt_tokens_by_source"
_MOST = 2**53
"""Whole numbers from here on are none: a float, which the page is read as, does not tell them apart."""

Record = dict[str, Any]
"""JSON from outside."""


class TrtllmLedger:
    """What one server has told since its start. `tokens_per_block` as configured, until the server says it."""

    def __init__(self, tokens_per_block: int) -> None:
        self.tokens_per_block = tokens_per_block
        self.levels: tuple[int, ...] | None = None
        """Blocks by cache level, device first; None until the server has said so."""
        self.iterations = self.events = self.events_lost = 0
        self.onboarded = self.offloaded = 0
        """Blocks that went from host to device, and from device to host."""
        self._stats = IterationStats()
        self._stale = False
        self._next_event: dict[int, int] = {}
        self._reused_before = self._split = self._device_tokens = self._elsewhere = 0

    def take_iterations(self, records: list[Record]) -> None:
        """What `GET /metrics` gave out."""
        if not records:
            return
        self._stats.take(records)
        self.iterations += len(records)
        self._stale = False
        for record in records:
            size = _whole(_part(record, "kvCacheStats").get("tokensPerBlock"))
            self.tokens_per_block = size or self.tokens_per_block

    def take_events(self, events: Iterable[Record]) -> None:
        """What `POST /kv_cache_events` gave out; also when that was nothing.

        The records that were there when it was asked the time before are then accounted for, events and all.
        """
        for event in events:
            self.events += 1
            self._count(event)
            data = _part(event, "data")
            if data.get("type") == "created":
                self.levels = _levels(data.get("num_blocks_per_cache_level")) or self.levels
            elif data.get("type") == "updated":
                self._note_move(_part(data, "cache_level"))
        self._settle(self._reused_before)
        reused = self._iteration_samples().get(("cache_blocks_reused", ()), 0)
        if reused < _MOST:
            self._reused_before = int(reused)

    def _count(self, event: Record) -> None:
        """Ids of a rank are consecutive; the oldest events are dropped when the engine's buffer is full."""
        this, rank = _whole(event.get("event_id")), _whole(event.get("attention_dp_rank")) or 0
        if this is not None:
            self.events_lost += max(0, this - self._next_event.get(rank, 0))
            self._next_event[rank] = this + 1

    def _note_move(self, level: Record) -> None:
        move = (_whole(level.get("old_value")), _whole(level.get("new_value")))
        self.offloaded += move == (DEVICE, HOST)
        self.onboarded += move == (HOST, DEVICE)

    def _settle(self, reused: int) -> None:
        """Split the blocks that were reused, without ever taking a token back.

        After an event was lost the split is unknown; from then on, what is reused comes from elsewhere.
        """
        size = self.tokens_per_block
        if self.events_lost or self.levels is None:
            self._elsewhere = max(self._elsewhere, (reused - self._split) * size - self._device_tokens)
            return
        self._split = self.onboarded
        self._device_tokens = max(self._device_tokens, (reused - self.onboarded) * size - self._elsewhere)

    def forget_moment(self) -> None:
        """Drop the gauges: what was told is about a request of kvbench's own. The next record brings new ones."""
        self._stale = True

    @property
    def has_moment(self) -> bool:
        """Whether the gauges are about the load."""
        return not self._stale

    @property
    def host_blocks(self) -> int | None:
        """Blocks that the server has in host memory; None: it has not said."""
        return None if self.levels is None else sum(self.levels[HOST:])

    def _iteration_samples(self) -> dict[tuple[str, Labels], float]:
        return {(sample.name, sample.labels): sample.value for sample in self._stats.samples()}

    def samples(self) -> list[CanonicalSample]:
        """Everything in canonical names. No number: it was told before, and is not known any more."""
        found = self._iteration_samples()
        if self._stale:
            found = {key: value for key, value in found.items() if ENGINE_METRICS[key[0]].kind != "gauge"}
        if (_BY_SOURCE, (("source", "device"),)) not in found:  # releases after 1.2 tell the tiers themselves
            found |= {(_BY_SOURCE, (("source", source),)): tokens for source, tokens in self._sources().items()}
        found.setdefault((_BY_SOURCE, (("source", "computed"),)), self._missed_tokens(found))
        found.setdefault(("host_load_blocks", ()), self.onboarded)
        found.setdefault(("host_store_blocks", ()), self.offloaded)
        found["metric_events_lost", ()] = self.events_lost
        return [CanonicalSample(name, labels, value) for (name, labels), value in sorted(found.items())]

    def _sources(self) -> dict[str, float]:
        if self.levels is None:
            return {"elsewhere": self._elsewhere}
        host = math.nan if self.events_lost else self._split * self.tokens_per_block
        tiers: dict[str, float] = {"device": self._device_tokens, "host": host, "elsewhere": self._elsewhere}
        if len(self.levels) <= HOST + 1:  # there is no level behind the host
            tiers["disk"] = math.nan if self.events_lost else 0
        return tiers

    def _missed_tokens(self, found: Mapping[tuple[str, Labels], float]) -> float:
        return found.get(("cache_blocks_missed", ()), 0) * self.tokens_per_block

    def exposition(self) -> str:
        """The samples as Prometheus text."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        family = ""
        for name, labels, value in self.samples():
            metric = ENGINE_METRICS[name]
            full = f"{PREFIX}{name}" + ("_total" if metric.kind == "counter" else "")
            if full != family:
                yield f"# HELP {full} {metric.meaning}"
                yield f"# TYPE {full} {metric.kind}"
                family = full
            shown = ",".join(f'{key}="{text}"' for key, text in labels)
            yield f"{full}{{{shown}}} {value}" if shown else f"{full} {value}"


def _part(record: Record, key: str) -> Record:
    part = record.get(key)
    return part if isinstance(part, dict) else {}


def _levels(told: object) -> tuple[int, ...] | None:
    """None unless every level has a number of blocks."""
    sizes = [_whole(blocks) for blocks in told] if isinstance(told, list) else []
    known = tuple(blocks for blocks in sizes if blocks is not None)
    return known if known and len(known) == len(sizes) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None
