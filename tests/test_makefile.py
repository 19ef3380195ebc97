"""`make demo` and `make test` come back from an environment that was half made when somebody stopped them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.missing import missing


def make_environment(venv: Path) -> None:
    """What `make demo` does first, with nothing installed into the environment."""
    if shutil.which("make") is None:
        missing("no make command")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    variables = [f"VENV={venv}", f"PYTHON={sys.executable}", "PIP=true"]
    command = ["make", *variables, str(venv / ".ready-to-run")]
    done = subprocess.run(command, cwd=REPOSITORY, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_environment_without_pip_is_made_anew_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    make_environment(venv)
    subprocess.run([venv / "bin" / "python", "-m", "pip", "--version"], check=True, stdout=subprocess.DEVNULL)
    (venv / ".ready-to-run").unlink()
    (venv / "kept").touch()
    make_environment(venv)
    assert (venv / "kept").exists()


def test_an_environment_whose_interpreter_is_gone_is_made_anew(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(tmp_path / "gone")
    make_environment(venv)
    subprocess.run([venv / "bin" / "python", "-m", "pip", "--version"], check=True, stdout=subprocess.DEVNULL)
