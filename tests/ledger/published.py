"""What an emulated round would have published as KV events: truth to hold a replay of events against.

The emulated core keeps blocks as vLLM does and publishes nothing, so its stores and removals are noted here as they
happen and said when the step that they belong to ends, as vLLM says them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvbench.engine.emulated.device import DeviceBlocks
from kvbench.engine.emulated.host import HostChunks
from kvbench.engine.emulated.policies import Lru
from kvbench.engine.emulated.request import Request
from kvbench.engine.emulated.scheduler import EmulatedCore
from kvbench.engine.emulated.simulated import SimulatedRound
from kvbench.engine.emulated.tiers import Tiers
from kvbench.engine.emulated.virtual import simulate
from kvbench.ledger.events import KvEvent, event_table
from kvbench.ledger.history import UNKNOWN
from kvbench.ledger.prompts import Prompts
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import Schedule

TOKEN_IDS = (32, 255)


class Publisher:
    """Notes what happens to blocks; `events` at the end of each step."""

    def __init__(self, schedule: Schedule, block_tokens: int) -> None:
        self.events: list[KvEvent] = []
        self._pending: list[tuple[str, str, tuple[int, ...]]] = []
        self._step = 0
        self._width = block_tokens
        self._prompts = Prompts(schedule, TOKEN_IDS, {r.id: r.returned_tokens for r in schedule.in_order()})
        self._content: dict[int, tuple[int | None, np.ndarray]] = {}

    def knows(self, request: Request) -> None:
        """What the blocks of a request hold; answers hold what nobody knows beforehand."""
        tokens = self._prompts.tokens(request.id, request.prompt_tokens)
        whole = np.concatenate([tokens, np.full(request.output_tokens, UNKNOWN, np.int32)])
        parent: int | None = None
        for index, key in enumerate(request.keys):
            block = whole[index * self._width : (index + 1) * self._width].copy()
            block[block == UNKNOWN] = 1000 + key
            self._content.setdefault(key, (parent, block))
            parent = key

    def note(self, kind: str, tier: str, keys: Sequence[int]) -> None:
        if keys:
            self._pending.append((kind, tier, tuple(keys)))

    def step_ends(self, now_s: float) -> None:
        # The cache manager's events come before the connector's.
        for kind, tier, keys in sorted(self._pending, key=lambda noted: noted[1] != "device"):
            parent, tokens = None, np.empty(0, np.int32)
            if kind == "stored" and tier == "device":
                parent = self._content[keys[0]][0]
                tokens = np.concatenate([self._content[key][1] for key in keys])
            self.events.append(
                KvEvent(
                    batch=self._step,
                    t_s=now_s,
                    kind=kind,  # type: ignore[arg-type]
                    tier=tier,
                    hashes=tuple(map(_hash, keys)),
                    parent=None if parent is None else _hash(parent),
                    tokens=tokens,
                    block_tokens=self._width if len(tokens) else 0,
                    group=0,
                )
            )
        self._step += bool(self._pending)
        self._pending.clear()


def _hash(key: int) -> bytes:
    return key.to_bytes(8, "big")


def play_and_publish(
    schedule: Schedule, profile: Profile, block_tokens: int
) -> tuple[SimulatedRound, pd.DataFrame]:
    """A round in virtual time, and its events as a stored round has them."""
    publisher = Publisher(schedule, block_tokens)
    with _watched(publisher):
        played = simulate(schedule, profile)
    zero_s = _zero_s(played, publisher)
    moved = [
        KvEvent(e.batch, e.t_s - zero_s, e.kind, e.tier, e.hashes, e.parent, e.tokens, e.block_tokens, e.group)
        for e in publisher.events
    ]
    return played, event_table(moved).to_pandas()


def _zero_s(played: SimulatedRound, publisher: Publisher) -> float:
    """The core's clock begins with the first priming request, the round's when the last is over."""
    first = played.requests.to_pandas()["sent_s"].min()
    return -float(first)


@contextmanager
def _watched(publisher: Publisher) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        _watch_device(patch, publisher)
        _watch_tiers(patch, publisher)
        turn, submit = EmulatedCore._turn, EmulatedCore.submit

        def turned(core: EmulatedCore, now_s: float, until_s: float) -> None:
            publisher.step_ends(now_s)
            turn(core, now_s, until_s)

        def submitted(core: EmulatedCore, request: Request, now_s: float) -> None:
            publisher.knows(request)
            submit(core, request, now_s)

        patch.setattr(EmulatedCore, "_turn", turned)
        patch.setattr(EmulatedCore, "submit", submitted)
        yield


def _watch_device(patch: pytest.MonkeyPatch, publisher: Publisher) -> None:
    register, allocate = DeviceBlocks.register, DeviceBlocks.allocate

    def registered(device: DeviceBlocks, blocks: Sequence[int], keys: Sequence[int]) -> None:
        publisher.note("stored", "device", keys)
        register(device, blocks, keys)

    def allocated(device: DeviceBlocks, count: int) -> list[int]:
        before = list(device._keys)
        blocks = allocate(device, count)
        for block in blocks:
            key = before[block]
            publisher.note("removed", "device", () if key is None else (key,))
        return blocks

    patch.setattr(DeviceBlocks, "register", registered)
    patch.setattr(DeviceBlocks, "allocate", allocated)


def _watch_tiers(patch: pytest.MonkeyPatch, publisher: Publisher) -> None:
    evict, complete, moved = Lru.evict, HostChunks.complete_store, Tiers._moved_by_disk

    def evicted(policy: Lru, *arguments: Any) -> list[int] | None:
        found = evict(policy, *arguments)
        publisher.note("removed", "host", found or ())
        return found

    def completed(chunks: HostChunks, keys: Sequence[int]) -> None:
        publisher.note("stored", "host", keys)
        complete(chunks, keys)

    def by_disk(tiers: Tiers, job: Any) -> None:
        moved(tiers, job)
        if job.kind == "write":
            publisher.note("stored", "disk", job.content[1])

    patch.setattr(Lru, "evict", evicted)
    patch.setattr(HostChunks, "complete_store", completed)
    patch.setattr(Tiers, "_moved_by_disk", by_disk)
