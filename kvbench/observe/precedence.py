"""The observers' right of way: while a round plays, scrapes and samples are not to wait for the engine's CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["observers_first"]

TASKS = Path("/proc/self/task")


@contextmanager
def observers_first() -> Iterator[bool]:
    """Run every thread of this process before all ordinary work; False where that is not permitted.

    Real-time scheduling at its lowest priority, as the client has; children do not inherit it. All threads, since
    one that waits for the CPU while it holds the interpreter's lock holds up the others. Measured on two cores that
    the embedded engine kept 90 % busy: ordinary threads of this process, which take 4 % of a core, stood still for
    up to 4.5 s, so that rounds were spoiled by scrapes that nobody made.
    """
    before = {thread: _policy(thread) for thread in _threads()}
    given = [thread for thread in before if _give(thread)]
    try:
        yield bool(given)
    finally:
        for thread in given:
            _set(thread, *before[thread])


def _threads() -> list[int]:
    try:
        return [int(entry.name) for entry in TASKS.iterdir()]
    except OSError:  # not Linux
        return []


def _policy(thread: int) -> tuple[int, int]:
    try:
        return os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
    except OSError:  # it ended meanwhile
        return os.SCHED_OTHER, 0


def _give(thread: int) -> bool:
    policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
    return _set(thread, policy, os.sched_get_priority_min(os.SCHED_RR))


def _set(thread: int, policy: int, priority: int) -> bool:
    try:
        os.sched_setscheduler(thread, policy, os.sched_param(priority))
    except OSError:  # not permitted, or it ended meanwhile
        return False
    return True
