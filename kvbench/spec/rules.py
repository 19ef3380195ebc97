"""Rules: what must hold for a GO, written down before the run.

Ratios are candidate / baseline; budgets are in the metric's base unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from kvbench.spec.bounds import (
    FACTOR,
    LARGEST_BYTES,
    LONGEST_S,
    MOST_ROUNDS,
    SHORTEST_WINDOW_S,
    WINDOWS_PER_FOR,
    between,
    is_stored,
    within,
)
from kvbench.spec.engine_metrics import ENGINE_METRICS
from kvbench.spec.model import Misfit, Name, SpecFile, SpecModel
from kvbench.spec.quantity import (
    Fraction,
    Number,
    PositiveSeconds,
    Whole,
    parse_number,
    parse_quantity,
    show_seconds,
)
from kvbench.spec.spelling import did_you_mean

__all__ = [
    "HIGHER_IS_BETTER",
    "LATENCIES",
    "METRICS",
    "Benefit",
    "EvidenceRule",
    "Guardrail",
    "Rounds",
    "Rules",
    "Sustained",
    "Validity",
]

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

LATENCIES = ("ttft", "ttft_service", "itl", "tpot", "e2e")
"""Metrics with a quantile; lower is better."""
HIGHER_IS_BETTER = ("goodput", "capacity", "throughput_tokens", "promoted_tokens", "quote_recall")
_LOWER_IS_BETTER = (*LATENCIES, "error_rate", "host_memory")
_WITH_SOURCE = ("source_share", "promoted_tokens")
_PROMOTING = ("host", "disk")
_NO_OBJECTIVE = (*_WITH_SOURCE, "output_parity")
_EXACT = ("error_rate", "output_parity")
"""Decided by exact bounds of what all rounds together count."""
_COUNTS = ("tokens", "blocks", "chunks")
"""Units of the engine's counts of what was kept, found and moved. None of it is a success by itself."""

_QUANTITY_OF_UNIT = {"s": "seconds", "1/s": "per second", "fraction": "fraction", "bytes": "bytes"}
_LARGEST_OF_UNIT: dict[str, tuple[float, str]] = {"s": (LONGEST_S, "365d"), "bytes": (LARGEST_BYTES, "1024PiB")}
_LARGEST_LIMIT = 1e15
"""Of what is counted: larger whole numbers are not told apart in the sums that it is held against."""


def metric_unit(metric: str) -> str | None:
    """The base unit of a rule's metric; None for a name that nobody knows."""
    known = ENGINE_METRICS.get(metric)
    return METRICS.get(metric) or (known.unit if known else None)


def _share(value: object) -> float:
    return parse_quantity(value, "fraction")


class Sustained(SpecModel):
    """A window of at least `SHORTEST_WINDOW_S` and a thousandth of `for`: ten moments of each are looked at."""

    window: PositiveSeconds
    for_s: PositiveSeconds = Field(alias="for")

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> Sustained:
        if self.window > self.for_s:
            raise Misfit((("window",), f"a window cannot be longer than for, {self.for_s:g} s"))
        shortest_s = max(SHORTEST_WINDOW_S, self.for_s / WINDOWS_PER_FOR)
        if self.window < shortest_s and not is_stored(info):
            why = f"at least 100ms and a thousandth of for, got {show_seconds(self.window)}"
            raise Misfit((("window",), f"must be {show_seconds(shortest_s)} or longer: {why}"))
        return self


class Rule(SpecModel):
    """Fields that every rule has. `class_` is "all" or a class of the workload."""

    id: Name
    metric: str
    class_: str = Field(default="all", alias="class")
    quantile: Annotated[float, BeforeValidator(_share), Field(gt=0, lt=1)] | None = None
    source: Literal["device", "host", "disk", "computed"] | None = None
    max: float | None = None
    min: float | None = None
    max_ratio: Annotated[Number, Field(gt=0), within(FACTOR)] | None = None
    min_ratio: Annotated[Number, Field(gt=0), within(FACTOR)] | None = None

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str) -> str:
        if metric_unit(value) is None:
            raise ValueError(
                f"unknown metric {value!r}{did_you_mean(value, [*METRICS, *ENGINE_METRICS], 'metrics')}"
            )
        return value

    @field_validator("max", "min", mode="before")
    @classmethod
    def _in_the_metrics_unit(cls, value: object, info: ValidationInfo) -> float | None:
        """`2s` for a latency, `0.1%` for a rate of errors, `16GiB` for memory, a plain number for counts."""
        metric = info.data.get("metric")
        if value is None or metric is None:
            return None
        unit = metric_unit(metric) or ""
        if unit in _QUANTITY_OF_UNIT:
            amount = parse_quantity(value, _QUANTITY_OF_UNIT[unit])
        else:
            amount = _count(value, metric, unit)
        if amount < 0 or (unit == "fraction" and amount > 1):
            raise ValueError(
                f"{metric} lies between 0 and 1" if unit == "fraction" else f"{metric} is never negative"
            )
        largest, words = _LARGEST_OF_UNIT.get(unit, (_LARGEST_LIMIT, f"{_LARGEST_LIMIT:g} {unit}".strip()))
        if amount > largest:
            raise ValueError(f"{metric} is never above {words}, got {value!r}")
        return amount

    @model_validator(mode="after")
    def _fits(self) -> Rule:
        if problems := list(self.misfits()):
            raise Misfit(*problems)
        return self

    @property
    def over_rounds(self) -> bool:
        """Whether an interval over rounds decides it, which takes at least two of them."""
        return self.metric not in _EXACT

    def misfits(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What does not fit together in this rule."""
        latency = self.metric in LATENCIES
        if latency and self.quantile is None:
            yield ("metric",), f"{self.metric} is judged at a quantile; add quantile: 0.99"
        if not latency and self.quantile is not None:
            yield ("quantile",), f"{self.metric} has no quantiles; leave it out"
        if self.metric == "source_share" and self.source is None:
            yield ("metric",), "source_share needs source: device, host, disk or computed"
        if self.source is not None and self.metric not in _WITH_SOURCE:
            yield ("source",), f"{self.metric} has no source"
        if self.metric == "promoted_tokens" and self.source not in (None, *_PROMOTING):
            yield (
                ("source",),
                f"nothing is promoted from {self.source}; use host or disk, or metric: source_share",
            )
        for key, wrong in (("min", _LOWER_IS_BETTER), ("max", HIGHER_IS_BETTER)):
            opposite = "max" if key == "min" else "min"
            better = "lower" if key == "min" else "higher"
            for name in (key, f"{key}_ratio"):
                if getattr(self, name) is not None and self.metric in wrong:
                    yield (name,), f"{better} is better for {self.metric}; use {name.replace(key, opposite)}"
        if self.metric == "output_parity":
            for name in ("min", "max_ratio", "min_ratio"):
                if getattr(self, name) is not None:
                    yield (name,), "output_parity is what differs beyond the engine's own noise; use max"


def _count(value: object, metric: str, unit: str) -> float:
    """A plain number, or one with the metric's own unit behind it: `1000 tokens/s`."""
    try:
        return parse_number(value.strip().removesuffix(unit) if isinstance(value, str) else value)
    except ValueError:
        raise ValueError(f"{metric} is a number of {unit}, got {value!r}") from None


class Guardrail(Rule):
    """A proven breach is a NO_GO; GO needs every guardrail proven safe."""

    sustained: Sustained | None = None

    @property
    def over_rounds(self) -> bool:
        """A sustained rule is judged inside single rounds."""
        return super().over_rounds and self.sustained is None

    def misfits(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """A limit is needed; the rollback rule counts exceedances of a budget at a quantile."""
        yield from super().misfits()
        limits = (self.max, self.min, self.max_ratio, self.min_ratio)
        if all(limit is None for limit in limits) and self.metric != "output_parity":
            yield (), f"has no limit; add max, min, max_ratio or min_ratio for {self.metric}"
        if self.sustained is None:
            return
        if self.metric not in LATENCIES:
            yield ("sustained",), f"sustained counts latencies over a budget; {self.metric} is no latency"
        elif self.max is None:
            yield ("sustained",), "sustained counts exceedances of a budget; add max: 2s"
        if self.max_ratio is not None:
            yield ("max_ratio",), "sustained counts exceedances of max alone; give the ratio a rule of its own"


class Benefit(Rule):
    """At least one must be proven for a GO."""

    def misfits(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """A benefit is an improvement over the baseline, of something that users notice."""
        yield from super().misfits()
        counts = self.metric in ENGINE_METRICS and ENGINE_METRICS[self.metric].unit in _COUNTS
        if counts or self.metric in _NO_OBJECTIVE:
            yield (
                ("metric",),
                f"{self.metric} is no benefit by itself: a tier pays through latencies, rates or errors; "
                "make it a guardrail or evidence",
            )
        if self.max_ratio is None and self.min_ratio is None:
            yield (), "a benefit is measured against the baseline; add max_ratio: 0.8 (or min_ratio: 1.1)"
        for key in ("max", "min"):
            if getattr(self, key) is not None:
                yield (key,), f"a benefit is measured against the baseline; use {key}_ratio"
        if self.max_ratio is not None and self.max_ratio >= 1:
            yield ("max_ratio",), f"{self.max_ratio:g} is no improvement; a benefit lies below 1"
        if self.min_ratio is not None and self.min_ratio <= 1:
            yield ("min_ratio",), f"{self.min_ratio:g} is no improvement; a benefit lies above 1"


class EvidenceRule(Rule):
    """Proof that the tier was used, and that its hits were worth it."""

    @property
    def over_rounds(self) -> bool:
        """Promoted tokens are counted, over all rounds together."""
        return super().over_rounds and self.metric != "promoted_tokens"

    def misfits(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Evidence is about the candidate alone."""
        yield from super().misfits()
        if self.max is None and self.min is None:
            yield (), "has no limit; add min: 1"
        for key in ("max_ratio", "min_ratio"):
            if getattr(self, key) is not None:
                yield (key,), f"evidence is about the candidate alone; use {key.removesuffix('_ratio')}"


class Rounds(SpecModel):
    min: Annotated[Whole, Field(ge=1), between(1, MOST_ROUNDS)] = 3
    max: Annotated[Whole, Field(ge=1), between(1, MOST_ROUNDS)] = 12

    @model_validator(mode="after")
    def _fits(self) -> Rounds:
        if self.min > self.max:
            key = "min" if "min" in self.model_fields_set else "max"
            raise Misfit(((key,), f"min ({self.min}) is larger than max ({self.max})"))
        return self


MOST_CORES = 1_000_000
"""More than any host has: a budget that nothing can exceed may be meant so, and needs no more."""


class Validity(SpecModel):
    """Budgets of the measurement itself.

    Defaults: 20 ms of send lag is below the ITL of any served model here; 95 % coverage and 3 s gaps are three
    missed scrapes at 1 Hz; half a core of foreign CPU is the contention at which a two-core host's noise grew
    tenfold (facts on the embedded engine).
    """

    send_lag_p99: PositiveSeconds = 0.020
    scrape_coverage: Fraction = 0.95
    scrape_gap: PositiveSeconds = 3.0
    contention: Annotated[Number, Field(ge=0), between(0, MOST_CORES)] = 0.5
    token_mismatch: Fraction = 0.0


_TAKEN = {
    "stability": "the guardrail that every run has",
    "canaries": "the guardrail of every workload with canaries",
}


class Rules(SpecFile):
    """One YAML file."""

    name: str = "rules"
    confidence: Annotated[float, BeforeValidator(_share), Field(ge=0.5, lt=1)] = 0.95
    guardrails: list[Guardrail] = Field(default_factory=list)
    benefits: list[Benefit] = Field(default_factory=list)
    evidence: list[EvidenceRule] = Field(default_factory=list)
    rounds: Rounds = Rounds()
    validity: Validity = Validity()

    @model_validator(mode="after")
    def _distinct(self) -> Rules:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        seen: set[str] = set()
        for part in ("guardrails", "benefits", "evidence"):
            for i, rule in enumerate(getattr(self, part)):
                if rule.id in _TAKEN:
                    problems.append(((part, i, "id"), f"{rule.id} is {_TAKEN[rule.id]}"))
                elif rule.id in seen:
                    problems.append(((part, i, "id"), f"another rule has the id {rule.id}"))
                seen.add(rule.id)
        if problems:
            raise Misfit(*problems)
        return self
