"""The first signal ends, later ones wait, and what a library swallows is raised again."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from kvbench.compare.interrupts import raise_if_stopped, stop_on_signals
from kvbench.errors import Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_with_its_exit_code_and_handlers_are_as_before(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP would be ignored
    try:
        with pytest.raises(Interrupted) as caught, stop_on_signals():
            os.kill(os.getpid(), number)
        assert caught.value.exit_code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_later_signals_do_not_disturb_the_clean_up(capfd: pytest.CaptureFixture[str]) -> None:
    cleaned = []

    def stopped_twice_more() -> None:
        with stop_on_signals():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                cleaned.append(True)

    with pytest.raises(Interrupted) as caught:
        stopped_twice_more()
    assert caught.value.exit_code == 143
    assert cleaned == [True]
    assert capfd.readouterr().err.count("already stopping") == 2


def test_what_a_library_swallows_is_raised_at_the_next_step() -> None:
    with stop_on_signals():
        raise_if_stopped()
        with contextlib.suppress(Exception):  # what is tested: libraries do that
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            raise_if_stopped()
    with stop_on_signals():
        raise_if_stopped()


def test_a_background_job_of_a_shell_heeds_sigint_and_nohup_keeps_sighup_ignored() -> None:
    old = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        with stop_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(Interrupted):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
