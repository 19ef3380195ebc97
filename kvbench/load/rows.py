"""From an answer to its row in `requests.parquet`. Times become seconds from time zero here."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np

from kvbench.load.agenda import Turn
from kvbench.load.exchange import Exchange
from kvbench.load.leaks import CanaryFinder
from kvbench.load.outcome import Failure, Status
from kvbench.load.plan import LoadPlan
from kvbench.load.stream import Completion
from kvbench.workload.prompts import prompt_digest
from kvbench.workload.schedule import PlannedRequest

__all__ = ["Rows", "failure_of", "output_digest"]


def failure_of(turn: Turn, exchange: Exchange, completion: Completion, *, forces_length: bool) -> Failure | None:
    """Why the request failed, or None: it succeeded, or its user left it as planned."""
    if exchange.failure:
        return exchange.failure
    if exchange.left:
        return _failure_of_what_was_left(exchange, completion)
    if completion.failure:
        kind = exchange.content_type.partition(";")[0]
        if completion.events == 0 and kind != "text/event-stream":
            return Failure(
                "malformed_event", f"answered with {kind or 'no content type'}, not with an event stream"
            )
        return completion.failure
    asked = turn.request.output_tokens
    received = len(completion.placed.times_ns)
    if forces_length and completion.placed.known and received < asked:
        return Failure("short_output", f"{received} of {asked} tokens, finish_reason {completion.finish_reason}")
    return None


def _failure_of_what_was_left(exchange: Exchange, completion: Completion) -> Failure | None:
    """That the answer is not complete is no failure; what the server said until then may be one."""
    if exchange.status not in (None, 200):
        return Failure("http_status", f"{exchange.status}")
    if completion.failure and completion.failure.cause != "stream_broken":
        return completion.failure
    return None


def output_digest(completion: Completion) -> str:
    """32 hex digits over the token ids, else over the text; the first character tells which."""
    if completion.token_ids is not None:
        return "i" + prompt_digest(completion.token_ids)
    return "t" + prompt_digest(list(completion.text.encode("utf-8", "surrogatepass")))


class Rows:
    """Makes the rows of one round."""

    def __init__(self, plan: LoadPlan, zero_ns: int, canaries: CanaryFinder | None = None) -> None:
        """`canaries` is asked about every answer of a request that has a tenant."""
        self._plan = plan
        self._zero_ns = zero_ns
        self._canaries = canaries

    def seconds(self, at_ns: int) -> float:
        """Monotonic ns → seconds from time zero."""
        return (at_ns - self._zero_ns) / 1e9

    def token_times(self, completion: Completion) -> array[float]:
        times_s = (np.array(completion.placed.times_ns, np.int64) - self._zero_ns) / 1e9
        return array("d", times_s.tobytes())

    def answered(
        self, turn: Turn, exchange: Exchange, completion: Completion, failure: Failure | None
    ) -> dict[str, object]:
        """The row of a request that was sent, whatever came of it."""
        placed = completion.placed
        status: Status = "error" if failure else "aborted" if exchange.left else "ok"
        return self._planned(turn.request) | {
            "intended_s": turn.intended_s,
            "intended_basis": turn.basis,
            "sent_s": None if exchange.sent_ns is None else self.seconds(exchange.sent_ns),
            "first_token_s": None if placed.first_ns is None else self.seconds(placed.first_ns),
            "last_token_s": self.seconds(placed.times_ns[-1]) if placed.times_ns else None,
            "prompt_tokens_planned": turn.body.prompt_tokens if turn.body else None,
            "prompt_tokens_engine": completion.prompt_tokens,
            "cached_tokens": completion.cached_tokens,
            "output_tokens_received": len(placed.times_ns) if placed.known else None,
            "status": status,
            "error": str(failure) if failure else None,
            "prompt_digest": turn.body.prompt_digest if turn.body else None,
            "output_digest": output_digest(completion) if status == "ok" else None,
            "finish_reason": completion.finish_reason,
            "http_status": exchange.status,
            "ended_s": None if exchange.over_ns is None else self.seconds(exchange.over_ns),
            "multi_token_events": placed.multi_token_events,
            "connected_s": None if exchange.connected_ns is None else self.seconds(exchange.connected_ns),
            "foreign_canary": self._canaries.foreign(turn.request.tenant, completion) if self._canaries else None,
        }

    def lost(self, request: PlannedRequest, due_s: float) -> dict[str, object]:
        """The row of a turn that could not be sent because an earlier one failed."""
        failure = Failure("earlier_turn_failed", f"turn {request.turn} follows it")
        status: Status = "error"
        return self._planned(request) | {
            "intended_s": due_s,
            "intended_basis": "previous turn",
            "status": status,
            "error": str(failure),
            "ended_s": due_s,
        }

    def unsent(self, request: PlannedRequest) -> dict[str, object]:
        """The row of a request whose time came after the end. It is not part of what was measured."""
        status: Status = "unsent"
        row = self._planned(request) | {"measured": False, "status": status, "intended_s": request.intended_s}
        return row if request.intended_s is None else row | {"intended_basis": "schedule"}

    def _planned(self, request: PlannedRequest) -> dict[str, object]:
        return dict(_EMPTY) | {
            "id": request.id,
            "arm": self._plan.arm,
            "round": self._plan.round,
            "phase": request.phase,
            "measured": request.measured,
            "class": request.class_,
            "session": request.session,
            "turn": request.turn,
            "prompt_tokens_planned": request.own_prompt_tokens,
            "output_tokens_asked": request.output_tokens,
            "worker": self._plan.worker,
            "prefix": request.prefix,
            "repeat_of": request.repeat_of,
            "branch": request.branch,
            "holdout": request.holdout,
            "leaves": request.aborts,
            "tenant": request.tenant,
        }


_EMPTY: Mapping[str, object] = dict.fromkeys(
    (
        "intended_s",
        "intended_basis",
        "sent_s",
        "first_token_s",
        "last_token_s",
        "prompt_tokens_engine",
        "cached_tokens",
        "output_tokens_received",
        "error",
        "prompt_digest",
        "output_digest",
        "finish_reason",
        "http_status",
        "ended_s",
        "multi_token_events",
        "connected_s",
        "foreign_canary",
    )
)
