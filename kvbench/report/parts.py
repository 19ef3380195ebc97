"""The parts of a report as plain, cleaned strings; `kvbench.report.view` fills them, formats lay them out."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.judge.verdict import Outcome
from kvbench.report.achieved import Achieved

__all__ = [
    "ArmView",
    "CandidateView",
    "ChangeView",
    "Figure",
    "LatencyView",
    "PerRound",
    "ReportView",
    "RuleView",
    "SourcePart",
    "SourcesView",
    "TableView",
]


@dataclass(frozen=True)
class Figure:
    """A labelled figure with what it is held against; a `detail` has no place where room is short."""

    label: str
    value: str
    budget: str = ""
    detail: bool = False


@dataclass(frozen=True)
class RuleView:
    """One row of the table of rules."""

    rule: str
    kind: str
    status: str
    symbol: str
    what: str
    baseline: str
    candidate: str
    effect: str
    interval: str
    limit: str
    text: str
    deciding: bool


@dataclass(frozen=True)
class SourcePart:
    """Tokens of one source; `share` is of all prompt tokens whose source is known, None where there are none."""

    source: str
    tokens: str
    share: float | None
    shown: str


@dataclass(frozen=True)
class SourcesView:
    """Where the prompt tokens of one arm came from."""

    arm: str
    total: str
    parts: tuple[SourcePart, ...]

    @property
    def known(self) -> bool:
        return any(part.share is not None for part in self.parts)


@dataclass(frozen=True)
class LatencyView:
    """One arm, class and metric, pooled over rounds: a description, not what decides."""

    arm: str
    class_: str
    metric: str
    n: str
    p50: str
    p90: str
    p99: str


@dataclass(frozen=True)
class ChangeView:
    """What the candidate means for the users of one class: a description, not what decides."""

    class_: str
    latency: str
    before: str
    after: str
    ratio: str
    interval: str
    change: str
    symbol: str

    @property
    def clear(self) -> bool:
        return self.change != "unclear"

    @property
    def seconds(self) -> str:
        return f"{self.before} → {self.after}"

    @property
    def effect(self) -> str:
        return f"{self.ratio} {self.interval}".strip()


@dataclass(frozen=True)
class PerRound:
    """What a rule saw in each round or window."""

    rule: str
    what: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TableView:
    """A table that needs nothing but its cells; columns from `right` on are figures."""

    heading: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: int
    brief: bool = False
    """Whether it has a place where room is short."""
    wide: bool = False
    """Whether a terminal shows it that has room for whole tables."""


@dataclass(frozen=True)
class ArmView:
    """An arm's configuration."""

    name: str
    role: str
    engine: str
    tiers: tuple[str, ...]
    command: str
    effective: tuple[tuple[str, str], ...]
    differences: tuple[str, ...]
    unproven: tuple[str, ...]


@dataclass(frozen=True)
class CandidateView:
    """One candidate against the baseline."""

    outcome: Outcome
    symbol: str
    word: str
    sentence: str
    baseline: str
    candidate: str
    reasons: tuple[str, ...]
    action: str | None
    rules: tuple[RuleView, ...]
    who_pays: tuple[ChangeView, ...]
    who_pays_note: str
    """What these changes are and are not."""
    headline_figures: tuple[RuleView, ...]
    sources: tuple[SourcesView, ...]
    latency: tuple[LatencyView, ...]
    rounds: str
    per_round: tuple[PerRound, ...]
    instrument: tuple[Figure, ...]
    not_tested: tuple[str, ...]
    achieved: tuple[Achieved, ...]
    prediction: tuple[TableView, ...]
    """What plans said, beside what was measured."""
    hits: tuple[TableView, ...]
    """What single hits were worth, and how that is known."""
    ledger_mismatch: str | None
    """One line for where the table of the ledger has no place."""
    host: tuple[TableView, ...]
    """What the host and the transfer path did."""

    def latency_of(self, metric: str) -> tuple[LatencyView, ...]:
        return tuple(row for row in self.latency if row.metric == metric)


@dataclass(frozen=True)
class ReportView:
    """A whole report. `candidates` has the worst first; the report's own verdict is the worst one's."""

    title: str
    run_id: str
    directory: str
    again: str
    """The command that makes this report anew, as a shell takes it."""
    started: str
    version: str
    host: str
    warnings: tuple[str, ...]
    candidates: tuple[CandidateView, ...]
    arms: tuple[ArmView, ...]
    workload: tuple[Figure, ...]
    rules_summary: tuple[Figure, ...]
    confidence: str

    @property
    def worst(self) -> CandidateView:
        return self.candidates[0]
