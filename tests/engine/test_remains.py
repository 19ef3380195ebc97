"""Ending what a launch left: who is told first."""

from __future__ import annotations

import os
import signal
import subprocess

from kvbench.engine.processes import Process, identify
from kvbench.engine.remains import end_processes


def test_while_the_client_of_a_container_runs_it_alone_is_told() -> None:
    """The monitor is one that has to see the client's end, as podman's has to see the container's."""
    ends, held = os.pipe()
    client = subprocess.Popen(["sleep", "60"], stdout=held)
    monitor = subprocess.Popen(["cat"], stdin=ends)
    os.close(held)
    os.close(ends)
    both = {identify(process.pid): process for process in (client, monitor)}

    def left() -> list[Process]:
        if client.poll() is not None:
            monitor.wait(10)
        return [process for process, child in both.items() if child.poll() is None]

    assert end_processes(left, 10.0, first=identify(client.pid)) == []
    assert (client.returncode, monitor.returncode) == (-signal.SIGTERM, 0)


def test_once_the_client_is_gone_the_others_are_told() -> None:
    client = subprocess.Popen(["sleep", "60"])
    first = identify(client.pid)
    client.kill()
    client.wait()
    other = subprocess.Popen(["sleep", "60"])
    process = identify(other.pid)
    assert end_processes(lambda: [process] if other.poll() is None else [], 10.0, first=first) == []
    assert other.returncode == -signal.SIGTERM
