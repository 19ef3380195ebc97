"""The gate itself: reads, judges, waits, and on a proven breach tells others once and proves what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvbench.canary.acting import Acting
from kvbench.canary.action import newest_tier_of, with_configuration
from kvbench.canary.families import wanted_names
from kvbench.canary.feed import Feed
from kvbench.canary.hook import check_hook, payload
from kvbench.canary.judge import judge_canary
from kvbench.canary.observed import Observed, Unread
from kvbench.canary.prometheus import PrometheusReader
from kvbench.canary.reading import Reader, ReadFailed
from kvbench.canary.scraping import ScrapeReader
from kvbench.canary.state import GateState, StateStore
from kvbench.canary.verdict import CanaryVerdict, HookResult, Rollback
from kvbench.interrupts import raise_if_stopped
from kvbench.judge.verdict import Outcome
from kvbench.spec.canary import LoadedCanary

__all__ = ["DEFAULT_EVERY_S", "DEFAULT_FOR_S", "Gate", "Look", "Stands", "Times", "make_reader"]

DEFAULT_FOR_S = 3600.0
DEFAULT_EVERY_S = 15.0
"""The usual scrape interval of Prometheus installations."""
WARM_LOOK_BACK_S = 600.0
"""So much from before the watch is read as well, to tell whether caches were filled already."""
ONCE_SCRAPING_S = 120.0
"""How long servers are scraped before one look, where nobody has kept their past."""


@dataclass(frozen=True)
class Times:
    """How long a watch takes and how often it looks. `for_s` None: an hour, or for one look what there is of it."""

    for_s: float | None = None
    every_s: float = DEFAULT_EVERY_S


@dataclass(frozen=True)
class Stands:
    """A watch that ended before has the word until then; None: until the file or the state is another one."""

    until_s: float | None


@dataclass(frozen=True)
class Look:
    """One look: the verdict so far, and what could not be read, if so."""

    verdict: CanaryVerdict
    failure: str | None


def make_reader(loaded: LoadedCanary) -> Reader:
    """InputError when what it needs is not there."""
    canary = loaded.canary
    names = wanted_names(canary.rules)
    if canary.prometheus is not None:
        return PrometheusReader(canary, canary.prometheus, names)
    assert canary.scrape is not None  # noqa: S101 - a canary has one of the two
    return ScrapeReader(canary, canary.scrape, names)


class Gate:
    """One canary under watch."""

    def __init__(
        self,
        loaded: LoadedCanary,
        reader: Reader,
        store: StateStore,
        times: Times,
        *,
        keeps_verdict: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """InputError when a secret that the hook needs is not set.

        `keeps_verdict`: what a watch ended with is what every gate after it answers, as long as the file and the
        state are the same; for one that others ask, and whose process may be started again at any time.
        """
        check_hook(loaded.canary)
        self._loaded, self._reader, self._store, self._times = loaded, reader, store, times
        self.feed = Feed(reader, store, times.every_s, sleep)
        self._acting = Acting(loaded, store, self.feed, sleep)
        self._keeps_verdict = keeps_verdict
        self._newest = newest_tier_of(loaded)
        self.resumed = False
        """Whether an earlier gate's watch goes on."""
        self.stands: Stands | None = None
        """Why the verdict of a watch that ended before is what this one answers."""
        self.looks = 0
        self._undelivered: GateState | None = None

    # -- one look ----------------------------------------------------------------------------------------------

    def once(self, on_look: Callable[[Look], None] = lambda _: None) -> CanaryVerdict:
        """Judge what there is, one time. Servers without a Prometheus are scraped for a while first. `on_look`
        hears of looks after a hook."""
        unfinished = self._unfinished(self._store.load(), self.feed.ask_now())
        if unfinished is not None:
            return self._proof_goes_on(unfinished, on_look)
        if not self._reader.looks_back:
            return self._once_scraped(on_look)
        span_s = self._times.for_s or DEFAULT_FOR_S
        now = self.feed.ask_now()
        try:
            since = now - span_s - WARM_LOOK_BACK_S
            self.feed.history.add(self._reader.read(since, now, raise_if_stopped), now)
            self.feed.unread.clear()
        except ReadFailed as error:
            self.feed.unread.append(Unread(now, error.what))
        start_s = now - span_s
        if self._times.for_s is None:
            first = self.feed.history.group("candidate", "").first_s
            start_s = max(start_s, first if first is not None else start_s)
        return self._ended(self._judged(start_s, now, now, once=True), None, on_look)

    def _once_scraped(self, on_look: Callable[[Look], None]) -> CanaryVerdict:
        start_s = self._reader.now()
        end_s = start_s + (self._times.for_s or ONCE_SCRAPING_S)
        while True:
            now = self._reader.now()
            self.feed.history.add(self._reader.read(start_s, now, raise_if_stopped), now)
            if now >= end_s:
                break
            self.feed.wait(min(self._times.every_s, end_s - now))
        first = self.feed.history.group("candidate", "").first_s
        verdict = self._judged(first if first is not None else start_s, now, now, once=True)
        return self._ended(verdict, None, on_look)

    # -- a watch -----------------------------------------------------------------------------------------------

    def watch(self, on_look: Callable[[Look], None]) -> CanaryVerdict:
        """Look again and again until the verdict is certain or the time is over. A killed gate's watch goes on.

        One that ended with a breach, of which others were told, answers the same until its planned end: whoever
        starts gates again when they end must not have the tier switched off a second time.
        """
        state = self._store.load()
        if state is not None and state.ended is not None and state.ended_for_good and self._keeps_verdict:
            self.stands = Stands(None)  # whether or not anything could be read now
            self._undelivered = None if state.delivered else state
            return state.ended
        state = self._begin(state)
        if state.ended is not None:
            self.stands = Stands(self._stands_until(state))
            self._undelivered = None if state.delivered else state
            return state.ended
        if state.breach is not None:
            return self._proof_goes_on(state, on_look)
        while True:
            began = time.monotonic()
            look = self.look(state)
            on_look(look)
            if look.verdict.watch.final or look.verdict.verdict in (Outcome.GO, Outcome.NO_GO):
                return self._ended(look.verdict, state, on_look)
            left = state.planned_end_s - look.verdict.window.end
            self.feed.wait(min(self._times.every_s - (time.monotonic() - began), left))

    def _begin(self, state: GateState | None) -> GateState:
        """A state that has not ended and whose time is not long over goes on; else a new watch begins."""
        now = self.feed.ask_now()
        unfinished = self._unfinished(state, now)
        if unfinished is not None:
            return unfinished
        if state is not None and state.ended is not None and now < self._stands_until(state):
            return state
        if state is not None and state.outcome is None and now < self._goes_on_until(state):
            self.resumed = True
            self.feed.resume()
            return state
        return self._store.begin(now, now + (self._times.for_s or DEFAULT_FOR_S), None)

    def _stands_until(self, state: GateState) -> float:
        """Until when what a watch ended with is said again. Where a hook was run: its planned end, but at least as
        long after the proof as that may take. Where nobody has heard it yet: as long as a killed watch goes on."""
        until_s = -math.inf if state.delivered else self._goes_on_until(state)
        if state.proof is None:
            return until_s
        return max(until_s, state.planned_end_s, state.proof.until_s + self._loaded.canary.on_breach.within)

    def _goes_on_until(self, state: GateState) -> float:
        """Until when a watch that was killed goes on: its time is not over for longer than a watch takes."""
        return state.planned_end_s + (self._times.for_s or DEFAULT_FOR_S)

    def _unfinished(self, state: GateState | None, now: float) -> GateState | None:
        """A state whose hook was begun and whose proof is not over, unless that was long ago."""
        if state is None or state.breach is None or state.proof is None:
            return None
        return state if now < state.proof.until_s + (self._times.for_s or DEFAULT_FOR_S) else None

    def look(self, state: GateState) -> Look:
        """Read what is new and judge everything since the beginning."""
        self.looks += 1
        now, failure = self.feed.read(state.started_s - WARM_LOOK_BACK_S)
        return Look(self._judged(state.started_s, now, state.planned_end_s, once=False), failure)

    def _judged(self, start_s: float, now: float, planned_end_s: float, *, once: bool) -> CanaryVerdict:
        canary, profile = self._loaded.canary, self._loaded.candidate
        names = self._loaded.names
        return judge_canary(
            Observed(
                names=names,
                rules=canary.rules,
                candidate=self.feed.history.group("candidate", names[1]),
                baseline=self.feed.history.group("baseline", names[0]) if canary.has_baseline else None,
                start_s=start_s,
                end_s=now,
                planned_end_s=planned_end_s,
                once=once,
                newest_tier=self._newest,
                host_bytes=profile.tiers.host.size if profile is not None and profile.tiers.host else None,
                warm_up=canary.warm_up,
                unread=tuple(self.feed.unread),
            )
        )

    # -- its end -----------------------------------------------------------------------------------------------

    def _ended(
        self, verdict: CanaryVerdict, state: GateState | None, on_look: Callable[[Look], None]
    ) -> CanaryVerdict:
        """Add the configuration, act on a breach if nobody has yet, and note how it ended."""
        verdict, is_watch = with_configuration(verdict, self._loaded), state is not None
        outcome: str | None = verdict.verdict.value
        if state is None:  # one look: what was told is remembered from look to look, a watch under way left alone
            state = self._store.load() or self._store.begin(verdict.window.start, verdict.watch.planned_end)
            outcome = None if state.outcome is None and state.started_s != verdict.window.start else outcome
        if verdict.verdict is Outcome.NO_GO and _is_breach(verdict):
            verdict, state = self._act(verdict, state, on_look)
        elif verdict.verdict is Outcome.GO:
            state = state.model_copy(update={"fired": None, "proof": None})
            if not is_watch and not state.ended_for_good:  # what has got well may be told of again
                state = state.model_copy(update={"ended": None})
        state = state.model_copy(update={"outcome": outcome, "breach": None})
        if is_watch:
            self._remember(verdict, state)
        else:
            self._store.save(state)
        return verdict

    def _remember(self, verdict: CanaryVerdict, state: GateState) -> None:
        """What a gate has to say that is started again after this one's end."""
        if state.fired is not None and state.fired.state != "dry-run":
            verdict = verdict.model_copy(update={"hook": _already(state.fired)})
        kept = {"ended": verdict, "ended_for_good": self._keeps_verdict, "delivered": False}
        self._undelivered = state.model_copy(update=kept)
        self._store.save(self._undelivered)
        self._store.scrapes.drop()

    def delivered(self) -> None:
        """Whoever started the gate has had its verdict."""
        if self._undelivered is not None:
            self._store.save(self._undelivered.model_copy(update={"delivered": True}))
            self._undelivered = None

    def _act(
        self, verdict: CanaryVerdict, state: GateState, on_look: Callable[[Look], None]
    ) -> tuple[CanaryVerdict, GateState]:
        """Tell others of a breach at most once, and prove what came of it."""
        canary = self._loaded.canary
        if canary.on_breach.hook is None and canary.on_breach.post is None:
            return verdict, state
        if state.fired is not None and state.fired.state != "dry-run":
            rollback = None if state.proof is None else state.proof.rollback
            return verdict.model_copy(update={"hook": _already(state.fired), "rollback": rollback}), state
        state = self._acting.tell(lambda id_: payload(canary, verdict, id_), verdict, state)
        verdict = verdict.model_copy(update={"hook": state.fired})
        return self._proven(verdict, state, on_look)

    def _proven(
        self, verdict: CanaryVerdict, state: GateState, on_look: Callable[[Look], None]
    ) -> tuple[CanaryVerdict, GateState]:
        """The verdict with what came of the hook, once that is known or its time is over."""
        found = verdict

        def say(rollback: Rollback, failure: str | None) -> None:
            nonlocal found
            found = verdict.model_copy(update={"rollback": rollback})
            on_look(Look(found, failure))

        state = self._acting.prove(state, say)
        return found, state

    def _proof_goes_on(self, state: GateState, on_look: Callable[[Look], None]) -> CanaryVerdict:
        """What a gate that was killed after its hook has left to do. The hook is not run again."""
        assert state.breach is not None and state.fired is not None  # noqa: S101, PT018 - saved together
        self.resumed = True
        self.feed.resume()
        verdict = state.breach.model_copy(update={"hook": _already(state.fired)})
        verdict, state = self._proven(verdict, state, on_look)
        self._remember(verdict, state.model_copy(update={"outcome": verdict.verdict.value, "breach": None}))
        return verdict


def _is_breach(verdict: CanaryVerdict) -> bool:
    """A guardrail or evidence that failed; that nothing got better is no reason to wake anybody."""
    return any(rule.status == "fail" and rule.kind in ("guardrail", "evidence") for rule in verdict.rules)


def _already(fired: HookResult) -> HookResult:
    return fired.model_copy(update={"text": f"told before, and not again: {fired.text}"})
