"""Ending a launch's container for certain. Standard library only, because the keeper uses it. Times in seconds.

Killing the client that was started (`docker run`) does not end what it started, so every container carries the id
of its launch's lease as a label, and goes by that.
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

__all__ = ["LABEL", "REACHED_BY", "Container", "ask_runtime", "client_environment", "reason", "remove_containers"]

LABEL = "kvbench.lease"
"""Label whose value is the lease's id."""

REACHED_BY = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS", "DOCKER_TLS_VERIFY"),
    *("CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
    *("CONTAINERS_REGISTRIES_CONF", "STORAGE_DRIVER", "STORAGE_OPTS"),
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME", "TMPDIR"),
)
"""Variables that say which service a client speaks to or, podman having none, where its containers are
(podman(1), docker's reference of its command line)."""

REMOVE_S = 20.0
"""A container whose processes unpin much memory takes seconds to go; a runtime that does not answer is given up."""

REFUSED_S = 5.0
"""A service that is being restarted is back by then; one that is not running keeps no command waiting longer."""

ANSWER_S = 10.0
LONGEST_REASON = 300
_TOLD = re.compile(r"(?:Error|docker): ", re.IGNORECASE)
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
            env=client_environment(container),
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


def client_environment(container: Container) -> dict[str, str]:
    """This process's, but for the variables that lead to the service: those are as at the launch, or not there."""
    own = {name: value for name, value in os.environ.items() if name not in REACHED_BY}
    return {**own, **dict(container.reached_by)}


def reason(code: int, errors: str) -> str:
    """The line in which a runtime says what is wrong: podman logs warnings before it, docker points to its help
    after it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line for line in lines if _TOLD.match(line)] or [line for line in lines if not line.startswith("time=")]
    line = (told or lines or [""])[0]
    return _TOLD.sub("", line)[:LONGEST_REASON] or f"exit code {code}"


def remove_containers(container: Container, lease_id: str) -> tuple[list[str], list[str]]:
    """Kill and remove every container of a lease; returns what was removed and why one may still be there."""
    if not os.access(container.runtime, os.X_OK):
        return [], [f"container {container.name}: there is no {container.runtime} any more"]
    removed: list[str] = []
    found_none, why, now = 0, "it stays", time.monotonic()
    deadline, refused = now + REMOVE_S, now + REFUSED_S
    while now < min(deadline, refused):
        ids, why = _listed(container, lease_id)
        if ids is not None:
            refused = deadline
        if ids:
            found_none = 0
            code, _, errors = ask_runtime(container, "rm", "--force", "--volumes", *ids)
            removed += [f"container {container.name}"] if code == 0 and not removed else []
            why = "it stays" if code == 0 else reason(code, errors)
        elif ids is not None:
            found_none += 1
            if found_none == 2:
                return removed, []
        time.sleep(_AGAIN_S)
        now = time.monotonic()
    return removed, [f"container {container.name}: {why}"]


def _listed(container: Container, lease_id: str) -> tuple[list[str] | None, str]:
    """Ids of a lease's containers, stopped ones too; None, and why, when the runtime does not tell."""
    code, output, errors = ask_runtime(
        container, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={lease_id}"
    )
    return (output.split(), "it stays") if code == 0 else (None, reason(code, errors))
