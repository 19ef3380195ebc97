"""Ending a launch's container for certain. Standard library only, because the keeper uses it. Times in seconds.

Killing the client that was started (`docker run`) does not end what it started, so every container carries the id
of its launch's lease as a label, and goes by that.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

__all__ = ["LABEL", "Container", "ask_runtime", "remove_containers"]

LABEL = "kvbench.lease"
"""Label whose value is the lease's id."""

REMOVE_S = 20.0
"""A container whose processes unpin much memory takes seconds to go; a runtime that does not answer is given up."""

ANSWER_S = 10.0
_AGAIN_S = 0.3
"""A client that was killed may have asked for the container a moment before: one more look finds it."""


class Container(NamedTuple):
    """The runtime's client, as an absolute path, and the environment variables that say where its service is."""

    runtime: str
    name: str
    reached_by: tuple[tuple[str, str], ...] = ()


def ask_runtime(container: Container, *arguments: str, timeout_s: float | None = None) -> tuple[int, str, str]:
    """Exit code, output and errors of one call; 125, as the runtimes' own failures, when it cannot be made."""
    import subprocess  # not needed by a keeper without a container, which must start at once

    timeout_s = ANSWER_S if timeout_s is None else timeout_s
    try:
        answer = subprocess.run(
            [container.runtime, *arguments],
            env={**os.environ, **dict(container.reached_by)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,  # Ctrl-C in a terminal is for kvbench, which still has to clean up
        )
    except subprocess.TimeoutExpired:
        return 125, "", f"{container.runtime} gave no answer in {timeout_s:.0f} s"
    except OSError as error:
        return 125, "", f"{container.runtime}: {error.strerror or error}"
    return answer.returncode, answer.stdout, answer.stderr


def remove_containers(container: Container, lease_id: str) -> tuple[list[str], list[str]]:
    """Kill and remove every container of a lease; returns what was removed and why one may still be there."""
    removed: list[str] = []
    deadline, found_none, why = time.monotonic() + REMOVE_S, 0, "it stays"
    while time.monotonic() < deadline:
        ids, why = _listed(container, lease_id)
        if ids:
            found_none = 0
            code, _, errors = ask_runtime(container, "rm", "--force", "--volumes", *ids)
            removed += [f"container {container.name}"] if code == 0 and not removed else []
            why = errors.strip()[-300:] or "it stays"
        elif ids is not None:
            found_none += 1
            if found_none == 2:
                return removed, []
        time.sleep(_AGAIN_S)
    return removed, [f"container {container.name}: {why}"]


def _listed(container: Container, lease_id: str) -> tuple[list[str] | None, str]:
    """Ids of a lease's containers, stopped ones too; None, and why, when the runtime does not tell."""
    code, output, errors = ask_runtime(
        container, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={lease_id}"
    )
    return (output.split(), "it stays") if code == 0 else (None, errors.strip()[-300:] or f"exit code {code}")
