"""The client asks for right of way, and says whether it has it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, resource, sys, threading
from kvbench.load.precedence import go_first, take_precedence
if "ordinary" in sys.argv:
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    os.setuid(65534)
answer = take_precedence()
policies = [os.sched_getscheduler(0)]
thread = threading.Thread(target=lambda: policies.append(os.sched_getscheduler(0)))
thread.start(); thread.join()
ahead = []
first = threading.Thread(target=lambda: (go_first(), ahead.append(os.sched_getparam(0).sched_priority)))
first.start(); first.join()
print(answer, *(policy == os.SCHED_RR for policy in policies), ahead[0] - os.sched_getparam(0).sched_priority)
"""


def run(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="needs Linux scheduling calls")
def test_what_it_says_is_what_it_and_its_threads_have() -> None:
    answer, process, thread, ahead = run()
    assert answer == process == thread
    assert ahead == ("1" if answer == "True" else "0"), "the thread that goes first is before the others"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the permission up")
def test_without_permission_it_goes_on_as_ordinary_work() -> None:
    assert run("ordinary") == ["False", "False", "False", "0"]
