"""The verdict on a canary: that of a comparison, with what only a live watch has beside it. Keys are only added."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvbench.judge.verdict import Action, JudgeModel, RuleResult, Verdict

__all__ = [
    "CanaryAction",
    "CanaryVerdict",
    "Configuration",
    "HookResult",
    "LatencySummary",
    "ProofPart",
    "ReplicaRow",
    "Rollback",
    "SwitchCost",
    "TierEvidence",
    "WatchState",
    "Window",
]


class Window(JudgeModel):
    """The stretch that was judged, Unix seconds."""

    start: float
    end: float


class Configuration(JudgeModel):
    """What to apply: the candidate's profile without its newest tier, as `kvbench render` shows it."""

    profile: dict[str, object]
    argv: list[str] = Field(default_factory=list)
    """Empty for servers that kvbench does not start."""
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)


class HookResult(JudgeModel):
    """What came of telling others: `dry-run`, `done`, `failed`, or `begun` when the gate was killed meanwhile."""

    id: str
    state: str
    at: float
    text: str


class CanaryAction(Action):
    """What to do now, exactly."""

    configuration: Configuration | None = None


class ProofPart(JudgeModel):
    """One thing that must be so after a rollback. `after_s`: seconds from the hook until it was so.

    `waiting` while there is time; at the end `proven`, `failed` (the contrary is seen) or `unknown`.
    """

    status: Literal["waiting", "proven", "failed", "unknown"]
    after_s: float | None = None
    text: str


class TierEvidence(JudgeModel):
    """What one replica shows of the tier, and what it cannot show."""

    replica: str
    status: Literal["off", "on", "unknown"]
    since: float | None = None
    """When the process that serves now was first seen, Unix seconds; None: it is the one from before the hook."""
    evidence: list[str] = Field(default_factory=list)
    unproven: list[str] = Field(default_factory=list)


class LatencySummary(JudgeModel):
    """TTFT of a stretch. The mean is exact; a quantile lies between two edges of the histogram's buckets."""

    requests: float
    mean_s: float | None
    p50_s: tuple[float, float] | None
    p90_s: tuple[float, float] | None


class SwitchCost(JudgeModel):
    """What switching the tier off took. None: not known. Seconds, tokens, fractions."""

    without_service_s: tuple[float, float] | None = None
    """How long no replica answered its scrapes: at least and at most, as finely as scrapes tell."""
    requests_under_way: float | None = None
    """At the last scrape before that; they were lost unless the replica was drained."""
    requests_meanwhile: float | None = None
    """As many as come in that time at the rate from before."""
    cached_share_before: float | None = None
    cached_share_until_back: float | None = None
    cached_share_after: float | None = None
    """Of the prompt tokens: before the hook, from the first answer until TTFT was back, and since then."""
    recomputed_tokens: float | None = None
    """Prompt tokens computed since the first answer after the hook that were hits at the share from before."""
    recomputed_requests: float | None = None
    """The same as whole prompts of the usual length."""
    requests_since: float | None = None
    """Requests in that time."""
    sources_before: dict[str, float | None] = Field(default_factory=dict)
    sources_after: dict[str, float | None] = Field(default_factory=dict)
    """Shares of the prompt tokens by source."""
    ttft_before: LatencySummary | None = None
    ttft_until_back: LatencySummary | None = None
    ttft_after: LatencySummary | None = None
    ttft_baseline: LatencySummary | None = None
    """Of the baseline's replicas since the hook, where there are any."""


class Rollback(JudgeModel):
    """What came of the hook: whether the tier is off, whether TTFT is back, and what it cost. Unix seconds."""

    tier: str | None
    hook_at: float
    within_s: float
    """So much time both had."""
    at: float
    """Of the latest look."""
    ended: bool
    tier_off: ProofPart
    baseline_back: ProofPart
    replicas: list[TierEvidence] = Field(default_factory=list)
    cost: SwitchCost | None = None


class ReplicaRow(JudgeModel):
    """One replica as it was seen: description, not decision."""

    side: str
    replica: str
    requests: float | None
    per_s: float | None
    share_over: float | None = None
    """Of the first guardrail with a budget; at least."""
    warm: bool
    restarts: int
    odd: bool = False


class WatchState(JudgeModel):
    """How far the watch has got. Times in seconds."""

    segments: int
    segments_seen: int
    """Of these, those with enough scrapes to count anything."""
    segment_s: float
    planned_end: float
    final: bool
    scrape_interval_s: float


class CanaryVerdict(Verdict):
    """Schema 1."""

    action: CanaryAction | None = None
    window: Window
    watch: WatchState
    replicas: list[ReplicaRow] = Field(default_factory=list)
    hook: HookResult | None = None
    rollback: Rollback | None = None
    """None before a hook was run."""
    rules: list[RuleResult]
