"""Whether a tier is off after a rollback: what each replica's series and its own words prove. Pure; Unix seconds.

Conclusive are a configuration without the tier, the absence of families that were declared before, and lookups that
stopped although prompts go on. Silence is not: a cold tier has no hits either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvbench.canary.families import (
    BY_SOURCE,
    DISK_QUERIES,
    DISK_WRITTEN,
    HOST_STORED,
    LATENCY_FAMILIES,
    STARTED,
    TIER_QUERIES,
)
from kvbench.canary.health import clock
from kvbench.canary.series import Group, Replica
from kvbench.canary.told import ServerSays, declared
from kvbench.canary.verdict import TierEvidence
from kvbench.judge import wording
from kvbench.judge.sustained import FEWEST_REQUESTS
from kvbench.judge.tiers import Tier
from kvbench.spec.profile import Profile

__all__ = ["Switch", "began_anew_s", "shows_tier", "tier_evidence"]

JUST_BEFORE_S = 1e-3
REQUESTS = LATENCY_FAMILIES["ttft"] + "_count"


@dataclass(frozen=True)
class Switch:
    """What is switched off, and when. Between `before_s` and `fired_s` it was on."""

    tier: Tier | None
    wanted: Profile | None
    """What is to run afterwards; None: not known."""
    before_s: float
    fired_s: float
    until_s: float
    steady_s: float
    """How long a process that did not begin anew is looked back on."""
    told_before: Mapping[str, ServerSays]

    @property
    def any_left(self) -> bool:
        """Whether a tier behind the device stays."""
        return self.wanted is not None and self.wanted.tiers.host is not None

    @property
    def gone(self) -> bool:
        """Whether the tier is to be gone; else another form of it stays, as the baseline has it."""
        return self.tier is not None and (self.wanted is None or self.tier not in self.wanted.tier_names)


def began_anew_s(replica: Replica, fired_s: float) -> float | None:
    """When the process that serves now was first seen, if that was after the hook. A server that does not tell its
    start betrays a restart by counters that fell."""
    if len(replica.t_s) and replica.t_s[0] > fired_s:
        return float(replica.t_s[0])
    told = any(replica.has(name) for name in STARTED)
    moments = replica.restarts_s if told else replica.resets_s
    after = moments[moments > fired_s]
    return float(after[-1]) if len(after) else None


def shows_tier(group: Group, told: Mapping[str, ServerSays], tier: Tier, start_s: float, end_s: float) -> list[str]:
    """What says that the tier is on in this stretch; empty: nothing does."""
    found = []
    part = group.each(lambda replica: replica.within(start_s, end_s))
    tokens = part.grown(BY_SOURCE, source=tier) or 0.0
    if tokens:
        found.append(f"{tokens:,.0f} prompt tokens came from the {tier} tier")
    written = part.grown(DISK_WRITTEN if tier == "disk" else HOST_STORED) or 0.0
    if written:
        found.append(f"{wording.value(written, 'bytes')} were written to it")
    for address, says in told.items():
        if says.secondary if tier == "disk" else says.connector:
            found.append(f"{address} has it in its configuration")
        elif declared(says, tier):
            families = wording.count(len(declared(says, tier)), "family", "families")
            found.append(f"{address} declares {families} of it")
    return found


def tier_evidence(
    switch: Switch, group: Group, told: Mapping[str, ServerSays], asked: frozenset[str], now_s: float
) -> list[TierEvidence]:
    """One entry for each replica that serves, and for each server that was asked and has no series."""
    rows: list[TierEvidence] = []
    matched: set[str] = set()
    for replica in group.replicas:
        if replica.gone_at(now_s):
            continue
        address = next((each for each in asked if replica.name in (each, urlsplit(each).netloc)), None)
        matched |= {address} if address is not None else set()
        rows.append(_Looked(switch, group, replica, address, told, now_s).result())
    for address in sorted(asked - matched):
        rows.append(_Looked(switch, group, Replica(address, {}), address, told, now_s, series=False).result())
    return rows


class _Looked:
    """What one replica shows, collected."""

    def __init__(
        self,
        switch: Switch,
        group: Group,
        replica: Replica,
        address: str | None,
        told: Mapping[str, ServerSays],
        now_s: float,
        *,
        series: bool = True,
    ) -> None:
        self._switch, self._replica, self._address = switch, replica, address
        self._before = group.each(lambda each: each.within(switch.before_s, switch.fired_s))
        self._says = told.get(address) if address is not None else None
        self._now_s = now_s
        self._series = series
        self._since_s = began_anew_s(replica, switch.fired_s)
        begin_s = max(switch.fired_s, now_s - switch.steady_s)
        if self._since_s is not None:
            begin_s = self._since_s - JUST_BEFORE_S
        self._after = Group(replica.name, (replica.within(begin_s, now_s),))
        self._off: list[str] = []
        self._on: list[str] = []
        self._open: list[str] = []
        self._also: list[str] = []

    def result(self) -> TierEvidence:
        if self._series and self._silent():
            return self._row("unknown", [], ["it does not answer"])
        if self._since_s is not None:
            self._also.append(f"another process serves since {clock(self._since_s)}")
        elif self._series:
            self._open.append("no restart is seen")
        if self._switch.tier not in ("host", "disk"):
            return self._row("unknown", self._also, [*self._open, "which tier is meant is not known"])
        self._configuration()
        if self._switch.gone:
            self._families()
            if self._series:
                self._lookups()
                self._use()
        status = "on" if self._on else "off" if self._off else "unknown"
        return self._row(status, [*self._on, *self._also, *self._off], self._open)

    def _row(self, status: str, evidence: list[str], unproven: list[str]) -> TierEvidence:
        return TierEvidence.model_validate(
            {
                "replica": self._replica.name,
                "status": status,
                "since": self._since_s,
                "evidence": evidence,
                "unproven": unproven,
            }
        )

    def _silent(self) -> bool:
        replica = self._replica
        down = replica.down_s[replica.down_s <= self._now_s]
        last_s = replica.t_s[-1] if len(replica.t_s) else -1.0
        return not replica.alive_at(self._now_s) or bool(len(down) and down[-1] > last_s)

    def _configuration(self) -> None:
        says, switch = self._says, self._switch
        if self._address is None:
            self._open.append("its configuration was not asked for; name it in on_breach.servers")
            return
        if says is None or not says.configured:
            self._open.append("it does not tell its configuration")
            return
        if switch.gone and switch.tier == "disk":
            self._settle(not says.secondary, "its configuration has no tier behind the host", says.secondary)
        elif switch.gone:
            self._settle(says.connector is None, "its configuration has no KV connector", [str(says.connector)])
        elif switch.tier == "host" and switch.wanted is not None and switch.wanted.tiers.host is not None:
            size = switch.wanted.tiers.host.size
            words = f"its configuration has a host tier of {wording.value(size, 'bytes')}"
            self._settle(says.host_bytes == size, f"{words}, as is wanted", [f"{says.host_bytes} bytes"])
        else:
            self._open.append("how its disk tier is configured is not told")

    def _settle(self, is_off: bool, words: str, still: list[str]) -> None:
        if is_off:
            self._off.append(words)
        else:
            self._on.append(f"its configuration still has {', '.join(still)}")

    def _families(self) -> None:
        switch, says = self._switch, self._says
        if says is None or says.families is None:
            return
        before = max((len(declared(each, switch.tier)) for each in switch.told_before.values()), default=0)
        now = declared(says, switch.tier)
        if now:
            self._on.append(f"its metrics still declare {now[0]}")
        elif before:
            self._off.append(f"its metrics declare no family of the {switch.tier} tier, {before} before")

    def _lookups(self) -> None:
        """vLLM asks the connector for every prompt token that the device lacks, and the disk tier for what the host
        lacks; so nothing looked up while prompts are computed means that there is nobody to ask."""
        whole = self._switch.tier == "host" or not self._switch.any_left
        metric, what = (
            (TIER_QUERIES, "tokens looked up behind the device") if whole else (DISK_QUERIES, "chunks on disk")
        )
        before, after = self._before.grown(metric), self._after.grown(metric)
        if not before:
            self._open.append("lookups were not counted before")
            return
        requests, computed = self._after.grown(REQUESTS) or 0.0, self._after.computed_tokens or 0.0
        seen = f"{requests:,.0f} requests and {computed:,.0f} computed tokens"
        if after:
            self._on.append(f"{after:,.0f} {what} since then")
        elif requests >= FEWEST_REQUESTS and computed > 0:
            self._off.append(f"no {what} in {seen}, {before:,.0f} before")
        else:
            self._open.append(f"no {what} so far, in {seen} only")

    def _use(self) -> None:
        """A single promotion, or a byte stored, is enough to know that it is on."""
        tier = self._switch.tier
        tokens = self._after.grown(BY_SOURCE, source=str(tier))
        if tokens:
            self._on.append(f"{tokens:,.0f} prompt tokens came from the {tier} tier since then")
        written = self._after.grown(DISK_WRITTEN if tier == "disk" else HOST_STORED)
        if written:
            self._on.append(f"{wording.value(written, 'bytes')} were written to the {tier} tier since then")
        if tokens == 0:
            self._also.append(f"no prompt token came from the {tier} tier since then")
