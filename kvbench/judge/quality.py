"""What a verdict says about single hits and about the host: values of `verdict.json`. They describe; rules decide.
Seconds, tokens, bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from kvbench.judge.verdict_model import JudgeModel

__all__ = [
    "ArmHost",
    "HitQuality",
    "Holdout",
    "HostReading",
    "LedgerTotals",
    "Movement",
    "Neighbours",
    "PromotionWait",
    "SourcePrediction",
    "SourceTtft",
    "TierActivity",
    "TierEvents",
    "TierLives",
    "TierTime",
    "TierWorth",
    "TokenCost",
]

Ends = tuple[float, float]


class LedgerTotals(JudgeModel):
    """One arm's ledger over all rounds, beside the engine's own counters over the same time."""

    arm: str
    requests: int
    evidence: dict[str, int]
    """Requests by what their split rests on."""
    tokens: dict[str, int]
    """By source, and `unattributed`: cached in a tier that is not known."""
    counters: dict[str, float | None]
    mismatch_points: dict[str, float | None]
    """Ledger less counters, in per cent of the prompt tokens; None: the engine does not count that source."""
    distrusted: str | None = None
    """Why nothing is told by request: the counters say otherwise, by more than what is unattributed explains."""


class SourceTtft(JudgeModel):
    """Requests of one arm, most of whose prompt came from one source, with prompts of similar length."""

    arm: str
    source: str
    prompt_tokens_from: int
    prompt_tokens_to: int
    n: int
    ttft_p50_s: float
    service_p50_s: float
    """From the actual send."""
    service_ci: Ends | None = None


class SourcePrediction(JudgeModel):
    """What a plan said of one arm and source before the run, and what came; shares of prompt tokens."""

    arm: str
    source: str
    """`all`: TTFT of every request."""
    costs: str
    rounds: int = 1
    """Of which the prediction is, from the first on; what was measured is of all that were played."""
    predicted_share: float | None = None
    measured_share: float | None = None
    share_error_points: float | None = None
    """Predicted less measured, in per cent of the prompt tokens."""
    n: int
    """Measured requests most of whose prompt came from there."""
    predicted_ttft_p50_s: float | None = None
    measured_ttft_p50_s: float | None = None
    ttft_error: float | None = None
    """Predicted over measured, less one."""


class TokenCost(JudgeModel):
    """What the fitted line says of one source."""

    source: str
    per_token_s: float
    ci: Ends | None = None
    fixed_s: float | None = None
    """Of one hit, however long."""
    fixed_ci: Ends | None = None


class TierWorth(JudgeModel):
    """What the hits of one tier were worth, against computing the same tokens."""

    tier: Literal["host", "disk"]
    requests: int
    tokens: int
    saved_s: float
    """Sum over requests; below zero: lost."""
    saved_ci: Ends | None = None
    lost_share: float
    """Of these requests: those that waited longer than computing would have taken."""
    break_even_tokens: float | None = None
    """From so many tokens on a hit is faster; None: never, or not known; see `pays`."""
    break_even_ci: Ends | None = None
    pays: Literal["yes", "never", "unknown"]
    """Whether a token from the tier costs less than a computed one, as far as the interval tells."""
    saved_s_per_gib_moved: float | None = None
    """Of what the engine read out of the tier, used or not."""
    moved_by: Literal["counters", "tokens"] = "tokens"
    """Whether the engine counts that; else it is the bytes of the tokens that requests had from the tier."""
    saved_s_per_gib_kept: float | None = None
    """Of one round, as a tier keeps its bytes all through it; of the disk at least so much, as engines count more
    written than they keep."""


class Neighbours(JudgeModel):
    """Requests without promotions: while others were promoted, and while none was."""

    during: int
    quiet: int
    ttft_service_during_s: float
    ttft_service_quiet_s: float
    effect_s: float
    """Median difference, what their own prompts cost taken off."""
    effect_ci: Ends | None = None
    itl_during_p50_s: float | None = None
    itl_quiet_p50_s: float | None = None
    itl_during_p99_s: float | None = None
    itl_quiet_p99_s: float | None = None


class Movement(JudgeModel):
    """Bytes on one way between tiers in the measured part of all rounds."""

    way: str
    gib: float
    seconds: float | None = None
    """Of all transfers, added up although they overlap."""
    gib_per_s: float | None = None


class TierLives(JudgeModel):
    """What became of the candidate's blocks in one tier, all rounds with their filling; medians over rounds."""

    tier: str
    stored: int
    removed: int
    never_read: int | None = None
    lifetime_p50_s: float | None = None
    """Of those that were removed."""
    reuse_gap_p50_s: float | None = None
    """From being stored or read to being read."""


class HitQuality(JudgeModel):
    """Of the candidate; `ttft_by_source` of both arms."""

    method: str | None = None
    costs: list[TokenCost] = Field(default_factory=list)
    ttft_by_source: list[SourceTtft] = Field(default_factory=list)
    worth: list[TierWorth] = Field(default_factory=list)
    neighbours: Neighbours | None = None
    movement: list[Movement] = Field(default_factory=list)
    lives: list[TierLives] = Field(default_factory=list)
    lookup_wait_s: float | None = None
    """Mean time that a request waited for tiers to answer and to promote, of those that waited."""
    preemptions: float | None = None


class Holdout(JudgeModel):
    """The candidate's requests that were sent past its secondary tier, against the others at the same server."""

    class_: str = Field(
        default="all", validation_alias=AliasChoices("class", "class_"), serialization_alias="class"
    )
    held: int
    kept: int
    ttft_held_s: float
    """Mean, failed requests at the time-out."""
    ttft_kept_s: float
    difference_s: float
    """What the tier does to the mean TTFT: below zero is faster with it."""
    ci: Ends | None = None
    method: str
    heeded: bool | None = None
    """Whether the server did hold them out; False: then the difference is not the tier's. None: not known."""


class HostReading(JudgeModel):
    """One figure of the host over the measured parts of all rounds; `kvbench.spec.host_figures` has its words."""

    name: str
    unit: str | None
    n: int
    """Samples, one a second."""
    p50: float
    max: float
    min: float


class ArmHost(JudgeModel):
    """The machine that kvbench ran on while one arm was measured."""

    arm: str
    readings: list[HostReading]
    no_gpu: str | None = None
    """Why no GPU was read; None: some were, or it was not looked for."""
    device_asked: str = "what the engine takes"
    """By the profile, in words."""
    device_proven_blocks: int | None = None
    """What the running engine says that it has; None: it does not."""
    host_tier_asked_bytes: float | None = None
    """By the profile; None: it has no host tier."""
    host_tier_proven_bytes: float | None = None
    """What the running engine proved to have; None: that could not be proven."""


class TierTime(JudgeModel):
    """A time of which the engine keeps a histogram, in the measured parts; see `kvbench.spec.engine_metrics`."""

    name: str
    n: int
    mean_s: float
    p50_s: tuple[float, float | None] | None = None
    """Between which edges it lies; None as the upper one: beyond the last. Engines tell no more."""
    p90_s: tuple[float, float | None] | None = None


class TierEvents(JudgeModel):
    """Preemptions, evictions, drops or failures that the engine counted in the measured parts."""

    name: str
    unit: str
    count: float


class PromotionWait(JudgeModel):
    """A mean promotion from disk: how long it was waited for, and how long its bytes were under way."""

    of: Literal["promotion", "request"]
    """What the means are of: newer engines tell each promotion, others each request that waited for some."""
    n: int
    wait_s: float
    transfer_s: float
    """Of reads that overlap added up, so `queueing_s` is at least what it says."""
    queueing_s: float


class TierActivity(JudgeModel):
    """What one arm's tiers went through by its engine's own telling."""

    arm: str
    rounds: int = 0
    """That are summed up."""
    left_out: int = 0
    """Rounds whose counters began again, or were first read after the measured part had begun."""
    times: list[TierTime] = Field(default_factory=list)
    events: list[TierEvents] = Field(default_factory=list)
    promotions: PromotionWait | None = None
