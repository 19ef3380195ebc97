"""Kernel stamps become monotonic times; a clock that is set is noticed and not believed."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from kvbench.load.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS, Clock, ask_for_receive_times


def stamp(real_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("@ll", *divmod(real_ns, 1_000_000_000)))]


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
    at_ns = clock.received_ns(ancillary)
    assert before - 200_000 <= at_ns <= after + 20_000_000
    assert clock.lags_ns[-1] >= 20_000_000
    assert clock.unstamped == 0


def test_without_a_stamp_the_read_is_timed() -> None:
    clock = Clock()
    before = time.monotonic_ns()
    assert before <= clock.received_ns([]) <= time.monotonic_ns()
    assert clock.unstamped == 1
    assert not clock.lags_ns


def test_a_stamp_from_the_future_is_not_believed() -> None:
    clock = Clock()
    assert clock.received_ns(stamp(time.time_ns() + 10**9)) <= time.monotonic_ns()
    assert clock.unstamped == 1


def test_a_clock_that_was_set_is_noticed_once_and_its_stamps_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600 * 10**9)
    while not clock.steps:
        clock.watch()
    old = clock.received_ns(stamp(real() - 10**6))
    assert time.monotonic_ns() - old < 10**9
    assert clock.unstamped == 1
    for _ in range(1000):  # an undisturbed sample ends the doubt
        clock.watch()
    at_ns = clock.received_ns(stamp(time.time_ns() - 10**6))
    assert time.monotonic_ns() - at_ns == pytest.approx(10**6, abs=5 * 10**7)
    assert clock.steps == 1
    assert len(clock.lags_ns) == 1
