"""Runs the command line as a user does: a process of its own, its two streams and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def kvbench(
    *arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None, timeout_s: float = 120
) -> Answer:
    """Run `kvbench ARGUMENTS` and wait for its end."""
    done = subprocess.run(
        [sys.executable, "-m", "kvbench", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
