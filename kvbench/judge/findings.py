"""What can be wrong with a measurement: every validity finding and its words, in this one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvbench.judge import wording
from kvbench.spec.engine_metrics import ENGINE_METRICS

__all__ = ["NOT_PROVEN", "PASSES", "Finding", "FindingKind", "clean", "uncounted"]


class FindingKind(StrEnum):
    """In the order in which they are reported: the first ones explain the later ones."""

    CONFIG = "config-not-as-asked"
    ARMS = "arms-differ"
    DIED = "engine-died"
    FROZEN = "engine-frozen"
    RESTARTED = "engine-restarted"
    REFUSING = "engine-refusing"
    RESET = "counter-reset"
    INCOMPLETE = "round-incomplete"
    RESIDUE = "residue"
    PRIMING = "not-primed"
    WORKER = "worker-lost"
    CONTENTION = "host-contention"
    SWAP = "host-swap"
    CLIENT_LATE = "client-late"
    CLIENT_LIMIT = "client-limit"
    SCHEDULE = "schedule-not-kept"
    OFFERED_LOAD = "offered-load-differs"
    PROMPT_TOKENS = "prompt-tokens-differ"
    OUTPUT_TOKENS = "output-tokens-differ"
    SOURCES = "token-sources-broken"
    VANISHED = "metrics-vanished"
    SCRAPE_GAP = "scrape-gap"
    CLOCK = "clock-jump"
    MISSING = "rounds-missing"


PASSES = frozenset(
    {
        FindingKind.WORKER,
        FindingKind.CLIENT_LATE,
        FindingKind.CLIENT_LIMIT,
        FindingKind.SCHEDULE,
        FindingKind.SCRAPE_GAP,
        FindingKind.CONTENTION,
        FindingKind.SWAP,
        FindingKind.CLOCK,
    }
)
"""Kinds that pass by themselves: a pair of rounds spoiled by one of them is worth repeating."""

_WORDS = {
    FindingKind.CONFIG: (
        "the running engine is what the profile asks for",
        "the running engine is not as asked: {what}",
    ),
    FindingKind.ARMS: ("the arms differ in tiers alone", "the arms differ in more than tiers: {what}"),
    FindingKind.DIED: ("the baseline's engine lived", "the baseline's engine died at {at}: {what}"),
    FindingKind.FROZEN: ("the baseline's engine made progress", "the baseline's engine froze at {at}: {what}"),
    FindingKind.RESTARTED: (
        "the baseline's engine was not restarted",
        "the baseline's engine restarted at {at}: {what}",
    ),
    FindingKind.REFUSING: (
        "the baseline's engine served its requests",
        "the baseline's engine stopped serving at {at}: {what}",
    ),
    FindingKind.RESET: (
        "no counter was reset",
        "the counter {what} fell at {at} although no process is known to have died; what it counted is lost",
    ),
    FindingKind.MISSING: ("enough rounds were recorded", "{what}"),
    FindingKind.INCOMPLETE: ("every round is complete", "the round is not complete: {what}"),
    FindingKind.RESIDUE: (
        "every tier was empty before each round",
        "a tier was not empty before the round, so an earlier one may have warmed it: {what}",
    ),
    FindingKind.PRIMING: (
        "what fills the tiers before a round was answered",
        "the tiers were not filled as planned before the round: {what}",
    ),
    FindingKind.WORKER: ("every worker played its share and delivered its rows", "{what}"),
    FindingKind.CLIENT_LATE: (
        "the client kept to its times",
        "the client {what}; the host is too busy or the load too high for one client",
    ),
    FindingKind.CLIENT_LIMIT: (
        "the client had a socket for every request",
        "the client's own host had no socket for {what}; allow more open files (`ulimit -Hn`) and local ports "
        "(net.ipv4.ip_local_port_range), or take workers on further machines",
    ),
    FindingKind.SCHEDULE: ("all that was scheduled was sent", "{what} were never sent"),
    FindingKind.OFFERED_LOAD: (
        "both arms were offered the same load",
        "the arms were not offered the same load: {what}",
    ),
    FindingKind.PROMPT_TOKENS: (
        "the engine counted the prompt tokens that were planned",
        "the engine counted other prompt lengths than planned: {what}",
    ),
    FindingKind.OUTPUT_TOKENS: (
        "answers have the length that was asked for",
        "answers have other lengths than asked for: {what}",
    ),
    FindingKind.SOURCES: ("tokens by source add up", "tokens by source do not add up: {what}"),
    FindingKind.VANISHED: (
        "metrics were there throughout",
        "/metrics vanished while requests went on being answered",
    ),
    FindingKind.SCRAPE_GAP: ("scrapes had no gaps of ours", "kvbench missed scrapes: {what}"),
    FindingKind.CONTENTION: (
        "nothing else used the host",
        "something else used the host: {what}; stop it, or run where nothing else does",
    ),
    FindingKind.SWAP: (
        "the host did not swap",
        "the host swapped: {what}; tiers and engines must fit into memory beside everything else",
    ),
    FindingKind.CLOCK: ("clocks ran evenly", "a clock jumped: {what}"),
}

NOT_PROVEN = {
    "silent": "no /metrics: {arms}",
    "unchecked": (
        "the metrics of {arms} tell no tokens that could be held against each other or against the answers, so "
        "whether they add up is not known"
    ),
    "residue": "{what}, so whether every tier was empty is not known",
    "priming": "{what}: that is judged by the errors",
    "lost": "{arms}: {what} were never counted, so where tokens came from is not known",
}
"""Why the engine's counters could not be checked; such a finding is neither there nor not."""

if set(_WORDS) != set(FindingKind):
    raise AssertionError("every finding has its words")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong; `arm` and `round` say where, as far as it is about one of them."""

    kind: FindingKind
    what: str = ""
    at: str = ""
    arm: str | None = None
    round: int | None = None

    @property
    def passes(self) -> bool:
        """Whether repeating the pair of rounds can make it go away."""
        return self.kind in PASSES

    @property
    def text(self) -> str:
        """A sentence without its full stop."""
        sentence = _WORDS[self.kind][1].format(what=self.what, at=self.at)
        place = f"round {self.round}" if self.round is not None else ""
        if self.arm is not None:
            place = f"{place} of {self.arm}" if place else self.arm
        return f"{place}: {sentence}" if place else sentence


def uncounted(grown: Mapping[str, float]) -> str:
    """`3 iterations and 1 event`: by how much the counters of what was never counted grew."""
    return " and ".join(
        wording.count(round(amount), ENGINE_METRICS[name].unit.removesuffix("s")) for name, amount in grown.items()
    )


def clean(kind: FindingKind) -> str:
    """What is said when there is no such finding."""
    return _WORDS[kind][0]
