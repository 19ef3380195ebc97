"""Gives series that were read from an engine their canonical names, by the same table as a run's metrics. Pure.

Labels stay, so that ranks and reasons can be told apart; a label that the table renames is renamed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from kvbench.canary.families import AS_EXPOSED, BY_SOURCE, ENDINGS, SOURCE_SERIES
from kvbench.canary.series import Key, Labels, Samples, key_of
from kvbench.observe.exposition import Sample
from kvbench.observe.kvbench_names import PREFIX as OWN
from kvbench.observe.mapping import Mapping
from kvbench.observe.metric_table import MAPPINGS
from kvbench.observe.token_sources import TIERS_OF_TRTLLM

__all__ = ["canonical_samples"]

_COMPUTED_AND_DEVICE, _TIERS_APART, _BY_TIER = SOURCE_SERIES
_OF_VLLM = {"local_compute": "computed", "local_cache_hit": "device"}
_TIERS = ("device", "host", "disk")


def _rows() -> dict[str, list[tuple[Mapping, str]]]:
    """Exposed name → what it becomes, and the end of its name."""
    rows: dict[str, list[tuple[Mapping, str]]] = {}
    for mapping in MAPPINGS:
        if not mapping.family.startswith(OWN):
            for ending in ENDINGS[mapping.metric.kind]:
                rows.setdefault(mapping.family + ending, []).append((mapping, ending))
    return rows


_ROWS = _rows()


def canonical_samples(samples: Samples) -> Samples:
    """The same series under canonical names; what has none is left out."""
    names = {name for name, _ in samples}
    families = {mapping.family for name in names for mapping, _ in _ROWS.get(name, ())}
    tiers_apart = _TIERS_APART in names
    found: Samples = {}
    for (name, labels), series in samples.items():
        if name in AS_EXPOSED:
            found[name, labels] = series
        elif name in SOURCE_SERIES:
            if (source := _source(name, labels, tiers_apart=tiers_apart)) is not None:
                found[source] = series
        else:
            for family, key in _known(name, labels, families):
                # Two families that tell parts of one thing are told apart, and counted together.
                found[key if key not in found else key_of(key[0], {**dict(key[1]), "family": family})] = series
    return found


def _known(name: str, labels: Labels, families: set[str]) -> Iterable[tuple[str, Key]]:
    """What it becomes where its server tells nothing newer."""
    return ((family, key) for family, newer, key in _named(name, labels) if newer not in families)


@lru_cache(maxsize=65536)
def _named(name: str, labels: Labels) -> tuple[tuple[str, str | None, Key], ...]:
    """Family, the family that replaces it, and canonical key, of everything that this series becomes."""
    told = dict(labels)
    found = []
    for mapping, ending in _ROWS.get(name, ()):
        if mapping.chosen(Sample(name, told, 0.0)):
            renamed = dict(mapping.keep)
            kept = {renamed.get(label, label): value for label, value in labels} | dict(mapping.given)
            canonical = mapping.name + (ending if mapping.metric.kind == "histogram" else "")
            found.append((mapping.family, mapping.replaced_by, key_of(canonical, kept)))
    return tuple(found)


def _source(name: str, labels: Labels, *, tiers_apart: bool) -> Key | None:
    """Prompt tokens of one source. Where the tiers are told apart, the sum of the cached ones is left out."""
    told = dict(labels)
    if name == _COMPUTED_AND_DEVICE:
        word = told.get("source", "")
        source = _OF_VLLM.get(word, "elsewhere")
        if tiers_apart and source != "computed":
            return None
    elif name == _TIERS_APART:
        word = told.get("source", "")
        source = word if word in _TIERS else "elsewhere"
    else:
        word = told.get("cache_tier", "")
        source = TIERS_OF_TRTLLM.get(word, "elsewhere")
    return key_of(BY_SOURCE, {**told, "source": source, "told": word})
