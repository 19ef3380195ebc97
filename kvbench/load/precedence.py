"""The client's right of way: on a host that it shares with the engine, its times must not depend on the engine."""

from __future__ import annotations

import os

__all__ = ["go_first", "take_precedence"]


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
