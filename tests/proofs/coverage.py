"""Proof that the tests of `judge/`, `spec/` and `workload/` run at least 95 % of each one's lines.

`python -m tests.proofs.coverage [PACKAGE...]` runs the tests that are meant for a package (simulations of minutes
left out, so the share is a lower bound) and prints the share; what tests of other parts run does not count. Exits
with 1 when one is below, or when a test fails. Some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.proofs.mutation import TOO_SLOW

REPOSITORY = Path(__file__).resolve().parents[2]
FLOOR = 95.0
"""Per cent of the lines of a package."""
TESTS: dict[str, tuple[str, ...]] = {
    "judge": ("tests/judge", *(f"--ignore=tests/judge/{name}" for name in TOO_SLOW)),
    "spec": (
        *("tests/spec", "tests/canary/test_canary_file.py", "tests/cli/test_worker_command.py"),
        *("tests/engine/test_lmcache.py", "tests/engine/test_vllm_tiers.py"),
        *("tests/observe/test_host.py", "tests/workload/test_describe.py"),
    ),
    "workload": ("tests/workload",),
}


@dataclass(frozen=True)
class Measured:
    """What the tests of a package run of it."""

    package: str
    percent: float
    lines: int
    passed: bool
    """Whether every test did."""
    output: str
    """Of pytest, with the lines that no test ran."""

    @property
    def holds(self) -> bool:
        return self.passed and self.percent >= FLOOR


def measure(package: str, tests: Sequence[str], workers: int) -> Measured:
    """Run the tests, so many files at a time; 0: in one process."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    with tempfile.TemporaryDirectory(prefix="kvbench-coverage-") as folder:
        report = Path(folder) / "coverage.json"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", *tests, "-q", "--tb=short", "-p", "no:cacheprovider"),
                *("--numprocesses", str(workers), f"--cov=kvbench.{package}"),
                *("--cov-report=term-missing:skip-covered", f"--cov-report=json:{report}"),
            ],
            cwd=REPOSITORY,
            env={**outside, "COVERAGE_FILE": str(Path(folder) / "data")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        totals = json.loads(report.read_text(encoding="utf-8"))["totals"] if report.exists() else {}
    return Measured(
        package,
        percent=100 * totals.get("covered_lines", 0) / max(1, totals.get("num_statements", 0)),
        lines=totals.get("num_statements", 0),
        passed=done.returncode == 0,
        output=done.stdout,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """1 when a package is below, or a test fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"{', '.join(TESTS)}; all unless given")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), help="files at a time")
    given = parser.parse_args(arguments)
    if unknown := set(given.packages) - TESTS.keys():
        parser.error(f"no such package: {', '.join(sorted(unknown))}")
    holds = []
    for package in given.packages or TESTS:
        began = time.monotonic()
        found = measure(package, TESTS[package], given.workers)
        if not found.holds:
            print(found.output)
        word = "holds" if found.holds else "FAILS"
        tests = "every test passes" if found.passed else "not every test passes"
        print(
            f"{word}  {package}/: {found.percent:.2f} % of {found.lines:,} lines, {tests}; at least {FLOOR:g} % "
            f"asked for ({time.monotonic() - began:.0f} s)",
            flush=True,
        )
        holds.append(found.holds)
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
