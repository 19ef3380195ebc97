"""The client asks for right of way, and says whether it has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_what_it_says_is_what_it_and_its_threads_have() -> None:
    answer, process, thread, ahead = run()
    assert answer == process == thread
    assert ahead == ("1" if answer == "True" else "0"), "the thread that goes first is before the others"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the permission up")
def test_without_permission_it_goes_on_as_ordinary_work() -> None:
    assert run("ordinary") == ["False", "False", "False", "0"]


STANDING = """
import os, sys, threading, time
from pathlib import Path
from kvbench.load import precedence

def policies():
    return {os.sched_getscheduler(int(task.name)) for task in Path("/proc/self/task").iterdir()}

def look_until(wanted, work):
    end = time.monotonic() + 20
    while policies() != {wanted} and time.monotonic() < end:
        work()
        standing.look_if_due(time.monotonic_ns())
    return policies() == {wanted}

precedence._LIMITS = Path(sys.argv[1])
had = precedence.take_precedence()
over = threading.Event()
threading.Thread(target=over.wait).start()
precedence.go_first()
first = os.sched_getparam(0).sched_priority
standing = precedence.Standing()
standing.begin()
print(had, standing.next_ns < 1 << 62)
if had and standing.next_ns < 1 << 62:
    down = look_until(os.SCHED_OTHER, lambda: sum(range(20_000)))
    up = look_until(os.SCHED_RR, lambda: time.sleep(0.02))
    print(down, standing.stepped_down_s > 0, up, os.sched_getparam(0).sched_priority == first)
over.set()
"""


def stand(limits: Path, runtime_us: int, period_us: int) -> list[str]:
    (limits / "sched_rt_runtime_us").write_text(f"{runtime_us}\n")
    (limits / "sched_rt_period_us").write_text(f"{period_us}\n")
    done = subprocess.run([sys.executable, "-c", STANDING, limits], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_close_to_what_the_kernel_grants_it_steps_down_with_all_its_threads_and_up_again(tmp_path: Path) -> None:
    had, watching, *found = stand(tmp_path, 95_000, 200_000)
    assert had == watching
    assert found == (["True"] * 4 if had == "True" else [])


@pytest.mark.parametrize("runtime_us", [-1, 0, 1_000_000])
def test_without_a_limit_of_the_kernel_it_never_steps_down(tmp_path: Path, runtime_us: int) -> None:
    assert stand(tmp_path, runtime_us, 1_000_000)[1:] == ["False"]
