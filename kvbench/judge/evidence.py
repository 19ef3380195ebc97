"""What judging works on: plain tables and facts of paired rounds, for one baseline and one candidate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import pandas as pd

from kvbench.judge.send_lag import SendLag, send_lag
from kvbench.judge.series import Series, series_by
from kvbench.judge.sources import Counters
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = ["ArmRound", "Comparison", "EngineEvent", "Prediction", "RoundPair", "ScrapeSummary"]


@dataclass(frozen=True)
class EngineEvent:
    """Something that happened to an engine during a round, as seen from outside."""

    kind: Literal["died", "frozen", "restarted", "refusing"]
    t_s: float
    detail: str


@dataclass(frozen=True)
class ScrapeSummary:
    """How the scraping of `/metrics` went during the measured part of a round."""

    expected: int
    succeeded: int
    longest_gap_ours_s: float
    """Gaps while the engine answered nothing are the engine's fault and are not in here."""
    engine_stalled: int
    """Scrapes that failed or timed out while the engine did not answer."""
    supported: bool
    """False: the server has no `/metrics` at all."""
    vanished: bool = False
    """True: the endpoint was there and then was not, while requests went on being answered."""


@dataclass(frozen=True)
class ArmRound:
    """One execution of a schedule against one arm. Tables have the schemas of `kvbench.record.tables`."""

    arm: str
    index: int
    launch: str
    """Rounds with the same value share an engine launch."""
    requests: pd.DataFrame
    tokens: pd.DataFrame
    metrics: pd.DataFrame
    host: pd.DataFrame
    scrapes: ScrapeSummary
    complete: bool
    events: tuple[EngineEvent, ...] = ()
    config_differences: tuple[str, ...] = ()
    """What the running engine proved to be, where that is not what the profile asks for; empty is as asked."""
    config_unknown: tuple[str, ...] = ()
    """What could not be proven (attached servers)."""
    residue: tuple[str, ...] = ()
    """What was found in a tier before the round that should have been empty."""
    residue_unknown: tuple[str, ...] = ()
    """Why it is not known whether something was."""
    spoiled_attempts: int = 0
    expected_sources: dict[str, float] | None = None
    """Tokens by source that the schedule's reuse predicts at this arm's tier sizes; None: sizes unknown."""
    capacities: dict[str, float] = field(default_factory=dict)
    """Engine facts by name, for reports: device_blocks, block_tokens, host_bytes, ..."""
    load: dict[str, float] = field(default_factory=dict)
    """The client's own figures: `timestamp_error_p99_s`, `loop_stall_max_s`, ... where measured."""
    ledger: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Where each request's prompt tokens came from; empty: it was not kept."""
    lives: pd.DataFrame = field(default_factory=pd.DataFrame)
    """What became of the blocks in each tier; empty: the engine did not tell."""
    load_faults: tuple[str, ...] = ()
    """What happened to a worker of ours, so that not all rows are here; such a round is not complete."""

    @cached_property
    def counters(self) -> Counters:
        """The engine's counters, read once from `metrics`."""
        return Counters(self.metrics)

    @cached_property
    def send_lag(self) -> SendLag:
        """How late the measured requests went out, read once from `requests`."""
        return send_lag(self.requests)

    @cached_property
    def host_samples(self) -> dict[str, Series]:
        """Figures of the host by name, read once from `host`."""
        return {name: series for (name,), series in series_by(self.host, "name")}


@dataclass(frozen=True)
class RoundPair:
    """The two rounds that played one schedule."""

    index: int
    baseline: ArmRound
    candidate: ArmRound


@dataclass(frozen=True)
class Prediction:
    """What a plan said of one arm before the run."""

    arm: str
    costs: str
    """Where the plan's costs come from, such as a probe."""
    shares: dict[str, float | None]
    """Of the prompt tokens of measured requests, by source."""
    ttft_p50_s: dict[str, float | None]
    """By the source of most of the prompt; `all` for every request."""
    rounds: int = 1
    """From the first on, whose requests were played for it."""


@dataclass(frozen=True)
class Comparison:
    """All the evidence for one candidate against the baseline."""

    baseline: Profile
    candidate: Profile
    workload: Workload
    rules: Rules
    pairs: tuple[RoundPair, ...]
    rounds_planned: int
    unit: Literal["round", "launch"] = "round"
    arm_differences: tuple[str, ...] = ()
    """Differences between the two profiles outside tiers that were not allowed by name."""
    attached: bool = False
    predictions: tuple[Prediction, ...] = ()

    def in_order(self) -> Comparison:
        """The same, its pairs in the order of their rounds."""
        return replace(self, pairs=tuple(sorted(self.pairs, key=lambda pair: pair.index)))
