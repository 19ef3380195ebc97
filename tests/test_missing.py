"""What a test needs and cannot have is told as what it is: skipped, and under `CI=true` an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(("ci", "code", "says"), [("", 0, "SKIPPED [1]"), ("true", 1, "1 error")])
def test_absent_reference_data(tmp_path: Path, ci: str, code: int, says: str) -> None:
    absent = tmp_path / "nowhere"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider"),
            "tests/spec/test_documented_forms.py::test_the_form_is_loaded_as_it_is_written[Rules-load_rules]",
        ],
        cwd=REPOSITORY,
        env={**os.environ, "CI": ci, "KVBENCH_SHARED": str(absent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert says in done.stdout
    assert f"no reference data at {absent}; set KVBENCH_SHARED" in done.stdout
