"""A worker's line to its master: Locust's worker, every word of ours sealed once both have proven the secret."""

from __future__ import annotations

import os
import secrets
import socket
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

from gevent import Timeout
from gevent.event import AsyncResult
from locust.env import Environment
from locust.rpc import Message as LocustMessage
from locust.runners import WorkerRunner
from locust.stats import RequestStats

from kvbench import __version__
from kvbench.errors import InputError, KvbenchError, LoadError
from kvbench.load import messages as m
from kvbench.spec.crew import Address

__all__ = ["NoMasterError", "Remote"]

HANDSHAKE_S = 20.0
GONE_S = 15.0
"""A master answers every heartbeat, of which there is one a second."""
_LOCUSTS_OWN = frozenset({"ack", "spawn", "spawning_complete"})


class NoMasterError(LoadError):
    """There is nobody to work for; EX_TEMPFAIL of sysexits.h."""

    exit_code = 75


class Remote(WorkerRunner):
    """Made, it has found a master; NoMasterError when there is none for five minutes."""

    def __init__(
        self, environment: Environment, address: Address, take: Callable[[m.Message, bytes, int], None]
    ) -> None:
        """`take` gets message, blob, and when it came (monotonic ns), in the listening greenlet."""
        self.address = address
        self.error: KvbenchError | None = None
        """Why nothing that the master says can be believed."""
        self._take = take
        self._seal: m.Seal | None = None
        self._answer: AsyncResult = AsyncResult()
        self._heard_s = time.monotonic()
        self._left = False
        environment.stats = RequestStats(use_response_times_cache=False)
        # Locust would read its own options from files and the environment of whoever runs the worker.
        environment.parsed_options = Namespace(web_base_path="", headless=True, enable_rebalancing=False)
        try:
            super().__init__(environment, address.zmq_host, address.port)
        except ConnectionError as error:
            raise NoMasterError(f"nobody awaits workers at {address}") from error

    @property
    def gone(self) -> bool:
        """Whether the master has fallen silent or has sent this worker away."""
        return self._left or time.monotonic() - self._heard_s > GONE_S

    def join(self, secret: bytes, index: int | None) -> None:
        """Prove the secret to each other. InputError when they differ or the master refuses."""
        nonce = secrets.token_hex(16)
        hello = m.Hello(
            protocol=m.PROTOCOL,
            kvbench=__version__,
            nonce=nonce,
            host=socket.gethostname(),
            machine=_machine(),
            index=index,
        )
        self._send(m.unsealed(hello))
        try:
            challenge = self._answer.get(timeout=HANDSHAKE_S)
        except Timeout as error:
            raise LoadError(f"the master at {self.address} does not answer") from error
        if challenge.proof != m.master_proof(secret, nonce, challenge.nonce):
            raise InputError(
                f"the master at {self.address} does not have the secret of this worker",
                do="set the same secret in the environment of both",
            )
        self._seal = m.Seal(m.session_key(secret, nonce, challenge.nonce), master=False)
        self.say(m.Proof())

    def say(self, message: m.Message, blob: bytes = b"") -> None:
        """Send to the master."""
        if self._seal is None:
            raise RuntimeError("nothing is said before the handshake")
        self._send(self._seal.close(message, blob))

    def leave(self) -> None:
        """Send what is waiting, for a second at most, and close."""
        self.greenlet.kill(block=False)
        self.client.close(linger=1000)  # type: ignore[no-untyped-call]

    def _send(self, envelope: dict[str, object]) -> None:
        self.client.send(LocustMessage(m.ENVELOPE, envelope, self.client_id))  # type: ignore[no-untyped-call]

    # -- what Locust calls ------------------------------------------------------------------------------------

    def handle_message(self, msg: LocustMessage) -> None:
        """Ours and what Locust needs to start users; nothing that would change this process otherwise."""
        came_ns = time.monotonic_ns()
        self._heard_s = came_ns / 1e9
        if msg.type == m.ENVELOPE:
            try:
                self._open(msg.data, came_ns)
            except KvbenchError as error:
                self.error = error
                if not self._answer.ready():
                    self._answer.set_exception(error)
        elif msg.type == "heartbeat":
            self.last_heartbeat_timestamp = time.time()
        elif msg.type == "quit":
            self._left = True
        elif msg.type in _LOCUSTS_OWN:
            super().handle_message(msg)

    def _open(self, data: object, came_ns: int) -> None:
        if self._seal is not None:
            message, blob = self._seal.open(data)
            self._take(message, blob, came_ns)
        elif m.kind_of(data) == m.Refused.__name__:
            refused = m.read_unsealed(data, m.Refused)
            raise InputError(refused.what, do=refused.do)
        else:
            self._answer.set(m.read_unsealed(data, m.Challenge))


def _machine() -> str:
    """Equal for processes that share a monotonic clock: the boot, and the time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return socket.gethostname()
