"""A launch's container from outside: which processes of this host it is."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from kvbench.engine.container_remains import REACHED_BY, Container, ask_runtime
from kvbench.engine.processes import ProcessStat, descendants, process_stat

__all__ = ["ContainerProcesses", "reached_by"]


ASK_S = 1.0
"""A call of the runtime's client takes some 50 ms, and a container is there within a second."""


class ContainerProcesses:
    """Its first process is no child of the client that was started, so the runtime is asked for it, once."""

    def __init__(self, container: Container, marker: str) -> None:
        """`marker`: `NAME=value` that every process of the launch has in its environment."""
        self._container = container
        self._marker = marker.encode()
        self._first: int | None = None
        self._asked_at = float("-inf")

    def tree(self, *, fresh: bool = False) -> list[ProcessStat]:
        """Its living processes; none before it runs, nor where they are not this host's (a runtime in a VM).

        `fresh`: ask now, however long ago the last time was.
        """
        if self._first is None and (fresh or time.monotonic() - self._asked_at >= ASK_S):
            self._asked_at = time.monotonic()
            self._first = self._find()
        if self._first is None:
            return []
        first = process_stat(self._first)
        return [*([] if first is None else [first]), *descendants(self._first)]

    def _find(self) -> int | None:
        code, output, _ = ask_runtime(
            self._container, "inspect", "--format", "{{.Id}} {{.State.Pid}}", self._container.name
        )
        words = output.split()
        if code != 0 or len(words) != 2 or not words[1].isdigit() or words[1] == "0":
            return None
        return int(words[1]) if self._is_here(int(words[1]), words[0]) else None

    def _is_here(self, pid: int, container_id: str) -> bool:
        """Whether that pid, on this host, is really the container's: by its control group or its environment."""
        with contextlib.suppress(OSError):
            if container_id in Path(f"/proc/{pid}/cgroup").read_text():
                return True
        with contextlib.suppress(OSError):
            return self._marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False


def reached_by() -> tuple[tuple[str, str], ...]:
    """The variables by which this process reaches its container service, for a later one that has others."""
    return tuple((name, os.environ[name]) for name in REACHED_BY if name in os.environ)
