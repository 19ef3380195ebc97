"""Runs tests against one fault after another, each in a fork of one collected pytest session.

mutmut writes all faults of a module beside its functions and switches one on by name; its own runner collects all
tests again for each, which takes seconds. Started by `mutation.py` in the copy, as a program of its own: `faults.py
JOB`, a job in JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

NOTICED, SURVIVED, UNREACHED, TIME_OUT = "noticed", "survived", "reached by no test", "time-out"
LIMIT_TIMES, LIMIT_S = 4.0, 10.0
"""A fault that makes its tests take so many times the CPU as without it, and so many seconds more, is noticed by
that."""
ENOUGH_S = 10.0
"""CPU of the tests that are tried for a fault; one that only later ones would notice counts as not noticed."""
SOUND, BROKEN = 0, 1


@dataclass
class Reach:
    """Which tests call a function, the most direct ones first, and how much CPU each takes in seconds."""

    tests: dict[str, list[str]] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    """What fails without any fault can notice none and is left out."""


class Faults:
    """Takes the place of pytest's own loop over the tests."""

    def __init__(
        self, places: Sequence[str], reach: Path, results: Path, workers: int, before: Sequence[str]
    ) -> None:
        """`before` names functions of the tests that make what many of them share, called once for all forks."""
        self._before = before
        self._places = places
        self._reach = reach
        self._results = results
        self._workers = workers
        self._running: dict[int, tuple[str, int]] = {}
        """Process → its place, and where it tells which test noticed."""
        self._noticed_by: Counter[tuple[str, str]] = Counter()
        """How often a test noticed a fault in a function, and in a module."""
        for place, _, test in read_results(results):
            self._count(place, test)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Every place in turn; results are written as they come."""
        items = {item.nodeid: item for item in session.items}
        for name in self._before:
            getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])()
        reach = self._measured(items)
        gc.freeze()  # what forks need not look at they need not copy
        for place in self._places:
            while len(self._running) >= self._workers:
                self._wait()
            if tests := self._in_order(place, reach):
                self._try(place, [items[test] for test in tests], sum(reach.took_s[test] for test in tests))
            else:
                self._write(place, UNREACHED)
        while self._running:
            self._wait()
        return True

    def _in_order(self, place: str, reach: Reach) -> list[str]:
        """Tests of a place, as many as are enough: first what noticed most in its function and its module, then the
        most direct ones."""
        function, module = _function(place), _module(place)
        order = sorted(
            reach.tests.get(function, []),
            key=lambda test: (-self._noticed_by[function, test], -self._noticed_by[module, test]),
        )
        spent_s = accumulate((reach.took_s[test] for test in order), initial=0.0)
        return [test for test, before_s in zip(order, spent_s, strict=False) if before_s < ENOUGH_S]

    def _try(self, place: str, tests: Sequence[pytest.Item], took_s: float) -> None:
        told, tell = os.pipe()
        if pid := os.fork():
            os.close(tell)
            self._running[pid] = place, told
            return
        limit_s = round(LIMIT_S + LIMIT_TIMES * took_s)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
        set_mutant_under_test(place)
        for test in tests:
            if failed(test):
                os.write(tell, test.nodeid.encode())
                os._exit(BROKEN)
        os._exit(SOUND)

    def _wait(self) -> None:
        pid, status = os.wait()
        place, told = self._running.pop(pid)
        with os.fdopen(told, "rb") as pipe:
            test = pipe.read().decode()
        words = {SOUND: SURVIVED, -signal.SIGXCPU: TIME_OUT}
        self._write(place, words.get(os.waitstatus_to_exitcode(status), NOTICED), test)

    def _write(self, place: str, result: str, test: str = "") -> None:
        self._count(place, test)
        with self._results.open("a", encoding="utf-8") as file:
            file.write(json.dumps([place, result, test]) + "\n")

    def _count(self, place: str, test: str) -> None:
        self._noticed_by[_function(place), test] += 1
        self._noticed_by[_module(place), test] += 1

    def _measured(self, items: dict[str, pytest.Item]) -> Reach:
        """Which test reaches what, measured once in a fork, so that nothing it caches is there for the faults."""
        if not self._reach.exists():
            if not (pid := os.fork()):
                os._exit(self._measure(items))
            if os.waitpid(pid, 0)[1]:
                raise pytest.Exit("the tests could not be run without any fault", returncode=1)
        return Reach(**json.loads(self._reach.read_text(encoding="utf-8")))

    def _measure(self, items: dict[str, pytest.Item]) -> int:
        reach, found = Reach(), {}
        set_mutant_under_test("stats")
        for name, item in items.items():
            state()._stats.clear()
            began = time.process_time()
            if failed(item):
                reach.failing.append(name)
            else:
                reach.took_s[name] = time.process_time() - began
                found[name] = set(state()._stats)
        for name in sorted(found, key=lambda name: len(found[name])):
            for function in found[name]:
                reach.tests.setdefault(function, []).append(name)
        whole = self._reach.with_suffix(".part")
        whole.write_text(json.dumps(vars(reach)), encoding="utf-8")
        whole.rename(self._reach)
        return SOUND


def _function(place: str) -> str:
    return place.partition("__mutmut_")[0]


def _module(place: str) -> str:
    return _function(place).rpartition(".")[0]


def failed(item: Any) -> bool:
    """Whether a test fails, its set-up and tear-down included."""
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def read_results(path: Path) -> Iterator[tuple[str, str, str]]:
    """What was written so far: place, result, the test that noticed. A last line that was cut short is left out."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.endswith("]"):
                place, result, test = json.loads(line)
                yield place, result, test


def main() -> int:
    """Run a job: the arguments of `Faults`, and those of pytest."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, str(Path.cwd()))
    loop = Faults(job["places"], Path(job["reach"]), Path(job["results"]), job["workers"], job["before"])
    return int(pytest.main(job["pytest"], plugins=[loop]))


if __name__ == "__main__":
    sys.exit(main())
