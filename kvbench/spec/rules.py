"""Rules: what must hold for a GO, written down before the run.

Ratios are candidate / baseline; budgets are in the metric's base unit.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvbench.spec.profile import SpecModel
from kvbench.spec.quantity import Fraction, PositiveSeconds

__all__ = ["METRICS", "Benefit", "EvidenceRule", "Guardrail", "Rounds", "Rules", "Sustained", "Validity"]

METRICS: dict[str, str] = {
    "ttft": "s",
    "ttft_service": "s",
    "itl": "s",
    "tpot": "s",
    "e2e": "s",
    "goodput": "1/s",
    "capacity": "1/s",
    "throughput_tokens": "tokens/s",
    "error_rate": "fraction",
    "output_parity": "fraction",
    "promoted_tokens": "tokens",
    "source_share": "fraction",
    "host_memory": "bytes",
    "quote_recall": "fraction",
}
"""Metric name → base unit. Any other name is a canonical engine metric."""

RuleId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Limit = str | float
"""A quantity whose unit depends on the metric; `Rules` stores it in the metric's base unit after loading."""


class Sustained(SpecModel):
    window: PositiveSeconds
    for_s: PositiveSeconds = Field(alias="for")


class Rule(SpecModel):
    """Fields that every rule has. `class_` is "all" or a class of the workload."""

    id: RuleId
    metric: str
    class_: str = Field(default="all", alias="class")
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    source: Literal["device", "host", "disk", "computed"] | None = None
    max: float | None = None
    min: float | None = None
    max_ratio: Annotated[float, Field(gt=0)] | None = None
    min_ratio: Annotated[float, Field(gt=0)] | None = None


class Guardrail(Rule):
    """A proven breach is a NO_GO; GO needs every guardrail proven safe."""

    sustained: Sustained | None = None


class Benefit(Rule):
    """At least one must be proven for a GO."""


class EvidenceRule(Rule):
    """Proof that the tier was used, and that its hits were worth it."""


class Rounds(SpecModel):
    min: Annotated[int, Field(ge=1)] = 3
    max: Annotated[int, Field(ge=1)] = 12


class Validity(SpecModel):
    """Budgets of the measurement itself.

    Defaults: 20 ms of send lag is below the ITL of any served model here; 95 % coverage and 3 s gaps are three
    missed scrapes at 1 Hz; half a core of foreign CPU is the contention at which a two-core host's noise grew
    tenfold (facts on the embedded engine).
    """

    send_lag_p99: PositiveSeconds = 0.020
    scrape_coverage: Fraction = 0.95
    scrape_gap: PositiveSeconds = 3.0
    contention: Annotated[float, Field(ge=0)] = 0.5
    token_mismatch: Fraction = 0.0


class Rules(SpecModel):
    """One YAML file."""

    name: str = "rules"
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    guardrails: list[Guardrail] = Field(default_factory=list)
    benefits: list[Benefit] = Field(default_factory=list)
    evidence: list[EvidenceRule] = Field(default_factory=list)
    rounds: Rounds = Rounds()
    validity: Validity = Validity()
