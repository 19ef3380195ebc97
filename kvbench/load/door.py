"""Locust's master behind a door: only workers that prove to have the secret take part, all others are strangers.

Locust carries the messages, keeps count of heartbeats, starts users and gathers statistics. What strangers send is
neither believed nor able to end the listening.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

import gevent
import zmq
from locust import __version__ as locust_version
from locust.env import Environment
from locust.rpc import Message as LocustMessage
from locust.runners import STATE_MISSING, MasterRunner

from kvbench import __version__
from kvbench.errors import InputError
from kvbench.load.messages import (
    ENVELOPE,
    PROTOCOL,
    BadMessageError,
    Challenge,
    Hello,
    Message,
    Proof,
    Refused,
    Seal,
    kind_of,
    master_proof,
    read_unsealed,
    session_key,
    unsealed,
)
from kvbench.spec.crew import Address

__all__ = ["Door", "Visitor"]

log = logging.getLogger(__name__)

LARGEST_MESSAGE_BYTES = 64 * 2**20
"""A batch has at most half a megabyte; one request with a very long answer may have more."""
REBIND_ATTEMPTS = 100
MOST_STRANGERS = 256
"""Handshakes under way at the same time."""
_LOCUSTS_OWN = frozenset({"heartbeat", "stats", "spawning", "spawning_complete", "exception"})


@dataclass(frozen=True)
class Visitor:
    """A worker that has proven to have the secret."""

    id: str
    hello: Hello


class Door(MasterRunner):
    """`joined`, `received` and `broken` are called in the listening greenlet and must not block."""

    def __init__(
        self,
        environment: Environment,
        address: Address,
        secret: bytes,
        *,
        joined: Callable[[Visitor], None],
        received: Callable[[str, Message, bytes, int], None],
        broken: Callable[[str, str], None],
    ) -> None:
        """`received` gets worker, message, blob, and when it came (monotonic ns); `broken` worker and reason.

        InputError when `address` cannot be listened on."""
        self._secret = secret
        self._joined, self._received, self._broken = joined, received, broken
        self._strangers: dict[str, tuple[Hello, Seal]] = {}
        self._seals: dict[str, Seal] = {}
        _check_free(address)
        super().__init__(environment, address.zmq_host, address.port)
        self._limit_messages()

    def _limit_messages(self) -> None:
        """Options count from the next bind on, and a port is given back a moment after it was asked to be."""
        door = self.server.socket
        endpoint = f"tcp://{self.master_bind_host}:{self.server.port}"
        door.unbind(endpoint)
        door.setsockopt(zmq.MAXMSGSIZE, LARGEST_MESSAGE_BYTES)
        for attempt in range(REBIND_ATTEMPTS):
            try:
                door.bind(endpoint)
                return
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or attempt == REBIND_ATTEMPTS - 1:
                    raise
                gevent.sleep(0.02)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server.port)

    def say(self, worker: str, message: Message, blob: bytes = b"") -> None:
        """Send to one worker; lost when it is gone, which its heartbeat then tells."""
        self._send(worker, self._seals[worker].close(message, blob))

    def shut(self) -> None:
        """Send what is waiting, for a moment, and close."""
        self.server.close(linger=100)  # type: ignore[no-untyped-call]

    def lost(self, worker: str) -> bool:
        """Whether its heartbeat has stopped, or it has left."""
        node = self.clients.get(worker)
        return node is None or node.state == STATE_MISSING

    def _send(self, worker: str, envelope: dict[str, object]) -> None:
        self.server.send_to_client(LocustMessage(ENVELOPE, envelope, worker))  # type: ignore[no-untyped-call]

    # -- what Locust calls ------------------------------------------------------------------------------------

    def client_listener(self) -> NoReturn:
        """Listen for ever; whatever comes must not end it."""
        while True:
            worker = ""
            try:
                worker, message = self.server.recv_from_client()  # type: ignore[no-untyped-call]
                self.handle_message(worker, message)
            except Exception as error:  # written down, and held against whoever it came from
                log.warning("a message of %r cannot be dealt with", worker, exc_info=True)
                self._broken(worker, f"its message cannot be dealt with: {type(error).__name__}: {error}")
                gevent.sleep(0.01)

    def handle_message(self, client_id: str, msg: LocustMessage) -> None:
        """Sort out what comes: ours, Locust's own from those who have joined, and a stranger's first word."""
        if msg.node_id != client_id:
            return
        if msg.type == ENVELOPE:
            self._take(client_id, msg.data)
        elif msg.type == "client_ready":
            self.send_message("ack", {"index": -1}, client_id)
        elif client_id not in self._seals:
            return
        elif msg.type == "quit":
            self.clients.pop(client_id, None)
        elif msg.type in _LOCUSTS_OWN:
            super().handle_message(client_id, msg)

    # -- the door ---------------------------------------------------------------------------------------------

    def _take(self, worker: str, data: object) -> None:
        came_ns = time.monotonic_ns()
        seal = self._seals.get(worker)
        try:
            if seal is None:
                self._greet(worker, data)
                return
            message, blob = seal.open(data)
        except BadMessageError as error:
            log.warning("%s: %s", worker, error)
            if seal is not None:
                self._broken(worker, error.what)
            return
        self._received(worker, message, blob, came_ns)

    def _greet(self, worker: str, data: object) -> None:
        if kind_of(data) == Hello.__name__:
            self._challenge(worker, read_unsealed(data, Hello))
            return
        hello, seal = self._strangers.pop(worker, (None, None))
        if hello is None or seal is None:
            return
        if not isinstance(seal.open(data)[0], Proof):
            raise BadMessageError("the first sealed message proves nothing")
        self._seals[worker] = seal
        super().handle_message(worker, LocustMessage("client_ready", locust_version, worker))  # type: ignore[no-untyped-call]
        self._joined(Visitor(worker, hello))

    def _challenge(self, worker: str, hello: Hello) -> None:
        if (hello.protocol, hello.kvbench) != (PROTOCOL, __version__):
            what = f"this worker is kvbench {hello.kvbench}, the master is {__version__}"
            self._send(worker, unsealed(Refused(what=what, do=f"install kvbench {__version__} on the worker")))
            return
        if len(self._strangers) >= MOST_STRANGERS:
            self._strangers.pop(next(iter(self._strangers)))
        nonce = secrets.token_hex(16)
        self._strangers[worker] = hello, Seal(session_key(self._secret, hello.nonce, nonce), master=True)
        proof = master_proof(self._secret, hello.nonce, nonce)
        self._send(worker, unsealed(Challenge(nonce=nonce, proof=proof)))


def _check_free(address: Address) -> None:
    """Locust would print a message of its own and end the process."""
    try:
        family, kind, number, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, number) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except OSError as error:
        raise InputError(
            f"workers cannot be awaited at {address}: {error.strerror or error}",
            do="give a free address of this machine with --master-bind HOST:PORT",
        ) from error
