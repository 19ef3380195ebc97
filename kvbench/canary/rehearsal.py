"""The rollback rehearsal: the hook is run on purpose, on a staging system, and judged as after a breach.

Nothing is run unless the tier is seen to be on and requests come: else a rehearsal would prove nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from kvbench.canary.acting import Acting
from kvbench.canary.action import action_for, newest_tier_of
from kvbench.canary.feed import Feed
from kvbench.canary.hook import check_hook
from kvbench.canary.reading import Reader
from kvbench.canary.rollback import progress_line
from kvbench.canary.state import GateState, StateStore
from kvbench.canary.tier_off import REQUESTS, shows_tier
from kvbench.canary.verdict import CanaryAction, HookResult, Rollback, Window
from kvbench.errors import InputError
from kvbench.judge import wording
from kvbench.judge.sustained import FEWEST_REQUESTS
from kvbench.judge.tiers import Tier
from kvbench.judge.verdict import JudgeModel
from kvbench.spec.canary import LoadedCanary
from kvbench.spec.loading import where

__all__ = ["Heard", "Rehearsal", "Rehearsed"]

BEFORE_S = 120.0
"""How long the tier is watched before the hook unless asked otherwise."""
SAID_EVERY_S = 10.0
"""A line comes so often, and whenever something has changed."""

Heard = Callable[[str], None]
"""Called with one short line when there is something to say."""


class Rehearsed(JudgeModel):
    """What a rehearsal found: `fail` where the contrary is seen, `unknown` where too little is."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    rehearsal: Literal["pass", "fail", "unknown", "hook-failed"]
    exit_code: int
    canary: str
    baseline: str
    candidate: str
    reasons: list[str]
    action: CanaryAction | None = None
    hook: HookResult | None = None
    rollback: Rollback | None = None
    window: Window


EXIT_CODES = {"pass": 0, "fail": 1, "unknown": 3, "hook-failed": 4}


class Rehearsal:
    """One rehearsal of one canary's rollback."""

    def __init__(
        self,
        loaded: LoadedCanary,
        reader: Reader,
        store: StateStore,
        *,
        before_s: float | None,
        every_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """InputError when there is no armed hook, no tier to switch off, or no secret."""
        self._tier = _tier(loaded)
        check_hook(loaded.canary)
        self._loaded, self._store, self._reader = loaded, store, reader
        self._before_s = before_s or BEFORE_S
        self._feed = Feed(reader, store, every_s, sleep)
        self._acting = Acting(loaded, store, self._feed, sleep)

    def run(self, heard: Heard) -> Rehearsed:
        """Watch, switch off, prove. One that was killed after its hook goes on, and the hook is not run again."""
        state = self._store.load()
        now = self._feed.ask_now()
        if state is not None and state.outcome is None and state.proof is not None:
            heard("going on with the rehearsal that an earlier command began; the hook is not run again")
            self._feed.resume()
        else:
            watched = self._store.begin(*self._stretch(now))
            self._watch(watched, heard)
            against = self._against(watched)
            if against is not None:
                self._end(watched, "unknown")
                return self._result("unknown", [f"{against}; the hook was not run"], watched)
            heard("running the hook")
            before = watched.started_s, self._acting.ask()
            state = self._acting.tell(lambda id_: self._payload(id_, watched), None, watched, before)
        state = self._acting.prove(state, _Said(heard).look)
        result = self._judged(state)
        self._end(state, result.rehearsal)
        return result

    def _end(self, state: GateState, outcome: str) -> None:
        self._store.save(state.model_copy(update={"outcome": outcome}))
        self._store.scrapes.drop()

    def _stretch(self, now: float) -> tuple[float, float]:
        """From when to when the tier is watched before the hook: what a Prometheus has is there already."""
        return (now - self._before_s, now) if self._reader.looks_back else (now, now + self._before_s)

    def _watch(self, state: GateState, heard: Heard) -> None:
        said = _Said(heard)
        while True:
            began = time.monotonic()
            now, failure = self._feed.read(state.started_s)
            left_s = state.planned_end_s - now
            if left_s <= 0:
                return
            said.line(
                failure or f"watching the {self._tier} tier for another {wording.value(left_s, 's')}", failure
            )
            self._feed.wait(min(self._feed.every_s - (time.monotonic() - began), left_s))

    def _against(self, state: GateState) -> str | None:
        """Why the hook must not be run."""
        now = self._feed.now()
        group = self._feed.history.group("candidate", self._loaded.names[1])
        if not any(replica.alive_at(now) for replica in group.replicas):
            return "no replica of the candidate answers"
        part = group.each(lambda replica: replica.within(state.started_s, now))
        requests = part.grown(REQUESTS) or 0.0
        if requests < FEWEST_REQUESTS:
            seen = wording.count(int(requests), "request")
            return f"{seen} in {wording.value(now - state.started_s, 's')} are too few to know TTFT by"
        if not shows_tier(group, self._acting.ask(), self._tier, state.started_s, now):
            return f"nothing shows that the {self._tier} tier is on"
        return None

    def _why(self) -> str:
        return f"a rehearsal: nothing is wrong with {self._loaded.names[1]}"

    def _action(self) -> CanaryAction:
        candidate = self._loaded.candidate
        assert candidate is not None  # noqa: S101 - it names the tier
        return action_for(candidate, self._loaded, self._tier, self._why())

    def _payload(self, id_: str, state: GateState) -> dict[str, object]:
        names = self._loaded.names
        return {
            "schema": 1,
            "id": id_,
            "canary": self._loaded.canary.name,
            "rehearsal": True,
            "verdict": "NO_GO",
            "baseline": names[0],
            "candidate": names[1],
            "action": self._action().model_dump(mode="json", by_alias=True),
            "reasons": [self._why()],
            "window": {"start": state.started_s, "end": self._feed.now()},
        }

    def _judged(self, state: GateState) -> Rehearsed:
        rollback = state.proof.rollback if state.proof is not None else None
        if rollback is None or state.fired is None:
            return self._result("unknown", ["nothing could be read after the hook"], state)
        parts = (rollback.tier_off, rollback.baseline_back)
        reasons = [part.text for part in parts]
        if state.fired.state == "failed":
            return self._result("hook-failed", [f"the hook failed: {state.fired.text}", *reasons], state)
        statuses = {part.status for part in parts}
        outcome = "fail" if "failed" in statuses else "pass" if statuses == {"proven"} else "unknown"
        return self._result(outcome, reasons, state)

    def _result(self, outcome: str, reasons: list[str], state: GateState) -> Rehearsed:
        names, proof = self._loaded.names, state.proof
        return Rehearsed.model_validate(
            {
                "rehearsal": outcome,
                "exit_code": EXIT_CODES[outcome],
                "canary": self._loaded.canary.name,
                "baseline": names[0],
                "candidate": names[1],
                "reasons": reasons,
                "action": self._action(),
                "hook": state.fired,
                "rollback": None if proof is None else proof.rollback,
                "window": Window(start=state.started_s, end=self._feed.now()),
            }
        )


class _Said:
    """What was said last, and when."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._last: object = self
        self._at = 0.0

    def line(self, text: str, state: object) -> None:
        """Say `text` if `state` is another than before, or if nothing was said for a while."""
        if state != self._last or time.monotonic() - self._at >= SAID_EVERY_S:
            self._last, self._at = state, time.monotonic()
            self._heard(text)

    def look(self, rollback: Rollback, failure: str | None) -> None:
        """One look after the hook."""
        self.line(
            progress_line(rollback, failure), (rollback.tier_off.status, rollback.baseline_back.status, failure)
        )


def _tier(loaded: LoadedCanary) -> Tier:
    """The tier that is switched off. InputError says what the file lacks for a rehearsal."""
    canary = loaded.canary
    breach = canary.on_breach
    if breach.hook is None and breach.post is None:
        raise InputError(
            "there is no hook to rehearse",
            where=where(canary, "on_breach"),
            do="add on_breach: {hook: [argv...], armed: true}, or post: URL",
        )
    if not breach.armed:
        raise InputError(
            "a rehearsal runs the hook, and it is not armed",
            where=where(canary, "on_breach"),
            do="use a file of the staging system in which on_breach has armed: true",
        )
    tier = newest_tier_of(loaded)
    if tier == "device":
        raise InputError("the profiles differ in the device tier only, which cannot be switched off")
    if tier is None:
        raise InputError(
            "which tier is switched off is not known",
            where=where(canary, "candidate"),
            do="name the candidate's profile: candidate: {profile: FILE}",
        )
    return tier
