"""A command that tells something and ends: on this host, or in a container that goes with it for certain.

Killing a runtime's client leaves what it started, so that such a container has a lease, too. Times in seconds.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvbench.engine.container_remains import LABEL, Container, client_environment, remove_containers
from kvbench.engine.environment import kvbench_home
from kvbench.engine.leases import MARKER, drop_lease, new_lease, write_lease

__all__ = ["run_shortly"]


def run_shortly(
    command: Sequence[str],
    *,
    container: Container | None,
    env: Mapping[str, str],
    timeout_s: float,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run it, with `given` on its stdin. TimeoutExpired and OSError as `subprocess.run` raises them.

    `container`: the runtime by which `command`, its `run` among them, is a call in a container; `env` is then for
    the runtime's client, over what leads it to its service.
    """
    if container is None:
        return _run(command, {**os.environ, **env}, timeout_s, given)
    lease = new_lease("a question to an image")._replace(container=container)
    path = kvbench_home() / "leases" / f"{lease.id}.json"
    write_lease(lease, path)
    ended = False
    try:
        runtime, run, *rest = command
        labelled = [runtime, run, "--label", f"{LABEL}={lease.id}", *rest]
        answer = _run(labelled, {**client_environment(container), **env, MARKER: lease.id}, timeout_s, given)
        ended = True
        return answer
    finally:
        _forget(container, lease.id, path, removed=ended)  # the runtime itself removed one that has ended


def _run(
    command: Sequence[str], env: Mapping[str, str], timeout_s: float, given: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=given,
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def _forget(container: Container, lease_id: str, path: Path, *, removed: bool) -> None:
    """A lease whose container cannot be removed now stays, for the next command."""
    kept = [] if removed else remove_containers(container, lease_id)[1]
    if not kept:
        drop_lease(path)
