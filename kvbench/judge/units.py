"""Which rounds are independent: pairs of rounds that share an engine launch count as one unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kvbench.judge.evidence import RoundPair
from kvbench.judge.looks import Look
from kvbench.spec.rules import Rounds

__all__ = ["Units", "independent_units"]


@dataclass(frozen=True)
class Units:
    """The independent units of a comparison, each a group of places in the sequence of pairs."""

    groups: tuple[tuple[int, ...], ...]
    kind: Literal["round", "launch"]
    look: Look

    def average(self, per_pair: Sequence[float] | Mapping[int, float]) -> list[float]:
        """One value a unit: the mean over its pairs, which `per_pair` gives by place."""
        return [float(np.mean([per_pair[place] for place in group])) for group in self.groups]

    def only(self, places: Sequence[int]) -> Units:
        """The units that are left when only some pairs have a value."""
        groups = tuple(tuple(place for place in group if place in places) for group in self.groups)
        kept = tuple(group for group in groups if group)
        return replace(self, groups=kept, look=replace(self.look, done=len(kept)))

    def pairs_for(self, units: float) -> int:
        """How many pairs of rounds make that many units, at the sharing seen so far."""
        pairs = sum(len(group) for group in self.groups)
        return math.ceil(units * pairs / len(self.groups)) if self.groups else math.ceil(units)


def independent_units(pairs: Sequence[RoundPair], rounds: Rounds, *, attached: bool) -> Units:
    """Group pairs by launch. Attached servers have one launch for all: there the round is the unit, and the
    interval is conditional on the launch."""
    groups = [(place,) for place in range(len(pairs))] if attached else _by_launch(pairs)
    if len(groups) == len(pairs):
        return Units(tuple(groups), "round", Look(len(pairs), rounds.min, rounds.max))
    share = len(groups) / len(pairs)
    look = Look(len(groups), max(1, math.ceil(rounds.min * share)), max(1, round(rounds.max * share)))
    return Units(tuple(groups), "launch", look)


def _by_launch(pairs: Sequence[RoundPair]) -> list[tuple[int, ...]]:
    """Sets of pairs connected by a launch of either arm, in order of their first pair."""
    groups: list[tuple[set[tuple[str, str]], list[int]]] = []
    for place, pair in enumerate(pairs):
        launches = {("baseline", pair.baseline.launch), ("candidate", pair.candidate.launch)}
        members = [place]
        for group in [group for group in groups if group[0] & launches]:
            launches |= group[0]
            members = group[1] + members
            groups.remove(group)
        groups.append((launches, sorted(members)))
    return sorted(tuple(members) for _, members in groups)
