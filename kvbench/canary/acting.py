"""What is done on a breach, and proven after it: the hook once, however often the gate is killed meanwhile.

What is about to happen is on disk before it happens: the hook as `begun`, with what the servers declared before it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from kvbench.canary.action import newest_tier_of, without_tier
from kvbench.canary.feed import Feed
from kvbench.canary.hook import fire
from kvbench.canary.rollback import AfterHook, judge_rollback
from kvbench.canary.state import GateState, ProofState, StateStore
from kvbench.canary.tier_off import Switch
from kvbench.canary.told import ServerSays, addresses_of, ask_servers
from kvbench.canary.verdict import CanaryVerdict, HookResult, Rollback
from kvbench.errors import Interrupted
from kvbench.interrupts import undisturbed
from kvbench.spec.canary import LoadedCanary

__all__ = ["Acting"]

BEFORE_S = 600.0
"""So much from before the hook is what things were like before it."""


class Acting:
    """The hook of one canary and what follows it."""

    def __init__(
        self, loaded: LoadedCanary, store: StateStore, feed: Feed, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._loaded, self._store, self._feed, self._sleep = loaded, store, feed, sleep
        self._addresses = addresses_of(loaded.canary)

    def ask(self) -> dict[str, ServerSays]:
        """What the candidate's servers declare now."""
        return ask_servers(self._loaded.canary, self._addresses)

    def tell(
        self,
        told: Callable[[str], dict[str, object]],
        verdict: CanaryVerdict | None,
        state: GateState,
        before: tuple[float, dict[str, ServerSays]] | None = None,
    ) -> GateState:
        """Run the hook, or say what would be run. `told` makes the payload of an id; `verdict` calls for it.

        `before`: since when the tier was on, and what servers declared then; asked now when it is not given.
        """
        canary, id_ = self._loaded.canary, uuid.uuid4().hex
        payload = told(id_)
        if not canary.on_breach.armed:
            state = state.model_copy(update={"fired": fire(canary, payload, id_, self._sleep), "proof": None})
            self._store.save(state)
            return state
        fired_s = self._feed.ask_now()
        since_s, declared = before or (max(state.started_s, fired_s - BEFORE_S), self.ask())
        proof = ProofState(
            before_s=since_s,
            fired_s=fired_s,
            until_s=fired_s + canary.on_breach.within,
            told_before=declared,
        )
        begun = HookResult(id=id_, state="begun", at=time.time(), text="begun; how it ended is not known")
        state = state.model_copy(update={"fired": begun, "proof": proof, "breach": verdict})
        with undisturbed():
            self._store.save(state)
            result = self._run(payload, id_)
            if result.state == "failed":  # there is nothing to wait for: one look says how things are
                proof = proof.model_copy(update={"until_s": fired_s})
            state = state.model_copy(update={"fired": result, "proof": proof})
            self._store.save(state)
        return state

    def _run(self, payload: dict[str, object], id_: str) -> HookResult:
        """The hook on a thread of its own. Servers that nobody else scrapes are scraped meanwhile, so that the time
        without service is seen. A signal waits for a hook under way: half a rollback is worse than either."""
        scrapes = not self._feed.reader.looks_back
        with ThreadPoolExecutor(1, thread_name_prefix="kvbench-hook") as pool:
            running: Future[HookResult] = pool.submit(fire, self._loaded.canary, payload, id_, self._sleep)
            while not wait([running], timeout=self._feed.every_s).done:
                try:
                    if scrapes:
                        self._feed.read(self._feed.now())
                except Interrupted:
                    scrapes = False  # it is heeded once how the hook ended is on disk
            return running.result()

    def prove(self, state: GateState, on_look: Callable[[Rollback, str | None], None]) -> GateState:
        """Look until the tier is proven off and TTFT is back, or the time is over. `on_look` hears of each look."""
        proof = state.proof
        while proof is not None:
            began = time.monotonic()
            now_s, failure = self._feed.read(proof.before_s)
            rollback = judge_rollback(self._switch(proof), self._seen(now_s, failure), proof.rollback)
            proof = proof.model_copy(update={"rollback": rollback})
            state = state.model_copy(update={"proof": proof})
            self._store.save(state)
            on_look(rollback, failure)
            if rollback.ended:
                break
            left_s = proof.until_s - now_s
            self._feed.wait(min(self._feed.every_s - (time.monotonic() - began), left_s))
        return state

    def _switch(self, proof: ProofState) -> Switch:
        tier, candidate = newest_tier_of(self._loaded), self._loaded.candidate
        wanted = None
        if tier is not None and candidate is not None:
            wanted = without_tier(candidate, tier, self._loaded.baseline)
        return Switch(
            tier=tier,
            wanted=wanted,
            before_s=proof.before_s,
            fired_s=proof.fired_s,
            until_s=proof.until_s,
            steady_s=self._loaded.canary.on_breach.steady,
            told_before=proof.told_before,
        )

    def _seen(self, now_s: float, failure: str | None) -> AfterHook:
        canary, names = self._loaded.canary, self._loaded.names
        history = self._feed.history
        return AfterHook(
            rules=canary.rules,
            candidate=history.group("candidate", names[1]),
            baseline=history.group("baseline", names[0]) if canary.has_baseline else None,
            told=self.ask(),
            asked=frozenset(self._addresses),
            now_s=now_s,
            failure=failure,
        )
