"""The gate itself: reads, judges, waits, and on a proven breach tells others once. The one part with a clock."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from kvbench.canary.action import newest_tier_of, with_configuration
from kvbench.canary.families import wanted_names
from kvbench.canary.hook import check_hook, fire, payload
from kvbench.canary.judge import judge_canary
from kvbench.canary.observed import Observed, Unread
from kvbench.canary.prometheus import PrometheusReader
from kvbench.canary.reading import History, Reader, ReadFailed
from kvbench.canary.scraping import ScrapeReader
from kvbench.canary.state import GateState, StateStore
from kvbench.canary.verdict import CanaryVerdict, HookResult
from kvbench.compare.interrupts import raise_if_stopped
from kvbench.errors import InputError
from kvbench.judge.verdict import Outcome
from kvbench.spec.canary import LoadedCanary

__all__ = ["DEFAULT_EVERY_S", "DEFAULT_FOR_S", "Gate", "Look", "Times", "make_reader"]

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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """InputError when a secret that the hook needs is not set."""
        check_hook(loaded.canary)
        self._loaded, self._reader, self._store, self._times = loaded, reader, store, times
        self._sleep = sleep
        self._history = History()
        self._unread: list[Unread] = []
        self._newest = newest_tier_of(loaded)
        self._offset_s = 0.0
        self.resumed = False
        """Whether an earlier gate's watch goes on."""
        self.looks = self.reads_done = self.reads_failed = 0
        self.last_read_s: float | None = None
        """By our clock."""

    # -- one look ----------------------------------------------------------------------------------------------

    def once(self) -> CanaryVerdict:
        """Judge what there is, one time. Servers without a Prometheus are scraped for a while first."""
        if not self._reader.looks_back:
            return self._once_scraped()
        span_s = self._times.for_s or DEFAULT_FOR_S
        try:
            now = self._reader.now()
            since = now - span_s - WARM_LOOK_BACK_S
            self._history.add(self._reader.read(since, now, raise_if_stopped), now)
        except ReadFailed as error:
            now = self._now()
            self._unread.append(Unread(now, error.what))
        start_s = now - span_s
        if self._times.for_s is None:
            first = self._history.group("candidate", "").first_s
            start_s = max(start_s, first if first is not None else start_s)
        return self._ended(self._judged(start_s, now, now, once=True), None)

    def _once_scraped(self) -> CanaryVerdict:
        start_s = self._reader.now()
        end_s = start_s + (self._times.for_s or ONCE_SCRAPING_S)
        while True:
            now = self._reader.now()
            self._history.add(self._reader.read(start_s, now, raise_if_stopped), now)
            if now >= end_s:
                break
            self._wait(min(self._times.every_s, end_s - now))
        first = self._history.group("candidate", "").first_s
        return self._ended(self._judged(first if first is not None else start_s, now, now, once=True), None)

    # -- a watch -----------------------------------------------------------------------------------------------

    def watch(self, on_look: Callable[[Look], None]) -> CanaryVerdict:
        """Look again and again until the verdict is certain or the time is over. A killed gate's watch goes on."""
        state = self._begin()
        while True:
            began = time.monotonic()
            look = self.look(state)
            on_look(look)
            if look.verdict.watch.final or look.verdict.verdict in (Outcome.GO, Outcome.NO_GO):
                return self._ended(look.verdict, state)
            left = state.planned_end_s - look.verdict.window.end
            self._wait(min(self._times.every_s - (time.monotonic() - began), left))

    def _begin(self) -> GateState:
        """A state that has not ended and whose time is not long over goes on; else a new watch begins."""
        state = self._store.load()
        try:
            now = self._reader.now()
        except ReadFailed as error:
            now = self._now()
            self._unread.append(Unread(now, error.what))
        span_s = self._times.for_s or DEFAULT_FOR_S
        if state is not None and state.outcome is None and now < state.planned_end_s + span_s:
            self.resumed = True
            for read, t_s in self._store.kept():
                self._history.add(read, t_s)
            return state
        return self._store.begin(now, now + span_s, None)

    def look(self, state: GateState) -> Look:
        """Read what is new and judge everything since the beginning."""
        failure: str | None = None
        self.looks += 1
        now = self._now()
        try:
            now = self._reader.now()
            self._offset_s = now - time.time()
            known = self._history.read_until_s
            since = known - 2 * self._times.every_s if known is not None else state.started_s - WARM_LOOK_BACK_S
            read = self._reader.read(since, now, raise_if_stopped)
            if not self._reader.looks_back:
                self._store.keep(read, now)
            self._history.add(read, now)
            self._unread.clear()
            self.reads_done += 1
            self.last_read_s = time.time()
        except (ReadFailed, InputError) as error:
            if isinstance(error, InputError) and self._history.read_until_s is None:
                raise  # asking again would not help; later in a watch it may be a credential that is being renewed
            failure = error.what
            self.reads_failed += 1
            self._unread.append(Unread(now, failure))
        verdict = self._judged(state.started_s, now, state.planned_end_s, once=False)
        return Look(verdict, failure)

    def _now(self) -> float:
        """By the clock that stamps the samples, as it was when it could last be asked."""
        return time.time() + self._offset_s

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._sleep(seconds)
        raise_if_stopped()

    def _judged(self, start_s: float, now: float, planned_end_s: float, *, once: bool) -> CanaryVerdict:
        canary, profile = self._loaded.canary, self._loaded.candidate
        names = self._loaded.names
        return judge_canary(
            Observed(
                names=names,
                rules=canary.rules,
                candidate=self._history.group("candidate", names[1]),
                baseline=self._history.group("baseline", names[0]) if canary.has_baseline else None,
                start_s=start_s,
                end_s=now,
                planned_end_s=planned_end_s,
                once=once,
                newest_tier=self._newest,
                host_bytes=profile.tiers.host.size if profile is not None and profile.tiers.host else None,
                warm_up=canary.warm_up,
                unread=tuple(self._unread),
            )
        )

    # -- its end -----------------------------------------------------------------------------------------------

    def _ended(self, verdict: CanaryVerdict, state: GateState | None) -> CanaryVerdict:
        """Add the configuration, tell others of a breach if nobody was told yet, and note how it ended."""
        verdict = with_configuration(verdict, self._loaded)
        outcome: str | None = verdict.verdict.value
        if state is None:  # one look: what was told is remembered from look to look, a watch under way left alone
            state = self._store.load() or self._store.begin(verdict.window.start, verdict.watch.planned_end)
            outcome = None if state.outcome is None and state.started_s != verdict.window.start else outcome
        if verdict.verdict is Outcome.NO_GO and _is_breach(verdict):
            verdict, state = self._tell(verdict, state)
        elif verdict.verdict is Outcome.GO:
            state = state.model_copy(update={"fired": None})
        self._store.save(state.model_copy(update={"outcome": outcome}))
        return verdict

    def _tell(self, verdict: CanaryVerdict, state: GateState) -> tuple[CanaryVerdict, GateState]:
        """At most once: that it begins is on disk before it begins."""
        canary = self._loaded.canary
        if canary.on_breach.hook is None and canary.on_breach.post is None:
            return verdict, state
        if state.fired is not None and state.fired.state != "dry-run":
            return verdict.model_copy(update={"hook": _already(state.fired)}), state
        id_ = uuid.uuid4().hex
        if canary.on_breach.armed:
            begun = HookResult(id=id_, state="begun", at=time.time(), text="begun; how it ended is not known")
            state = state.model_copy(update={"fired": begun})
            self._store.save(state)
        result = fire(canary, payload(canary, verdict, id_), id_, self._sleep)
        state = state.model_copy(update={"fired": result})
        self._store.save(state)
        return verdict.model_copy(update={"hook": result}), state


def _is_breach(verdict: CanaryVerdict) -> bool:
    """A guardrail or evidence that failed; that nothing got better is no reason to wake anybody."""
    return any(rule.status == "fail" and rule.kind in ("guardrail", "evidence") for rule in verdict.rules)


def _already(fired: HookResult) -> HookResult:
    return fired.model_copy(update={"text": f"told before, and not again: {fired.text}"})
