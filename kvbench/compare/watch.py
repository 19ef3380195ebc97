"""Looks after an engine during a round: whether it is there, and whether it makes progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from kvbench.engine.base import Engine
from kvbench.judge.evidence import EngineEvent
from kvbench.load.refusals import Refusals
from kvbench.observe.continuity import Beginning

__all__ = ["FROZEN_AFTER_S", "Watch"]

FROZEN_AFTER_S = 60.0
"""Requests running or waiting and no token for this long is a frozen engine, whatever `/health` says. Where the
workload's requests time out sooner, their time-out counts: every one of them has failed by then.

A minute is longer than any step of a healthy engine and shorter than the default request time-out; the reports
behind it (schedulers that dead-lock under KV pressure while `/health` stays 200) are endless stalls.
"""

UNANSWERED = 10
"""So many requests that failed without a refusal since the last token count as requests under way, whatever the
metrics say: a gateway may hang in front of an idle engine, and not every server has metrics. Fewer may be lost one
by one."""

AROUND_S = 5.0
"""Where a server does not tell when its process began, counters that begin anew are a restart when requests failed
or the processes changed within this time of it; engines take longer than that to come back, so their users do
notice. Nothing but counters anew is a reset, which the judge finds in the scrapes.
"""


class Watch:
    """Called as often as one likes; looks at most once a second. True means: end the round now."""

    def __init__(
        self,
        engine: Engine,
        *,
        latest: Callable[[], Mapping[str, float]],
        beginnings: Callable[[], Sequence[Beginning]] = tuple,
        frozen_after_s: float = FROZEN_AFTER_S,
        evidence: Callable[[], str] | None = None,
        healthy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`latest` gives the newest canonical metrics by name, `clock` monotonic seconds.

        `beginnings` gives every time so far that the scrapes showed counters that had begun anew.

        `healthy` is asked once when the engine refuses everything: whether its `/health` says that it is well.

        `evidence` is called once when the engine is found frozen; it gathers what can be seen and says where it is.
        """
        self.events: list[EngineEvent] = []
        self.time_zero: float | None = None
        """The round's start on the clock, once there is one; what happens before it is told at 0 s."""
        self._engine = engine
        self._latest = latest
        self._beginnings = beginnings
        self._known_beginnings = 0
        self._frozen_after_s = frozen_after_s
        self._clock = clock
        self._evidence = evidence
        self._healthy = healthy
        self._refusals = Refusals()
        self._looked_at = float("-inf")
        self._tokens: float | None = None
        self._moved_at = float("-inf")
        """When the newest token came, or when nothing was under way by the metrics."""
        self._token_at = float("-inf")
        self._unanswered = 0.0
        self._unanswered_before_token = 0.0
        self._client_tokens = 0.0
        self._failed = 0.0
        self._anew_at = float("-inf")
        self._lately: deque[tuple[float, float, frozenset[int]]] = deque()
        """When it was looked, failed requests until then, the engine's processes; the first is AROUND_S old."""

    def requests_failed(self, total: float) -> None:
        """Tell how many requests have failed."""
        self._failed = total

    def answers(self, *, refused: int, served: float, status: int | None) -> None:
        """Tell how many requests were answered with a status of 500 or more, which one the newest was, and a figure
        that changes whenever anything of another answer comes; after `requests_failed` of the same moment."""
        self._unanswered = self._failed - refused
        self._refusals.tell(self._clock(), refused=refused, served=served, status=status)

    def tokens_received(self, total: float) -> None:
        """Tell how many output tokens the client has seen: progress even when metrics are missing."""
        if total > self._client_tokens:
            self._client_tokens = total
            self._token_came(self._clock())

    def __call__(self) -> bool:
        """Look, at most once a second; record what happened."""
        if not self.events and self._clock() - self._looked_at >= 1.0:
            self.look()
        return bool(self.events)

    def look(self) -> None:
        """Look now; also after the last scrape of a round, for what happened since."""
        if self.events:
            return
        self._looked_at = now = self._clock()
        state = self._engine.state()
        if not state.alive:
            self._record("died", now, state.detail or "the engine is gone")
        elif self._has_restarted(now, frozenset(state.pids)):
            self._record("restarted", now, "another process answers, and its counters began anew")
        elif self._refusals.every:
            health = "answers /health and " if self._healthy() else ""
            self._record("refusing", now, f"it {health}{self._refusals.text}")
        elif self._is_frozen(now):
            where = f"; what was seen of it then is in {self._evidence()}" if self._evidence is not None else ""
            self._record("frozen", now, f"requests under way and no token for {self._frozen_after_s:.0f} s{where}")

    def _has_restarted(self, now: float, pids: frozenset[int]) -> bool:
        """Counters began anew, and it is told, or there is a sign, that another process answers than before."""
        self._lately.append((now, self._failed, pids))
        while len(self._lately) > 2 and self._lately[1][0] <= now - AROUND_S:
            self._lately.popleft()
        new = self._beginnings()[self._known_beginnings :]
        self._known_beginnings += len(new)
        if any(began.process for began in new):
            return True
        if any(began.process is None for began in new):
            self._anew_at = now
        if now - self._anew_at > AROUND_S:
            return False
        _, failed, known = self._lately[0]
        return self._failed > failed or (bool(pids and known) and pids.isdisjoint(known))

    def _record(self, kind: Literal["died", "frozen", "restarted", "refusing"], now: float, detail: str) -> None:
        self.events.append(EngineEvent(kind, now - self.time_zero if self.time_zero is not None else 0.0, detail))

    def _is_frozen(self, now: float) -> bool:
        metrics = self._latest()
        tokens = metrics.get("prompt_tokens", 0.0) + metrics.get("generation_tokens", 0.0)
        busy = metrics.get("requests_running", 0.0) + metrics.get("requests_waiting", 0.0) > 0
        if tokens != self._tokens:
            self._tokens = tokens
            self._token_came(now)
        if not busy:
            self._moved_at = now
        unanswered = self._unanswered - self._unanswered_before_token
        since = self._token_at if unanswered >= UNANSWERED else self._moved_at
        return now - since > self._frozen_after_s

    def _token_came(self, now: float) -> None:
        self._moved_at = self._token_at = now
        self._unanswered_before_token = self._unanswered
