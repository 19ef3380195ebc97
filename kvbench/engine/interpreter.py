"""The Python behind an engine's command, and which release of the engine is installed for it. Times in seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kvbench.engine.launch import NOT_INHERITED

__all__ = ["installed_version", "python_of"]

ANSWER_S = 10.0
"""An interpreter whose packages lie on a network may take seconds to find one."""

ASK = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def python_of(command: str) -> str | None:
    """The interpreter that a command is, or that its first line names."""
    found = shutil.which(command)
    if found is None:
        return None
    if Path(found).name.startswith("python"):
        return found
    try:
        with Path(found).open("rb") as file:
            first = file.readline(500).decode(errors="replace")
    except OSError:
        return None
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if len(words) > 1 and Path(words[0]).name == "env":
        return shutil.which(words[1]) if "python" in words[1] else None
    return words[0] if words and "python" in words[0] else None


def installed_version(command: str, package: str, env: Mapping[str, str]) -> str | None:
    """Of a package, as the command's interpreter finds it when launched with `env`; the package is not imported.

    None where there is no such interpreter or package.
    """
    python = python_of(command)
    if python is None:
        return None
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    try:
        answer = subprocess.run(
            [python, "-c", ASK, package],
            env={**inherited, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
