"""The copy of the package in which faults are tried holds all that the tests of `judge/` import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.proofs.mutation import PYTEST, copy_sources


def test_the_tests_of_judge_are_found_in_the_copy(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *PYTEST, "--collect-only"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr
