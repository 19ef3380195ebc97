"""Rows of a simulated round in the schemas of `kvbench.record.tables`. Seconds from the round's start."""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kvbench.engine.emulated.fates import LEAKED_FROM, Fate
from kvbench.engine.emulated.request import Request
from kvbench.ledger.account import RoundEvidence, account
from kvbench.load.agenda import Turn
from kvbench.record.tables import HOST, METRICS, REQUESTS, TOKENS
from kvbench.workload.canaries import CANARY_TOKENS, CARRIES_TOKENS
from kvbench.workload.schedule import PlannedRequest

__all__ = ["Answer", "MetricRows", "held", "host_table", "ledger_table", "request_table", "token_table"]

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Answer:
    """How one planned request went."""

    planned: PlannedRequest
    intended_s: float | None
    basis: str | None
    sent_s: float | None
    ended_s: float
    times: array[float]
    prompt_tokens: int
    prompt_tokens_engine: int | None = None
    cached_tokens: int | None = None
    status: str = "ok"
    error: str | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    prompt_digest: str | None = None
    output_digest: str | None = None
    foreign_canary: int | None = None
    by_tier: dict[str, int] | None = None
    """Cached tokens, of an answer that told how many."""

    @classmethod
    def of(
        cls,
        turn: Turn,
        request: Request,
        fate: Fate,
        *,
        sent_s: float,
        zero_s: float,
        corrupt: bool,
        leaked: PlannedRequest | None = None,
    ) -> Answer:
        """An answer that the core has finished; the client sees it as it was injected to be. `leaked`: it is a
        passage of that request's prompt."""
        times = held(request.times, fate.held_s)
        digest = _digest(turn.pieces)
        error = None
        left = turn.request.output_tokens > turn.request.returned_tokens <= len(times)
        if fate.dropped:
            error = f"stream_broken: the stream ended with no finish_reason after {len(times)} events"
        elif fate.short:
            error = f"short_output: {len(times)} of {turn.request.output_tokens} tokens, finish_reason stop"
        answer = cls(
            turn.request,
            turn.intended_s,
            turn.basis,
            sent_s,
            times[-1] if times else sent_s,
            times,
            request.prompt_tokens,
            prompt_tokens_engine=None if fate.dropped else fate.prompt_tokens,
            cached_tokens=None if fate.dropped else request.cached_tokens,
            by_tier={
                "device": request.device_tokens,
                "host": request.host_tokens,
                "disk": request.disk_tokens,
            },
            status="error" if error else "aborted" if left else "ok",
            error=error,
            finish_reason=None if left or fate.dropped else "stop" if fate.short else request.finish_reason,
            http_status=200,
            prompt_digest=digest,
            output_digest=None if error or left else "i" + _hash(f"{digest} {len(times)} {corrupt} {leaked}"),
            foreign_canary=_foreign_canary(turn.request, leaked, len(times)),
        )
        answer._from(zero_s)
        return answer

    @classmethod
    def left(
        cls, turn: Turn, request: Request, fate: Fate, *, sent_s: float, ended_s: float, zero_s: float
    ) -> Answer:
        """One whose user left at a time, as planned."""
        answer = cls.failed(turn, request, fate, "", sent_s=sent_s, ended_s=ended_s, zero_s=zero_s)
        answer.status, answer.error = "aborted", None
        return answer

    @classmethod
    def failed(
        cls,
        turn: Turn,
        request: Request,
        fate: Fate,
        error: str,
        *,
        sent_s: float,
        ended_s: float,
        zero_s: float,
        http_status: int | None = None,
    ) -> Answer:
        """One that failed, with the tokens that had come."""
        seen = array("d", [t_s for t_s in held(request.times, fate.held_s) if t_s <= ended_s])
        answer = cls(
            turn.request,
            turn.intended_s,
            turn.basis,
            sent_s,
            ended_s,
            seen,
            request.prompt_tokens,
            status="error",
            error=error,
            http_status=http_status or (200 if seen else None),
            prompt_digest=_digest(turn.pieces),
        )
        answer._from(zero_s)
        return answer

    @classmethod
    def lost(cls, request: PlannedRequest, due_s: float) -> Answer:
        """A later turn that could not be sent, because an earlier one failed."""
        error = f"earlier_turn_failed: turn {request.turn} follows it"
        return cls(
            request,
            due_s,
            "previous turn",
            None,
            due_s,
            array("d"),
            request.own_prompt_tokens,
            status="error",
            error=error,
        )

    @classmethod
    def unsent(cls, request: PlannedRequest) -> Answer:
        """Its time came after the end."""
        basis = None if request.intended_s is None else "schedule"
        return cls(
            request,
            request.intended_s,
            basis,
            None,
            math.nan,
            array("d"),
            request.own_prompt_tokens,
            status="unsent",
        )

    def _from(self, zero_s: float) -> None:
        """From the core's clock to the round's; `intended_s` is on it already."""
        if self.sent_s is not None:
            self.sent_s -= zero_s
        self.ended_s -= zero_s
        self.times = array("d", [t_s - zero_s for t_s in self.times])

    def move(self, by_s: float) -> None:
        """Priming requests, once time zero is known."""
        self._from(-by_s)
        if self.intended_s is not None:
            self.intended_s += by_s


def held(times: array[float], held_s: float) -> array[float]:
    """When the client sees tokens that were there at these times, the first held back for so long."""
    if not held_s or not times:
        return times
    first_s = times[0] + held_s
    return array("d", [max(t_s, first_s) for t_s in times])


def _foreign_canary(planned: PlannedRequest, leaked: PlannedRequest | None, tokens: int) -> int | None:
    """What the client would find; it looks at answers that have room for a whole canary."""
    if planned.tenant is None or tokens < CANARY_TOKENS:
        return None
    shown = (
        leaked is not None
        and leaked.tenant not in (None, planned.tenant)
        and tokens >= CARRIES_TOKENS - LEAKED_FROM
        and leaked.segments[0].tokens >= CARRIES_TOKENS
    )
    return leaked.tenant if shown and leaked is not None else -1


def _digest(pieces: object) -> str:
    """Equal prompts have equal ones; the tokens themselves are never made."""
    return _hash(repr(pieces))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def request_table(answers: list[Answer], *, round_: int, arm: str) -> pa.Table:
    """Schema REQUESTS, one row a planned request, in the order of ids."""
    rows = sorted(answers, key=lambda answer: answer.planned.id)
    plan = [answer.planned for answer in rows]
    columns: dict[str, list[object]] = {
        "id": [p.id for p in plan],
        "arm": [arm] * len(rows),
        "round": [round_] * len(rows),
        "phase": [p.phase for p in plan],
        "measured": [p.measured and a.status != "unsent" for p, a in zip(plan, rows, strict=True)],
        "class": [p.class_ for p in plan],
        "session": [p.session for p in plan],
        "turn": [p.turn for p in plan],
        "intended_s": [a.intended_s for a in rows],
        "intended_basis": [a.basis for a in rows],
        "sent_s": [a.sent_s for a in rows],
        "first_token_s": [a.times[0] if a.times else None for a in rows],
        "last_token_s": [a.times[-1] if a.times else None for a in rows],
        "prompt_tokens_planned": [a.prompt_tokens for a in rows],
        "prompt_tokens_engine": [a.prompt_tokens_engine for a in rows],
        "cached_tokens": [a.cached_tokens for a in rows],
        "output_tokens_asked": [p.output_tokens for p in plan],
        "output_tokens_received": [None if a.sent_s is None else len(a.times) for a in rows],
        "status": [a.status for a in rows],
        "error": [a.error for a in rows],
        "prompt_digest": [a.prompt_digest for a in rows],
        "output_digest": [a.output_digest for a in rows],
        "worker": [0] * len(rows),
        "prefix": [p.prefix for p in plan],
        "repeat_of": [p.repeat_of for p in plan],
        "finish_reason": [a.finish_reason for a in rows],
        "http_status": [a.http_status for a in rows],
        "ended_s": [None if math.isnan(a.ended_s) else a.ended_s for a in rows],
        "multi_token_events": [0] * len(rows),
        "branch": [p.branch for p in plan],
        "holdout": [p.holdout for p in plan],
        "tenant": [p.tenant for p in plan],
        "foreign_canary": [a.foreign_canary for a in rows],
        "connected_s": [None] * len(rows),
        "leaves": [p.aborts for p in plan],
    }
    return pa.table(columns, schema=REQUESTS)


def ledger_table(requests: pa.Table, answers: list[Answer], tiers: tuple[str, ...]) -> pa.Table:
    """Schema LEDGER: the core itself tells."""
    told = {answer.planned.id: answer.by_tier for answer in answers if answer.by_tier is not None}
    return account(RoundEvidence(requests.to_pandas(), METRICS.empty_table().to_pandas(), tiers, told=told))


def token_table(answers: list[Answer]) -> pa.Table:
    """Schema TOKENS, in the order of ids."""
    rows = sorted((a for a in answers if a.times), key=lambda answer: answer.planned.id)
    counts = np.array([len(answer.times) for answer in rows], np.int64)
    ids = np.repeat(np.array([answer.planned.id for answer in rows], np.int64), counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    times = np.concatenate([np.frombuffer(a.times, np.float64) for a in rows]) if rows else np.empty(0)
    index = (np.arange(len(times)) - starts).astype(np.int32)
    return pa.table({"id": ids, "index": index, "t_s": times}, schema=TOKENS)


class MetricRows:
    """Scrapes as they come; the series are the same in each, but for those that appear later."""

    def __init__(self, *, host: bool, disk: bool) -> None:
        self._names: list[str] = []
        self._labels: list[str] = []
        self._times: list[float] = []
        self._values: list[float] = []
        self._known: dict[Labels, str] = {}

    def add(self, t_s: float, series: list[tuple[str, Labels, float]]) -> None:
        """One scrape."""
        known = self._known
        for name, labels, value in series:
            if labels not in known:
                known[labels] = json.dumps(dict(labels), sort_keys=True)
            self._names.append(name)
            self._labels.append(known[labels])
            self._values.append(value)
        self._times += [t_s] * len(series)

    def table(self, zero_s: float) -> pa.Table:
        """Schema METRICS, with times from `zero_s` on."""
        columns = {
            "t_s": np.array(self._times) - zero_s,
            "name": self._names,
            "labels": self._labels,
            "value": self._values,
        }
        return pa.table(columns, schema=METRICS)


def host_table(duration_s: float) -> pa.Table:
    """Schema HOST: a machine on which nothing else runs and nothing is swapped."""
    seconds = np.arange(0.0, duration_s + 1.0)
    names = ("cpu_foreign_cores", "steal_cores", "swap_used_bytes")
    return pa.table(
        {
            "t_s": np.tile(seconds, len(names)),
            "name": np.repeat(np.array(names), len(seconds)),
            "value": np.zeros(len(seconds) * len(names)),
        },
        schema=HOST,
    )
