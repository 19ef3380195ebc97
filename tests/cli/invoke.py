"""Runs the command line as a user does, in a process of its own or in this one: two streams and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from kvbench.cli import main

CRASH = ("Traceback", "kvbench failed:", "fault of kvbench itself")
"""What is said of an error that nobody foresaw; its traceback is kept in a file and not shown."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def crashed(self) -> bool:
        """Whether it ended with an error that nobody foresaw."""
        return any(words in self.text for words in CRASH)


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


def kvbench_here(*arguments: str | Path, env: dict[str, str] | None = None, encoding: str = "utf-8") -> Answer:
    """The same without a new interpreter, which takes longer than reading a file and refusing it."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "argv", ["kvbench", *map(str, arguments)]),
        mock.patch.dict(os.environ, {"NO_COLOR": "1", "COLUMNS": "100", **(env or {})}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Answer(code, *(stream.buffer.getvalue().decode(encoding) for stream in (out, err)))  # type: ignore[attr-defined]
