"""Pools of shared prefixes: how many members, how long, and their identities in this round. Lengths in tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvbench.errors import InputError
from kvbench.spec.workload import Prefix, WorkingSet
from kvbench.workload.lengths import length_sampler
from kvbench.workload.randomness import Identities, Stream
from kvbench.workload.schedule import Segment

__all__ = ["make_pool"]

_LARGEST_POOL = 1_000_000
"""A pool beyond this is a slip of a unit: no tier holds so many prefixes worth sharing."""


@dataclass(frozen=True, slots=True)
class _Target:
    """What a working set has to reach."""

    tokens: float
    words: str


def make_pool(
    prefix: Prefix,
    class_: str,
    *,
    stream: Stream,
    identities: Identities,
    block_tokens: int | None,
    capacities_tokens: Mapping[str, int] | None,
) -> tuple[Segment, ...]:
    """The members of a class's pool, the most popular first; each member's length is drawn once.

    A working set has the fewest members whose tokens together reach `times` the tier's capacity. InputError when
    that capacity is unknown, or when no member fills a block, so that nothing could be reused.
    """
    draw = length_sampler(prefix.tokens, stream)
    if prefix.working_set is None:
        if prefix.pool is None:
            raise InputError(
                f"the prefix of class {class_!r} has no pool",
                key=("classes", class_, "prefix"),
                do="give pool: N or working_set: {of, times}",
            )
        lengths = [draw() for _ in range(prefix.pool)]
    else:
        lengths = _fill(draw, _target(prefix.working_set, class_, capacities_tokens), class_)
        if block_tokens is not None and max(lengths) < block_tokens:
            raise InputError(
                f"no prefix of class {class_!r} fills a block of {block_tokens} tokens, so it can fill no tier",
                key=("classes", class_, "prefix", "tokens"),
                do="make prefix.tokens longer, or give pool: N instead of working_set",
            )
    return tuple(Segment(identities(member), tokens) for member, tokens in enumerate(lengths))


def _target(working_set: WorkingSet, class_: str, capacities_tokens: Mapping[str, int] | None) -> _Target:
    capacity = (capacities_tokens or {}).get(working_set.of)
    if not capacity:
        raise InputError(
            f"class {class_!r} sizes its pool by the capacity of the {working_set.of} tier, which is unknown",
            key=("classes", class_, "prefix", "working_set"),
            do="give pool: N, or a baseline whose engine tells that capacity",
        )
    return _Target(working_set.times * capacity, f"{working_set.times:g} times the {working_set.of} tier")


def _fill(draw: Callable[[], int], target: _Target, class_: str) -> list[int]:
    lengths: list[int] = []
    tokens = 0
    while tokens < target.tokens:
        if len(lengths) == _LARGEST_POOL:
            raise InputError(
                f"{target.words} takes more than {_LARGEST_POOL} prefixes of class {class_!r}",
                key=("classes", class_, "prefix", "working_set"),
                do="make prefix.tokens longer or working_set.times smaller",
            )
        lengths.append(draw())
        tokens += lengths[-1]
    return lengths
