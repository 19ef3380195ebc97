"""The tiers behind the device: look-ups, promotions, loads, stores and cascades, in the order in which vLLM's
offloading connector (0.32) makes them. Times in seconds.

Two transfer paths of finite bandwidth: device and host (one lane each way), host and disk (its threads). Copies
that are under way share their path, so stores slow promotions down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import cast

from kvbench.engine.emulated.counters import Counters
from kvbench.engine.emulated.host import HostChunks
from kvbench.engine.emulated.noise import Variation
from kvbench.engine.emulated.path import Job, TransferPath
from kvbench.engine.emulated.request import Request
from kvbench.engine.emulated.sizes import Sizes
from kvbench.spec.emulation import Costs, Injections

__all__ = ["Tiers"]

Moved = tuple[Request, Sequence[int]]
"""For whom, and which chunks."""
_NEVER_ASKED = object()
_SOONEST_S = 1e-6
"""An answer comes after its question: at the same instant nobody would look for it again."""


class Tiers:
    """Host and, when there is one, disk."""

    def __init__(
        self, sizes: Sizes, costs: Costs, injections: Injections, variation: Variation, counters: Counters
    ) -> None:
        self._sizes = sizes
        self.counters = counters
        self._variation = variation
        self._host = HostChunks(sizes.host_chunks, sizes.host_policy, store_threshold=sizes.store_threshold)
        self.on_disk: set[int] = set()
        """Chunks in files; they outlive a restart of the engine."""
        slow = injections.slow_promotions.factor if injections.slow_promotions else 1.0
        self._work_s = {
            "load": _per_chunk(costs.load_block, sizes, sizes.load_bytes_per_s) * slow,
            "store": _per_chunk(costs.store_block, sizes, sizes.load_bytes_per_s),
            "read": _per_chunk(costs.read_block, sizes, sizes.read_bytes_per_s) * slow,
            "write": _per_chunk(costs.write_block, sizes, None),
        }
        self._job_s = {
            "load": costs.transfer,
            "store": costs.transfer,
            "read": costs.disk_transfer,
            "write": costs.disk_transfer,
        }
        self._lookup_s = max(costs.lookup, _SOONEST_S)
        self._gives = not injections.no_promotions
        self._host_path = TransferPath[Moved]({"load": 1, "store": 1})
        self._disk_path = TransferPath[Moved]({"read": sizes.read_lanes, "write": sizes.write_lanes})
        self._being_loaded: set[int] = set()
        self._promotions: dict[int, tuple[Request, list[int]]] = {}
        self._stores: list[Moved] = []
        self._loads: list[Moved] = []
        self._work_left_s = 0.0
        self.version = 0
        """Rises whenever something has arrived, so that an undecided look-up is worth another try."""

    @property
    def pending(self) -> bool:
        """Whether copies begin at the end of the step."""
        return bool(self._stores or self._loads)

    @property
    def moving(self) -> bool:
        """Whether there is work of moving blocks that has fallen into no step yet."""
        return self._work_left_s > 0

    def next_end_s(self) -> float:
        """When the next transfer is done."""
        host_s, disk_s = self._host_path.next_end_s(), self._disk_path.next_end_s()
        return host_s if host_s < disk_s else disk_s

    # -- looking up -------------------------------------------------------------------------------------------

    def prepare(self, request: Request) -> None:
        """Chunks of a new request: one key for each, that of its last block."""
        per_chunk = self._sizes.blocks_per_chunk
        request.chunks = request.keys if per_chunk == 1 else request.keys[per_chunk - 1 :: per_chunk]
        tokens = request.prompt_tokens if self._sizes.prompt_only else request.prompt_tokens + request.output_tokens
        request.storable = min(tokens // self._sizes.chunk_tokens, len(request.chunks))

    def lookup(self, request: Request, device_blocks: int, now_s: float) -> int | None:
        """Tokens that can be loaded behind what is on the device; None: not known before something has arrived.

        A disk hit begins its promotion here, so the next look-up finds it in the host tier.
        """
        chunk = self._sizes.chunk_tokens
        here = device_blocks * self._sizes.block_tokens
        end = min(request.total_tokens // chunk, len(request.chunks))
        if not self._gives or end * chunk - here < chunk:
            return 0
        if request.jobs:
            self._defer(request, now_s)
            return None
        start = here // chunk
        keys = request.chunks[start:end]
        hits = self._scan(request, keys, now_s)
        if hits is None:
            self._defer(request, now_s)
            return None
        found = chunk * (start + hits) - here
        if found < chunk:
            return 0
        if self._being_loaded and not self._being_loaded.isdisjoint(keys[:hits]):
            self._defer(request, now_s)
            return None
        if not math.isnan(request.waited_since_s):
            self.counters.lookup.observe(now_s - request.waited_since_s)
            request.waited_since_s = math.nan
        return found

    def _defer(self, request: Request, now_s: float) -> None:
        request.version = self.version
        request.wake_s = request.answers_s if request.asked else math.inf
        if math.isnan(request.waited_since_s):
            request.waited_since_s = now_s

    def _scan(self, request: Request, keys: Sequence[int], now_s: float) -> int | None:
        """Leading chunks that are in the host tier; None: some are on their way, or the disk has not answered."""
        if request.asked and now_s >= request.answers_s:
            self._answer(request)
        references = self._host.references
        disk = self._sizes.disk and not request.past_secondary
        hits = place = 0
        undecided = False
        while place < len(keys):
            states = list(map(references.get, keys[place:]))
            here = states.index(None) if None in states else len(states)
            if here:
                undecided = undecided or min(cast(list[int], states[:here])) < 0
                hits += here
                place += here
            if place == len(keys) or not disk:
                break
            away = _leading_none(states[here:])
            taken, promoted = self._fetch(request, keys[place : place + away])
            undecided = undecided or taken > 0
            hits += promoted
            place += taken
            if taken < away:
                break
        if request.asked:
            request.answers_s = min(request.answers_s, now_s + self._lookup_s)
        return None if undecided else hits

    def _fetch(self, request: Request, keys: Sequence[int]) -> tuple[int, int]:
        """Ask the disk for chunks that are not in the host tier, or begin to promote them: how many come before the
        first that is nowhere or finds no room, and how many of these are being promoted."""
        known = request.known
        taken = hits = 0
        for there, group in groupby([known.get(key, _NEVER_ASKED) for key in keys]):
            part = keys[taken : taken + len(list(group))]
            if there is _NEVER_ASKED:
                known.update(dict.fromkeys(part))
                request.asked.extend(part)
            elif there is not None:
                promoted = self._promote(request, part) if there else 0
                hits += promoted
                if promoted < len(part):
                    return taken + promoted, hits
            taken += len(part)
        return taken, hits

    def _answer(self, request: Request) -> None:
        there = list(map(self.on_disk.__contains__, request.asked))
        request.known.update(zip(request.asked, there, strict=True))
        self.counters.chunk_hits += sum(there)
        self.counters.chunk_queries += len(there)
        request.asked.clear()
        request.answers_s = math.inf

    def _promote(self, request: Request, keys: Sequence[int]) -> int:
        """Begin to fetch chunks from disk; for how many the host tier has room."""
        room = self._host.promote(keys, request.access)
        if room < len(keys):
            self.counters.promotion_drops += 1
        if room:
            request.from_disk.update(keys[:room])
            self._promotions.setdefault(request.id, (request, []))[1].extend(keys[:room])
        return room

    # -- moving -----------------------------------------------------------------------------------------------

    def load(self, request: Request, device_blocks: int, tokens: int) -> None:
        """Copy what a look-up has found to the device, and note where each token came from.

        vLLM's workers begin a load after the step in which it was decided, and look for its end right then and
        after later steps (`start_after_forward`): a busy engine resumes the request a step later than an idle one.
        """
        chunk = self._sizes.chunk_tokens
        here = device_blocks * self._sizes.block_tokens
        first, end = here // chunk, (here + tokens) // chunk
        keys = request.chunks[first:end]
        if not request.preempted:
            from_disk = len(request.from_disk.intersection(keys)) * chunk
            if keys and keys[0] in request.from_disk:
                from_disk -= here - first * chunk  # the device holds the beginning of the first chunk
            request.disk_tokens, request.host_tokens = from_disk, tokens - from_disk
        self._host.prepare_load(keys, request.access)
        self._being_loaded.update(keys)
        request.offered = max(request.offered, end)
        request.jobs += 1
        self._loads.append((request, keys))

    def _submit(self, path: TransferPath[Moved], kind: str, moved: Moved, now_s: float) -> None:
        work_s = (self._job_s[kind] + len(moved[1]) * self._work_s[kind]) * self._variation.factor(now_s)
        path.submit(Job(kind, work_s, moved), now_s)
        self._work_left_s += len(moved[1]) * self._work_s[kind]

    def work_within(self, step_s: float) -> float:
        """Seconds of moving blocks that fall into a step of this length; what is fixed of a job is waiting."""
        work_s = min(self._work_left_s, step_s)
        self._work_left_s -= work_s
        return work_s

    def schedule_ended(
        self, requests: Iterable[tuple[Request, int]], finished: list[Request], now_s: float
    ) -> None:
        """What a step sets going: promotions now; `requests` with the tokens they will have after it are stored."""
        for moved in self._promotions.values():
            self._submit(self._disk_path, "read", moved, now_s)
        self._promotions.clear()
        for request, tokens in requests:
            if request.offered < request.storable:
                self._offer(request, tokens)
        for request in finished:
            if request.offered < request.storable:
                self._offer(request, request.prompt_tokens)
            self._host.request_finished(request.chunks, request.access)

    def _offer(self, request: Request, tokens: int) -> None:
        end = min(tokens // self._sizes.chunk_tokens, request.storable)
        if end <= request.offered:
            return
        before = self._host.skipped
        prepared = self._host.prepare_store(request.chunks[request.offered : end], request.access)
        self.counters.stores_skipped += self._host.skipped - before
        if prepared is None:
            self.counters.allocation_failures += 1
            return
        request.offered = end
        if prepared[0]:
            request.jobs += 1
            self._stores.append((request, prepared[0]))

    def step_ended(self, now_s: float) -> None:
        """Blocks that the step has written can be copied, and what it was to load is loaded."""
        for kind, copies in (("store", self._stores), ("load", self._loads)):
            for moved in copies:
                self._submit(self._host_path, kind, moved, now_s)
            copies.clear()

    def arrive(self, now_s: float) -> None:
        """Take in what was done by now."""
        if not self._disk_path.empty:
            for read_or_written in self._disk_path.ended(now_s):
                self._moved_by_disk(read_or_written)
        if not self._host_path.empty:
            for loaded_or_stored in self._host_path.ended(now_s):
                self._moved_by_host(loaded_or_stored, now_s)
        if self._disk_path.empty and self._host_path.empty:
            self._work_left_s = 0.0

    def _moved_by_disk(self, job: Job[Moved]) -> None:
        _, keys = job.content
        amount, took_s = len(keys) * self._sizes.chunk_bytes, job.ended_s - job.began_s
        if job.kind == "read":
            self._host.complete_store(keys)
            self.counters.read_bytes += amount
            self.counters.read_s += took_s
        else:
            self._host.complete_load(keys)
            self.on_disk.update(keys)
            self.counters.write_bytes += amount
            self.counters.write_s += took_s
        self.version += 1

    def _moved_by_host(self, job: Job[Moved], now_s: float) -> None:
        request, keys = job.content
        amount, took_s = len(keys) * self._sizes.chunk_bytes, job.ended_s - job.began_s
        request.jobs -= 1
        if job.kind == "load":
            self._host.complete_load(keys)
            self._being_loaded.difference_update(keys)
            request.loaded = True
            self.counters.load_bytes += amount
            self.counters.load_s += took_s
            self.counters.load_jobs += 1
        else:
            self._host.complete_store(keys)
            self.counters.store_bytes += amount
            self.counters.store_s += took_s
            self.counters.store_jobs += 1
            if self._sizes.disk:
                self._host.prepare_load(keys, None)
                self._submit(self._disk_path, "write", (request, keys), now_s)
        self.version += 1

    def forget(self) -> None:
        """Empty the host tier and drop what is under way; files stay."""
        self._host.reset()
        for path in (self._host_path, self._disk_path):
            path.clear()
        self._being_loaded.clear()
        self._promotions.clear()
        self._stores.clear()
        self._loads.clear()
        self._work_left_s = 0.0
        self.version += 1


def _leading_none(states: list[int | None]) -> int:
    if states.count(None) == len(states):
        return len(states)
    return next(place for place, state in enumerate(states) if state is not None)


def _per_chunk(block_s: float, sizes: Sizes, bytes_per_s: float | None) -> float:
    """A throttled path takes as long as its bandwidth says, if that is longer."""
    throttled_s = sizes.block_bytes / bytes_per_s if bytes_per_s else 0.0
    return max(block_s, throttled_s) * sizes.blocks_per_chunk
