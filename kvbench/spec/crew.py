"""Who drives the load: how many processes on this machine, how many that join from others, and at which door."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from kvbench.errors import InputError

__all__ = ["SECRET_ENV", "Address", "Crew", "make_crew", "parse_address", "worker_secret"]

SECRET_ENV = "KVBENCH_WORKER_SECRET"  # noqa: S105  (the name of a variable, not a secret)
JOINING_BIND = "127.0.0.1:5557"
"""Where joining workers are awaited unless told: Locust's own port, on loopback."""
SECRET_CHARACTERS = 16
"""A shorter secret could be guessed by whoever listens to a handshake."""
MOST_WORKERS = 256


@dataclass(frozen=True)
class Address:
    """Where a master listens; `host` without brackets."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def zmq_host(self) -> str:
        """As ZeroMQ writes it: IPv6 in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.zmq_host}:{self.port}"


def parse_address(text: str, option: str) -> Address:
    """`HOST:PORT`, IPv6 in brackets. InputError names the option."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise InputError(f"{option} {text!r} is not an address", do="write it as HOST:PORT, such as 10.0.0.5:5557")
    return Address(host, int(port))


class Crew(BaseModel):
    """The workers of a run, as the manifest and the load plan hold them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    local: int = Field(default=1, ge=0)
    """Worker processes that kvbench starts itself."""
    joining: int = Field(default=0, ge=0)
    """Workers that are waited for: `kvbench worker --master HOST:PORT`."""
    bind: str = "127.0.0.1:0"
    secret_env: str = SECRET_ENV
    join_timeout_s: float = 120.0
    """How long a round waits for those who join."""
    web_port: int | None = Field(default=None, ge=1, le=65535)
    """Where Locust's web view is, on loopback, while a round is played."""

    @property
    def total(self) -> int:
        return self.local + self.joining

    @property
    def single(self) -> bool:
        """One process on this machine: it needs nobody to conduct it."""
        return self.local == 1 and self.joining == 0 and self.web_port is None

    @property
    def address(self) -> Address:
        return parse_address(self.bind, "--master-bind")


def make_crew(
    workers: int | None,
    expected: int | None,
    bind: str | None,
    secret_env: str = SECRET_ENV,
    web_port: int | None = None,
) -> Crew | None:
    """What the options of `compare` and `run` ask for; None: nothing was said. InputError when they do not fit
    together, or when workers from beyond loopback are to join without a secret."""
    if workers is None and expected is None and bind is None and web_port is None:
        return None
    workers, expected = 1 if workers is None else workers, expected or 0
    if workers + expected < 1:
        raise InputError("nobody would drive the load", do="leave --workers out, or give --expect-workers")
    if workers + expected > MOST_WORKERS:
        raise InputError(f"{workers + expected} workers are more than {MOST_WORKERS}", do="ask for fewer")
    if not expected:
        if bind is not None:
            raise InputError(
                "--master-bind is for workers that join from elsewhere", do="say how many with --expect-workers"
            )
        return Crew(local=workers, web_port=web_port)
    address = parse_address(bind or JOINING_BIND, "--master-bind")
    if address.port == 0:
        raise InputError("--master-bind needs a port that the workers can be told", do="such as 10.0.0.5:5557")
    worker_secret(secret_env, address, "--master-bind")
    return Crew(local=workers, joining=expected, bind=str(address), secret_env=secret_env, web_port=web_port)


def worker_secret(name: str, address: Address, option: str) -> bytes:
    """The secret that master and workers share, from the environment; may be empty on loopback only.

    Beyond loopback anybody who reaches the port could send measurements that never were, read the schedule, or (as
    a false master) have workers send their keys elsewhere; so neither side deals with one that lacks the secret.
    """
    secret = os.environ.get(name, "")
    if not address.loopback and len(secret) < SECRET_CHARACTERS:
        state = "is not set" if not secret else f"has fewer than {SECRET_CHARACTERS} characters"
        raise InputError(
            f"{option} {address} is beyond loopback, where whoever reaches the port could send made-up "
            f"measurements or a false schedule; the secret against that, the environment variable {name}, {state}",
            do=f"set {name} to the same random text on master and workers, such as `openssl rand -hex 32`",
        )
    return secret.encode()
