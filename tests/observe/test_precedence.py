"""While a round plays, every thread of kvbench goes before ordinary work; afterwards none does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from kvbench.observe.precedence import observers_first


def policy(thread: int) -> int:
    return os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK


@pytest.fixture
def other_thread() -> Iterator[int]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert thread.native_id is not None
    yield thread.native_id
    stop.set()
    thread.join()


def permitted() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


def test_all_threads_have_it_inside_and_none_afterwards(other_thread: int) -> None:
    if not permitted():
        pytest.skip("real-time scheduling is not permitted here")
    with observers_first() as given:
        assert given
        assert policy(0) == policy(other_thread) == os.SCHED_RR
    assert policy(0) == policy(other_thread) == os.SCHED_OTHER


def test_children_do_not_inherit_it() -> None:
    with observers_first():
        told = subprocess.run(
            [sys.executable, "-S", "-c", "import os; print(os.sched_getscheduler(0))"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert int(told.stdout) == os.SCHED_OTHER


def test_a_thread_that_ends_inside_is_no_error() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    with observers_first():
        stop.set()
        thread.join()
    assert policy(0) == os.SCHED_OTHER


def test_without_permission_nothing_changes_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with observers_first() as given:
        assert not given
        assert policy(0) == os.SCHED_OTHER
