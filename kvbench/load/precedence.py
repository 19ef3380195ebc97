"""The client's right of way: on a host that it shares with the engine, its times must not depend on the engine."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

__all__ = ["Standing", "go_first", "take_precedence"]

LOOK_NS = 10_000_000
"""How often the CPU time is looked at."""
MARGIN = 0.02
"""Real-time scheduling is given up when so little of the period is left before the kernel's limit: two looks. To do
it sooner would be worse: where others want the same CPU, ordinary threads are late."""
ROOM = 0.03
"""It is taken again once so much of the period is left."""
AHEAD = -10
"""Niceness of the thread that goes first, while all are scheduled as ordinary work."""
_NEVER_NS = 1 << 63
_LIMITS = Path("/proc/sys/kernel")


def take_precedence() -> bool:
    """Run this process, and the threads it starts from now on, before all ordinary work; False where not permitted.

    Real-time scheduling (SCHED_RR at its lowest priority) wants root or CAP_SYS_NICE. Niceness is no substitute: it
    only counts within a session (autogroup), and engine and client are in sessions of their own. On two cores that
    the embedded engine kept 75 % busy, ordinary threads were woken up to 300 ms late, real-time ones within 10 ms.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except (AttributeError, OSError):  # not Linux, or not permitted
        return False
    return True


def go_first() -> None:
    """Run the calling thread before the others of its process, where that has precedence.

    Threads of equal real-time priority wait for each other to pause: while Locust counted the answers of a second,
    the playing thread, woken on the same core, stood still for up to 50 ms.
    """
    try:
        if os.sched_getscheduler(0) == os.SCHED_RR:
            ahead = os.sched_getparam(0).sched_priority + 1
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(ahead))
    except (AttributeError, OSError):  # not Linux, or not permitted
        return


class Standing:
    """Gives real-time scheduling up before the kernel takes it, and takes it again when there is room.

    Real-time threads that have had `sched_rt_runtime_us` of `sched_rt_period_us` (0.95 s of a second, unless set
    otherwise) are not run for the rest of the period: a client that needs a whole core would stand still for 50 ms
    of every second (Documentation/scheduler/sched-rt-group.rst). Ordinary threads are not stopped. To be used from
    the playing thread; where that has no real-time scheduling, or the kernel no limit, it has nothing to do.
    """

    def __init__(self) -> None:
        self.next_ns = _NEVER_NS
        """When to look next, in monotonic ns."""
        self.stepped_down_s = 0.0
        """Seconds spent as ordinary work."""
        self._granted_ns: int | None = None
        self._period_ns = 0
        self._given_up: dict[int, int] = {}
        """Threads and their real-time priorities, while they are ordinary work."""
        self._shared = True
        self._looked_ns = self._cpu_ns = self._real_time_ns = 0
        self._looks: deque[tuple[int, int]] = deque()
        """Real-time CPU time so far at each look of the last period."""

    def begin(self) -> None:
        """From now on the calling thread is the playing one."""
        self._looked_ns = time.monotonic_ns()
        with suppress(AttributeError, OSError):  # not Linux
            # On one CPU all threads use up the same grant; on several they are spread.
            self._shared = len(os.sched_getaffinity(0)) == 1
            if os.sched_getscheduler(0) == os.SCHED_RR:
                self._granted_ns, self._period_ns = _granted()
        if self._granted_ns is not None:
            self.next_ns = self._looked_ns
        self._cpu_ns = self._used_ns()

    def look_if_due(self, now_ns: int) -> None:
        """Compare the real-time CPU time of the last period with what the kernel grants."""
        if now_ns >= self.next_ns and self._granted_ns is not None:
            self._look(now_ns, self._granted_ns)

    def _look(self, now_ns: int, granted_ns: int) -> None:
        before_ns, self._cpu_ns = self._cpu_ns, self._used_ns()
        if self._given_up:
            self.stepped_down_s += (now_ns - self._looked_ns) / 1e9
        else:
            self._real_time_ns += self._cpu_ns - before_ns
        self._looked_ns = now_ns
        self.next_ns = now_ns + LOOK_NS
        looks = self._looks
        looks.append((now_ns, self._real_time_ns))
        while len(looks) > 1 and looks[1][0] <= now_ns - self._period_ns:
            looks.popleft()
        left = (granted_ns - self._real_time_ns + looks[0][1]) / self._period_ns
        if self._given_up:
            if left > ROOM:
                self._step_up()
        elif left < MARGIN:
            self._step_down()

    def _used_ns(self) -> int:
        return time.process_time_ns() if self._shared else time.thread_time_ns()

    def _step_down(self) -> None:
        own = threading.get_native_id()
        threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        threads.sort(key=lambda thread: thread == own)  # the last: none of the others may stay before it
        for thread in threads:
            with suppress(OSError):  # it has ended
                if os.sched_getscheduler(thread) == os.SCHED_RR:
                    self._given_up[thread] = os.sched_getparam(thread).sched_priority
                    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        with suppress(OSError):  # real-time scheduling may be permitted without this
            os.setpriority(os.PRIO_PROCESS, own, AHEAD)

    def _step_up(self) -> None:
        for thread, priority in sorted(self._given_up.items(), key=lambda entry: -entry[1]):
            with suppress(OSError):
                os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(priority))
        self._given_up.clear()


def _granted() -> tuple[int | None, int]:
    """Real-time CPU time that the kernel grants in each period, and the period; ns. None: all, or not known."""
    try:
        runtime_us, period_us = (
            int((_LIMITS / f"sched_rt_{name}_us").read_text("ascii")) for name in ("runtime", "period")
        )
    except (OSError, ValueError):
        return None, 0
    return (runtime_us * 1000 if 0 < runtime_us < period_us else None), period_us * 1000
