"""What a row of the table of engine metrics is: one family of an engine and the canonical metric it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvbench.observe.exposition import Exposition, Sample
from kvbench.spec.engine_metrics import ENGINE_METRICS, EngineMetric

__all__ = ["CanonicalSample", "Labels", "Mapping"]

Labels = tuple[tuple[str, str], ...]
_UNTYPED = ("untyped", "unknown")
_ENDINGS = {"counter": ("", "_total"), "gauge": ("",), "histogram": ("_sum", "_count", "_bucket")}
"""What a sample's name has after its family's; one with another says something that is not known here."""


class CanonicalSample(NamedTuple):
    """One value; `labels` sorted by name."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True)
class Mapping:
    """How one family of an engine becomes a canonical metric."""

    family: str
    name: str
    where: tuple[str, str] | None = None
    """Only samples with this label."""
    without: tuple[str, str] | None = None
    """No samples with this label."""
    keep: tuple[tuple[str, str], ...] = ()
    """Labels that are kept, as (the engine's name, the canonical name); the others are summed over."""
    given: Labels = ()
    """Labels that the family's name stands for."""
    replaced_by: str | None = None
    """A family of newer releases that says the same; where it is there, this one is ignored."""

    @property
    def metric(self) -> EngineMetric:
        """Kind, unit and meaning."""
        return ENGINE_METRICS[self.name]

    def applies(self, exposition: Exposition) -> bool:
        """Whether the server tells this family, as the kind of metric that it is here, and nothing newer."""
        if self.family not in exposition or (self.replaced_by is not None and self.replaced_by in exposition):
            return False
        if exposition.kinds.get(self.family, self.metric.kind) not in (self.metric.kind, *_UNTYPED):
            return False
        endings, begins = _ENDINGS[self.metric.kind], len(self.family)
        return all(sample.name[begins:] in endings for sample in exposition[self.family])

    def chosen(self, sample: Sample) -> bool:
        """Whether a sample of the family is meant."""
        for rule, wanted in ((self.where, True), (self.without, False)):
            if rule is not None and (sample.labels.get(rule[0]) == rule[1]) is not wanted:
                return False
        return True

    def named(self, sample: Sample) -> tuple[str, Labels]:
        """The canonical name and labels of a sample."""
        labels = [(new, sample.labels[old]) for old, new in self.keep if old in sample.labels]
        if self.metric.kind == "histogram":
            part = sample.name.removeprefix(self.family)
            labels += [("le", sample.labels["le"])] if "le" in sample.labels else []
            return self.name + part, tuple(sorted((*labels, *self.given)))
        return self.name, tuple(sorted((*labels, *self.given)))

    def zeros(self) -> list[tuple[str, Labels]]:
        """What a family that is declared and has no sample says: nothing has happened yet."""
        parts = ("_sum", "_count") if self.metric.kind == "histogram" else ("",)
        return [(self.name + part, self.given) for part in parts]
