"""Which loopback port an engine gets."""

from __future__ import annotations

import socket

from kvbench.engine.processes import listeners
from kvbench.errors import InputError

__all__ = ["LOOPBACK", "check_free", "free_port"]

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that was free a moment ago; the kernel does not give it out again soon."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def check_free(port: int) -> None:
    """InputError when something listens on the port that the profile asks for."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            who = ", ".join(f"process {pid}" for pid in sorted(listeners(port)))
            raise InputError(
                f"port {port} is in use" + (f" by {who}" if who else ""),
                key=("engine", "args", "port"),
                do="leave `port` out and kvbench takes a free one, or stop what listens there",
            ) from None
