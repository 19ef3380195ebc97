"""Kernel stamps become monotonic times; a clock that is set is noticed and not believed."""

from __future__ import annotations

import socket
import struct
import time
from array import array
from collections.abc import Iterator

import pytest

from kvbench.load.clock import ANCILLARY_BYTES, SAMPLES, SO_TIMESTAMPNS, Clock, ask_for_receive_times


def stamp(real_ns: int) -> bytes:
    return struct.pack("@ll", *divmod(real_ns, 1_000_000_000))


def received(clock: Clock, *stamps: bytes) -> list[int]:
    """Arrival times of reads made now."""
    return clock.received_ns(stamps, array("q", [time.monotonic_ns()] * len(stamps))).tolist()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        ask_for_receive_times(near)
        yield near, far


def test_the_kernels_time_of_a_segment_lies_between_its_sending_and_its_reading(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    clock = Clock()
    far.send(b"first")  # the kernel begins to stamp with the first socket that asks
    time.sleep(0.05)
    near.recv(100)
    before = time.monotonic_ns()
    far.send(b"x")
    after = time.monotonic_ns()
    time.sleep(0.05)
    _, ancillary, _, _ = near.recvmsg(100, ANCILLARY_BYTES)
    assert [(level, kind) for level, kind, _ in ancillary] == [(socket.SOL_SOCKET, SO_TIMESTAMPNS)]
    [at_ns] = received(clock, ancillary[0][2])
    assert before - 200_000 <= at_ns <= after + 20_000_000
    assert clock.lags_ns[0][0] >= 20_000_000
    assert clock.unstamped == 0


def test_without_a_stamp_the_read_is_timed() -> None:
    clock = Clock()
    before = time.monotonic_ns()
    [at_ns] = received(clock, b"")
    assert before <= at_ns <= time.monotonic_ns()
    assert clock.unstamped == 1
    assert clock.lags_ns[0].tolist() == []


def test_reads_with_and_without_a_stamp_keep_their_order() -> None:
    clock = Clock()
    now = time.monotonic_ns()
    real = time.time_ns()
    stamps = [stamp(real - 5_000_000), b"", stamp(real - 3_000_000), b"\0" * 15, stamp(real - 1_000_000)]
    times = clock.received_ns(stamps, array("q", [now - 4_000_000, now - 3_900_000, now, now, now])).tolist()
    assert times == sorted(times)
    assert times[1] == now - 3_900_000
    assert times[3] == times[4] == now  # the stamp says less, but what was read before it was timed by the clock
    assert clock.unstamped == 2


def test_a_stamp_from_the_future_is_not_believed() -> None:
    clock = Clock()
    assert received(clock, stamp(time.time_ns() + 10**9))[0] <= time.monotonic_ns()
    assert clock.unstamped == 1


def test_a_clock_that_was_set_is_noticed_once_and_its_stamps_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600 * 10**9)
    before = array("q", [time.monotonic_ns()])
    stamped_before = stamp(real() - 10**6)
    while not clock.steps:
        clock.watch()
    [old] = received(clock, stamp(real() - 10**6))
    assert time.monotonic_ns() - old < 10**9
    assert clock.unstamped == 1
    for _ in range(1000):  # an undisturbed sample ends the doubt
        clock.watch()
    [at_ns] = received(clock, stamp(time.time_ns() - 10**6))
    assert time.monotonic_ns() - at_ns == pytest.approx(10**6, abs=5 * 10**7)
    assert clock.steps == 1
    # What was read before the clock was set keeps the offset of then, whenever it is looked at.
    assert before[0] - clock.received_ns([stamped_before], before)[0] == pytest.approx(10**6, abs=5 * 10**7)
    assert clock.unstamped == 1


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Reading the real-time clock takes 50 us, more than an undisturbed sample may; it is ahead by what the list
    holds."""
    ahead_ns = [0]
    real = time.time_ns

    def slow() -> int:
        until_ns = time.monotonic_ns() + 50_000
        while time.monotonic_ns() < until_ns:
            pass
        return real() + ahead_ns[0]

    monkeypatch.setattr(time, "time_ns", slow)
    return ahead_ns


def test_where_reading_a_clock_is_slow_its_being_set_is_noticed_all_the_same(slow_clock: list[int]) -> None:
    clock = Clock()
    for _ in range(3 * SAMPLES):
        clock.watch()
    slow_clock[0] = -3_600 * 10**9
    read = array("q", [time.monotonic_ns()])
    told_ns = time.time_ns() - 10**6
    for _ in range(2 * SAMPLES):  # the narrowest of the first half may be one from before
        clock.watch()
    assert clock.steps == 1
    clock.received_ns([stamp(told_ns)], read)
    assert clock.unstamped == 1, "read after the clock was set and before that was noticed"
    for _ in range(SAMPLES):
        clock.watch()
    [at_ns] = received(clock, stamp(time.time_ns() - 10**6))
    assert time.monotonic_ns() - at_ns == pytest.approx(10**6, abs=5 * 10**7)
    assert (clock.steps, clock.unstamped) == (1, 1)


def test_a_slow_clock_that_is_disturbed_was_not_set(slow_clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a scheduler that takes the processor away in the middle of every sample, now before and now after the
    clock was read."""
    clock = Clock()
    slow = time.time_ns
    count = 0

    def disturbed() -> int:
        nonlocal count
        count += 1
        time.sleep(0.002 if count % 2 else 0)
        at_ns = slow()
        time.sleep(0 if count % 2 else 0.002)
        return at_ns

    monkeypatch.setattr(time, "time_ns", disturbed)
    for _ in range(4 * SAMPLES):
        clock.watch()
    assert clock.steps == 0
