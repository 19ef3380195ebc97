"""The first signal ends, later ones wait, and what a library swallows is raised again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from kvbench.errors import EngineError, Interrupted
from kvbench.interrupts import raise_if_stopped, stop_on_signals, undisturbed


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


def test_a_first_signal_waits_for_what_must_not_be_disturbed(capfd: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def cleaned_up() -> None:
        with undisturbed():
            with undisturbed():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("inner")
            done.append("outer")
        done.append("never")

    with pytest.raises(Interrupted) as caught, stop_on_signals():
        cleaned_up()
    assert caught.value.exit_code == 130
    assert done == ["inner", "outer"]
    assert "stopping; removing what was started" in capfd.readouterr().err


def test_what_fails_undisturbed_is_told_and_the_signal_stays_noted() -> None:
    def failed() -> None:
        with undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            raise EngineError("it stays")

    with stop_on_signals():
        with pytest.raises(EngineError, match="stays"):
            failed()
        with pytest.raises(Interrupted):
            raise_if_stopped()


def test_a_clean_up_after_the_first_signal_raises_nothing_of_its_own() -> None:
    cleaned = []

    def stopped() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            with undisturbed():
                os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(Interrupted) as caught, stop_on_signals():
        stopped()
    assert (caught.value.exit_code, cleaned) == (130, [True])


def test_another_thread_holds_no_signal_up() -> None:
    inside, over = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with undisturbed():
            inside.set()
            over.wait(10)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    inside.wait(10)
    try:
        with pytest.raises(Interrupted), stop_on_signals():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        over.set()
        thread.join()


def test_what_a_library_makes_of_the_signal_is_still_the_signal() -> None:
    def in_a_library() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Interrupted as error:
            raise ValueError("it cannot be built") from error

    with pytest.raises(Interrupted) as caught, stop_on_signals():
        in_a_library()
    assert caught.value.exit_code == 143
    with pytest.raises(ValueError, match="its own"), stop_on_signals():
        raise ValueError("its own")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_are_read_ends_with_its_exit_code_and_no_word(number: signal.Signals) -> None:
    program = (
        "import os, sys, kvbench.__main__\n"
        "class Stops:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'kvbench.cli':\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Stops())\n"
        "kvbench.__main__.main()\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (128 + number, "", "")
