"""A transfer path of finite bandwidth: all jobs under way share it equally, the others queue. Times in seconds.

Each kind of job (reads, writes) has its own queue and its own number of lanes, as threads or copy engines are.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Job", "TransferPath"]

T = TypeVar("T")


@dataclass(slots=True)
class Job(Generic[T]):
    """Something to move; `work_s` is how long it takes alone on the path."""

    kind: str
    work_s: float
    content: T
    began_s: float = 0.0
    ended_s: float = 0.0


class TransferPath(Generic[T]):
    """Processor sharing: with n jobs under way each gets 1/n of the path."""

    def __init__(self, lanes: dict[str, int]) -> None:
        self._lanes = lanes
        self._busy = dict.fromkeys(lanes, 0)
        self._queues: dict[str, deque[Job[T]]] = {kind: deque() for kind in lanes}
        self._under_way: list[tuple[float, int, Job[T]]] = []
        """(the share of work at which it is done, order, job)."""
        self._shared_s = 0.0
        """Work that each job under way has had since the beginning."""
        self._now_s = 0.0
        self._order = 0

    @property
    def empty(self) -> bool:
        return not self._under_way

    def submit(self, job: Job[T], now_s: float) -> None:
        """Queue it. Everything that ended before `now_s` must have been taken by `ended`."""
        self._move(now_s)
        if self._busy[job.kind] < self._lanes[job.kind]:
            self._begin(job)
        else:
            self._queues[job.kind].append(job)

    def _begin(self, job: Job[T]) -> None:
        job.began_s = self._now_s
        self._busy[job.kind] += 1
        self._order += 1
        heapq.heappush(self._under_way, (self._shared_s + job.work_s, self._order, job))

    def _move(self, now_s: float) -> None:
        if now_s > self._now_s:
            if self._under_way:
                self._shared_s += (now_s - self._now_s) / len(self._under_way)
            self._now_s = now_s

    def next_end_s(self) -> float:
        """When the next job is done if none is added; infinite when there is none."""
        if not self._under_way:
            return math.inf
        left_s = self._under_way[0][0] - self._shared_s
        return self._now_s + left_s * len(self._under_way) if left_s > 0.0 else self._now_s

    def ended(self, now_s: float) -> list[Job[T]]:
        """What is done by `now_s`, in the order of its end; the next in the queues take its place at that time."""
        done: list[Job[T]] = []
        while (end_s := self.next_end_s()) <= now_s:
            job = self._under_way[0][2]
            self._shared_s = max(self._shared_s, self._under_way[0][0])
            heapq.heappop(self._under_way)
            self._now_s = job.ended_s = end_s
            self._busy[job.kind] -= 1
            if self._queues[job.kind]:
                self._begin(self._queues[job.kind].popleft())
            done.append(job)
        self._move(now_s)
        return done

    def clear(self) -> None:
        """Drop everything."""
        self._under_way.clear()
        for kind, queue in self._queues.items():
            queue.clear()
            self._busy[kind] = 0
