"""The verdict on a canary: that of a comparison, with what only a live watch has beside it. Keys are only added."""

from __future__ import annotations

from pydantic import Field

from kvbench.judge.verdict import Action, JudgeModel, RuleResult, Verdict

__all__ = ["CanaryAction", "CanaryVerdict", "Configuration", "HookResult", "ReplicaRow", "WatchState", "Window"]


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
    rules: list[RuleResult]
