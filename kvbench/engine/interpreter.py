"""The Python behind an engine's command, and what of the engine is installed for it, found without importing it.

An upgrade changes neither the command nor its interpreter: an answer that is kept for later is kept with this.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kvbench.engine.launch import NOT_INHERITED

__all__ = ["installation", "installed_version", "python_of"]

ANSWER_S = 20.0
"""Starting an interpreter and listing its folders takes some 50 ms; this is for packages on a network, and for a
machine that is swapping."""

_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
_FILES = """\
import glob, os, sys
for folder in filter(None, sys.path):
    start = os.path.join(glob.escape(folder), sys.argv[1])
    for pattern in ("*.dist-info", "*.egg-info", "/__init__.py", "/*version.py"):
        for path in sorted(glob.glob(start + pattern)):
            print(os.stat(path).st_mtime_ns, path)
"""


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
    """Of a package, as the command's interpreter finds it when launched with `env`.

    None where there is no such interpreter or package.
    """
    python = python_of(command)
    if python is None:
        return None
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return _told(python, _VERSION, package, {**inherited, **env}).strip() or None


def installation(python: str, package: str, env: Mapping[str, str]) -> str:
    """What tells one installation of a package from another: its files that name a version, with their times.

    Empty where there is none to be seen.
    """
    return _told(python, _FILES, package, env)


def _told(python: str, program: str, package: str, env: Mapping[str, str]) -> str:
    """What it prints; nothing when it fails or takes `ANSWER_S`."""
    try:
        answer = subprocess.run(
            [python, "-c", program, package],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
