"""What a gate has seen so far: the one value that judging takes. Pure; Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvbench.canary.segments import Grid, choose_grid
from kvbench.canary.sequential import Plan
from kvbench.canary.series import Group
from kvbench.judge.tiers import Tier
from kvbench.spec.rules import Rules

__all__ = ["Observed", "Unread"]


@dataclass(frozen=True)
class Unread:
    """One time that nothing could be read, and why."""

    t_s: float
    why: str


@dataclass(frozen=True, eq=False)
class Observed:
    """Two groups of replicas between `start_s` and now, `end_s`; a watch goes on until `planned_end_s`."""

    names: tuple[str, str]
    """Baseline and candidate."""
    rules: Rules
    candidate: Group
    baseline: Group | None
    start_s: float
    end_s: float
    planned_end_s: float
    once: bool
    newest_tier: Tier | None = None
    host_bytes: int | None = None
    """Size of the candidate's host tier, where its profile tells one."""
    warm_up: bool = True
    unread: tuple[Unread, ...] = ()
    """Since the last time that something could be read."""

    def present(self) -> Observed:
        """Without replicas that were gone before the watch began: they belong to an earlier rollout."""

        def there(group: Group) -> Group:
            kept = (r for r in group.replicas if r.last_sign_s > self.start_s)
            return Group(group.name, tuple(kept))

        baseline = None if self.baseline is None else there(self.baseline)
        return replace(self, candidate=there(self.candidate), baseline=baseline)

    @property
    def final(self) -> bool:
        """Whether the watch is over."""
        return self.once or self.end_s >= self.planned_end_s - 1e-6

    @property
    def groups(self) -> tuple[Group, ...]:
        """The candidate, then the baseline where there is one."""
        return (self.candidate,) if self.baseline is None else (self.candidate, self.baseline)

    @property
    def grid(self) -> Grid:
        """The segments so far."""
        interval_s = max(group.interval_s for group in self.groups)
        planned_s = self.planned_end_s - self.start_s
        return choose_grid(self.start_s, self.end_s, interval_s, once=self.once, planned_s=planned_s)

    @property
    def plan(self) -> Plan:
        """How often this is looked at, and how many segments there will be."""
        grid = self.grid
        planned = int((self.planned_end_s - self.start_s) / grid.length_s) if grid.length_s else 0
        return Plan(self.once, max(planned, grid.count))
