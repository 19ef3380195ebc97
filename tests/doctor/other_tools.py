"""What other tools say of this host, for tests that hold kvbench's figures against theirs. Sizes in bytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.missing import missing

__all__ = ["df", "free", "said_by"]


def said_by(*command: str) -> list[str]:
    """Lines of output."""
    if shutil.which(command[0]) is None:
        missing(f"needs {command[0]}")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def free() -> dict[str, list[int]]:
    """`Mem:` total, used, free, shared, cache, available; `Swap:` total, used, free."""
    return {line.split()[0]: [int(field) for field in line.split()[1:]] for line in said_by("free", "-b")[1:]}


def df(path: Path, *columns: str) -> list[str]:
    """Columns by the names of `df --output`, of the file system that `path` lies on."""
    return said_by("df", "-B1", f"--output={','.join(columns)}", str(path))[1].split()
