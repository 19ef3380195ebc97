"""The verdict: the value that every report shows and `verdict.json` stores (schema 1)."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import AliasChoices, Field

from kvbench.judge.quality import ArmHost, HitQuality, Holdout, LedgerTotals, SourcePrediction, TierActivity
from kvbench.judge.verdict_model import JudgeModel

__all__ = [
    "Action",
    "CandidateVerdict",
    "ClassChange",
    "Instrument",
    "JudgeModel",
    "Kind",
    "Outcome",
    "RoundCount",
    "RuleResult",
    "Status",
    "Verdict",
]

Kind = Literal["guardrail", "benefit", "validity", "evidence"]
Status = Literal["pass", "fail", "unknown"]


class Outcome(StrEnum):
    """Ordered from best to worst by `severity`."""

    GO = "GO"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_GO = "NO_GO"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> int:
        return {"GO": 0, "NO_GO": 1, "INCONCLUSIVE": 3, "INVALID": 4}[self.value]

    @property
    def severity(self) -> int:
        return list(Outcome).index(self)


class Action(JudgeModel):
    """What to do now."""

    disable_tier: Literal["device", "host", "disk"]
    why: str


class RuleResult(JudgeModel):
    """One rule's outcome. `effect`, `ci`, `decision_ci` and `limit` of a ratio rule are ratios."""

    rule: str
    kind: Kind
    status: Status
    metric: str | None = None
    quantile: float | None = None
    class_: str = Field(
        default="all", validation_alias=AliasChoices("class", "class_"), serialization_alias="class"
    )
    baseline: float | None = None
    candidate: float | None = None
    unit: str | None = None
    effect: float | None = None
    ci: tuple[float, float] | None = None
    decision_ci: tuple[float, float] | None = None
    limit: float | None = None
    sign_flip_p: float | None = None
    """Of a ratio, that there is no difference; where rounds are enough for it. A description: intervals decide."""
    windows: list[dict[str, float | str | None]] = Field(default_factory=list)
    """A row a round. `..._low_s` and `..._high_s`: what the round alone knows (block bootstrap, a description)."""
    text: str


class ClassChange(JudgeModel):
    """What the candidate means for one class at one quantile of a latency: ratios to the baseline, seconds."""

    class_: str = Field(validation_alias=AliasChoices("class", "class_"), serialization_alias="class")
    metric: str
    quantile: float
    baseline: float
    candidate: float
    effect: float
    ci: tuple[float, float] | None
    change: Literal["gained", "lost", "unclear"]


class RoundCount(JudgeModel):
    """Pairs of rounds. `needed`: how many in all would settle what is open, fewest and most."""

    done: int
    planned: int
    unit: Literal["round", "launch"]
    needed: tuple[int, int] | None = None


class Instrument(JudgeModel):
    """The measurement about itself: the worst round's figures, and counts over all rounds. None: not measured."""

    send_lag_p99_s: float | None = None
    timestamp_error_p99_s: float | None = None
    scrape_coverage: float | None = None
    multi_token_event_share: float | None = None
    merged_events_share: float | None = None
    """Events that were read together with the next one and so lost their own kernel time."""
    read_lag_p99_s: float | None = None
    """What times would be off without the kernel's."""
    unstamped_reads_share: float | None = None
    """Reads that have the clock's time, not the kernel's."""
    clock_steps: float | None = None
    """How often the wall clock was set by more than 0.1 ms while answers came; a step of a second is a finding."""
    loop_stall_max_s: float | None = None
    gc_pause_max_s: float | None = None
    stepped_down_s: float | None = None
    """For so long the client ran as ordinary work does: the kernel stops real-time work that needs so much."""
    resent_on_stale_connection: float | None = None
    """Requests that were sent again since the server closed the connection just when they went out."""
    substituted_turns: float | None = None
    """Turns that carry as many tokens of ours as the answer before had, since its own were not told: no hits of
    generated tokens in them."""
    uncounted_outputs: float | None = None
    """Answers without any count of their tokens: they have no ITL and no TPOT."""
    client_cpu_cores: float | None = None
    host_steal_cores: float | None = None
    calibrated_capacity_events_per_s: float | None = None
    """Of one worker on this host, from the calibration before the run; so are the next two."""
    calibrated_timestamp_error_p99_s: float | None = None
    calibrated_send_lag_p99_s: float | None = None
    followed_requests: int = 0
    """Requests that had to wait for an answer; their lag counts from its end plus think time."""
    followed_send_lag_p99_s: float | None = None
    workers: float | None = None
    """Processes that played the load, where there were several."""
    worker_clock_error_s: float | None = None
    """How far the start of a worker on another machine may have been from the common one; 0 on one machine."""
    worker_clock_offset_s: float | None = None
    """How far the monotonic clock of such a worker was from the master's, by measurement; starts are put right by
    it, and the error above is what it may be wrong by. None: no worker joined."""


class CandidateVerdict(JudgeModel):
    """One candidate against the baseline."""

    verdict: Outcome
    exit_code: int
    baseline: str
    candidate: str
    reasons: list[str]
    """Plain sentences, the deciding one first."""
    not_tested: list[str] = Field(default_factory=list)
    action: Action | None = None
    rules: list[RuleResult]
    sources: dict[str, dict[str, float | None]]
    rounds: RoundCount
    instrument: Instrument
    latency: list[dict[str, float | str | int | None]] = Field(default_factory=list)
    """Rows arm × class × metric: count, p50, p90, p99 pooled over rounds (description, not decision)."""
    who_pays: list[ClassChange] = Field(default_factory=list)
    """Per class, who gained, who lost, by how much (description, not decision)."""
    ledger: list[LedgerTotals] = Field(default_factory=list)
    """Where each arm's tokens came from by the ledger of its requests, beside what its engine counted."""
    hits: HitQuality | None = None
    """What the candidate's hits were worth (description, not decision)."""
    holdout: list[Holdout] = Field(default_factory=list)
    """With `tier_holdout`: the secondary tier's effect, all requests and each class (description, not decision)."""
    prediction: list[SourcePrediction] = Field(default_factory=list)
    """What plans said of both arms, beside what was measured (description, not decision)."""
    tier_activity: list[TierActivity] = Field(default_factory=list)
    """Lifetimes, evictions, drops, failures and waits by each engine's own telling (description, not decision)."""
    host: list[ArmHost] = Field(default_factory=list)
    """What host, disk, network and GPUs did meanwhile, each arm (description, not decision)."""


class Verdict(CandidateVerdict):
    """The worst candidate's verdict, with all of them beneath when there are several."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    candidates: list[CandidateVerdict] | None = None
