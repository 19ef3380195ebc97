"""How a request can end other than well: the causes, each with its plain words, in one place."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["CAUSES", "CLIENT_LIMIT", "Cause", "Failure", "Status", "encodable", "no_connection"]

Status = Literal["ok", "error", "unsent", "aborted"]
"""`unsent`: its time came after the round was over (a later turn, or a closed loop's surplus); not a failure.
`aborted`: the schedule had its user leave before the end of the answer; not a failure either. Its row has the times
of what came until then, and no output digest."""

Cause = Literal[
    "refused",
    "connect",
    "client_limit",
    "timeout",
    "http_status",
    "stream_broken",
    "server_error",
    "malformed_event",
    "short_output",
    "earlier_turn_failed",
    "stopped",
]

CAUSES: dict[Cause, str] = {
    "refused": "nobody listens at the server's address",
    "connect": "no connection to the server could be made",
    "client_limit": "the client's own host had no socket or port left for the request",
    "timeout": "the answer was not over within the time allowed",
    "http_status": "the server answered with a status other than 200",
    "stream_broken": "the answer ended before it was complete",
    "server_error": "the server reported an error in the middle of its answer",
    "malformed_event": "the answer is not an event stream of completions",
    "short_output": "the answer is complete but has fewer tokens than were asked for",
    "earlier_turn_failed": "an earlier turn of the session failed, so this one could not be sent",
    "stopped": "kvbench ended the round while the request was under way",
}

if set(CAUSES) != set(get_args(Cause)):
    raise AssertionError("every cause has its words, and every text its cause")


CLIENT_LIMIT: Cause = "client_limit"
"""Says nothing about the server: a measurement with such a row cannot be trusted."""

_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""What socket(2) and connect(2) say when this process or this host is at its end: of descriptors, of local ports to
that server, of memory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed: a cause and what was seen."""

    cause: Cause
    detail: str

    def __str__(self) -> str:
        return f"{self.cause}: {encodable(self.detail)}"


def no_connection(error: OSError) -> Failure:
    """Why no connection to the server came about."""
    cause: Cause = "connect"
    if error.errno == errno.ECONNREFUSED:
        cause = "refused"
    elif error.errno in _OWN_LIMITS:
        cause = CLIENT_LIMIT
    return Failure(cause, error.strerror or str(error))


def encodable(text: str) -> str:
    """A server's words as they can be stored: half a surrogate pair, which JSON allows, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()
