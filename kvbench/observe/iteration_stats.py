"""TensorRT-LLM's iteration records (JSON at `/metrics`) in canonical names.

Each record is handed out once, to whoever asks first, so what it says of its own interval is added up here.
Sources: upstream's serializers and their tests; not run. What 1.2 lacks (tokens by tier, copies to the host) is
absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator

from kvbench.observe.continuity import PROCESS, Fall
from kvbench.observe.mapping import CanonicalSample, Labels

__all__ = ["IterationStats", "looks_like_iteration_stats"]

Record = dict[str, object]
_TIERS = {"gpu": "device", "host": "host", "disk": "disk"}
_NUMBERED = ("iter", "iterLatencyMS", "kvCacheStats", "kvCacheIterationStats")
"""One of these is in every record."""
_TOLD_SINCE_START = {"reusedBlocks": "cache_blocks_reused", "missedBlocks": "cache_blocks_missed"}
_COPIES = {
    "iterOnboardBytes": "host_load_bytes",
    "iterOnboardBlocks": "host_load_blocks",
    "iterOffloadBytes": "host_store_bytes",
    "iterOffloadBlocks": "host_store_blocks",
    "iterHostDroppedBlocks": "host_dropped_blocks",
}


def looks_like_iteration_stats(text: str) -> bool:
    """Whether an answer is a list of records; an empty one says that there is nothing new."""
    start = text[:2000].lstrip()
    return start.startswith("[") and (text.strip() == "[]" or any(f'"{key}"' in text for key in _NUMBERED))


class IterationStats:
    """Everything that one server has said so far; one reader a server."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Labels], float] = {}
        self._latest: dict[object, Record] = {}
        """By rank, the newest record of each."""

    def add(self, text: str) -> list[Fall]:
        """Take in one answer; returns what fell in it. A text that is no list of records adds nothing."""
        return self.take(_records(text))

    def take(self, records: Iterable[Record]) -> list[Fall]:
        """The same of an answer that has been parsed."""
        fell: list[Fall] = []
        for record in records:
            rank = record.get("attentionDpRank")
            rank = rank if isinstance(rank, int | str) else None
            fell += self._follows(self._latest.get(rank), record)
            self._count(record)
            self._latest[rank] = record
        return fell

    def samples(self) -> list[CanonicalSample]:
        """Counters and gauges as of the newest records, sorted; empty before the first one."""
        found = {**self._counters, **self._gauges(), **self._since_start()}
        return [CanonicalSample(name, labels, value) for (name, labels), value in sorted(found.items())]

    def _follows(self, before: Record | None, record: Record) -> Iterator[Fall]:
        if before is None:
            return
        last, now = _number(before, "iter"), _number(record, "iter")
        if last is not None and now is not None:
            if now <= last:
                yield Fall(PROCESS, last - now)
            else:
                self._add("iterations_unseen", now - last - 1)
        old, new = _part(before, "kvCacheStats"), _part(record, "kvCacheStats")
        for key, name in _TOLD_SINCE_START.items():
            first, value = _number(old, key), _number(new, key)
            if first is not None and value is not None and value < first:
                yield Fall(name, first - value)

    def _count(self, record: Record) -> None:
        """Add what a record says of its own interval. A key that is not there is not told: no counter begins."""
        self._add("requests_finished", _number(record, "numCompletedRequests"))
        self._add("disk_read_blocks", _number(record, "iterDiskPrefetchBlocks"))
        computed = _number(_part(record, "inflightBatchingStats"), "numCtxTokens")
        self._add("prompt_tokens_by_source", computed, ("source", "computed"))
        for source, tokens in _cached_by_source(record).items():
            self._add("prompt_tokens_by_source", tokens, ("source", source))
        # Copies are told by pool group where there are such, else by attention window.
        for stats in _parts(record, "kvCacheIterationStatsByPoolGroup", "kvCacheIterationStats"):
            for key, name in _COPIES.items():
                self._add(name, _number(stats, key))

    def _add(self, name: str, amount: float | None, *labels: tuple[str, str]) -> None:
        if amount is not None and amount >= 0:
            self._counters[name, labels] = self._counters.get((name, labels), 0.0) + amount

    def _since_start(self) -> dict[tuple[str, Labels], float]:
        """What the engine adds up itself, over all ranks."""
        found: dict[tuple[str, Labels], float] = {}
        for record in self._latest.values():
            for key, name in _TOLD_SINCE_START.items():
                value = _number(_part(record, "kvCacheStats"), key)
                if value is not None and value >= 0:
                    found[name, ()] = found.get((name, ()), 0.0) + value
        return found

    def _gauges(self) -> dict[tuple[str, Labels], float]:
        found: dict[tuple[str, Labels], float] = {}
        for record in self._latest.values():
            for key, name in (("numActiveRequests", "requests_running"), ("numQueuedRequests", "requests_waiting")):
                value = _number(record, key)
                if value is not None:
                    found[name, ()] = found.get((name, ()), 0.0) + value
            for name, share in _usage(record):
                found[name, ()] = max(share, found.get((name, ()), 0.0))
        return found


def _usage(record: Record) -> Iterator[tuple[str, float]]:
    device = [_part(record, "kvCacheStats")]
    host = _parts(
        record,
        "kvCacheIterationStatsByColdPoolGroup",
        "kvCacheIterationStatsByPoolGroup",
        "kvCacheIterationStats",
    )
    for name, parts, used, most in (
        ("kv_cache_usage", device, "usedNumBlocks", "maxNumBlocks"),
        ("host_cache_usage", host, "secondaryUsedNumBlocks", "secondaryMaxNumBlocks"),
    ):
        pairs = [(_number(part, used), _number(part, most)) for part in parts]
        known = [(taken, room) for taken, room in pairs if taken is not None and room is not None]
        room = sum(room for _, room in known)
        if room > 0:
            yield name, sum(taken for taken, _ in known) / room


def _cached_by_source(record: Record) -> dict[str, float]:
    """Prompt tokens of an interval by what held them, where the engine has told what backs each level."""
    levels, tiers = record.get("iterCachedTokensByLevel"), record.get("kvCacheLevelTiers")
    if not isinstance(levels, list) or not isinstance(tiers, list) or len(levels) > len(tiers):
        return {}
    found = {**dict.fromkeys(_TIERS.values(), 0.0), "elsewhere": 0.0}
    for tier, tokens in zip(tiers, levels, strict=False):
        source = _TIERS.get(str(tier).lower(), "elsewhere")
        found[source] += _finite(tokens) or 0.0
    return found


def _records(text: str) -> list[Record]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return []
    several = answer if isinstance(answer, list) else [answer]
    return [record for record in several if isinstance(record, dict)]


def _part(record: Record, key: str) -> Record:
    part = record.get(key)
    return part if isinstance(part, dict) else {}


def _parts(record: Record, *keys: str) -> list[Record]:
    """The parts under the first of these keys that has any."""
    for key in keys:
        parts = [part for part in _part(record, key).values() if isinstance(part, dict)]
        if parts:
            return parts
    return []


def _number(record: Record, key: str) -> float | None:
    return _finite(record.get(key))


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
