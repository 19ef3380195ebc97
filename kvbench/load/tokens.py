"""Which events of an answer carried how many tokens. Events are never taken for tokens: the server's own token ids
count, else its running usage, else the final usage spread over the events that can have carried tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Carriers", "Placed", "place_tokens"]


class Carriers:
    """The events that may carry tokens, by column: an object for each would cost more than all the rest."""

    __slots__ = ("at_ns", "counted", "ids", "text")

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.ids: list[int | None] = []
        """Token ids in each; None: the field is not there or null."""
        self.counted: list[int | None] = []
        """Output tokens so far by the usage in the event; None: no usage in it."""
        self.text: list[int] = []
        """Characters of text in each."""


class Placed(NamedTuple):
    """Receive time of every token, and how many events carried more than one."""

    times_ns: list[int]
    multi_token_events: int
    known: bool
    """False: the server told neither ids nor usage, so the number of tokens is unknown (and none are placed)."""
    first_ns: int | None
    """Receive time of the first event that carries a token, also where the number is unknown."""
    events: int
    """Events that carried tokens."""
    doubts_ns: list[int]
    """One entry for each event that was read together with the next one, and so has that one's time: how far off
    its time can be. It came after the event before them, hence at most by the gap to that."""


def place_tokens(carriers: Carriers, total: int | None) -> Placed:
    """Give each token the receive time of the event that carried it. `total` is the final usage, if any."""
    if not carriers.at_ns:
        return Placed([], 0, True, None, 0, [])
    if any(carriers.ids):
        return _placed(carriers.at_ns, [ids or 0 for ids in carriers.ids])
    if carriers.counted.count(None) < len(carriers.counted):
        return _placed(carriers.at_ns, _differences(carriers.counted, total))
    if total is not None:
        return _placed(carriers.at_ns, _spread(carriers.text, total))
    first = next((at_ns for at_ns, text in zip(carriers.at_ns, carriers.text, strict=True) if text), None)
    return Placed([], 0, False, first, 0, [])


def _placed(at_ns: list[int], counts: Sequence[int]) -> Placed:
    if counts.count(1) == len(counts):  # nearly always
        return Placed(at_ns, 0, True, at_ns[0], len(at_ns), _doubts(at_ns))
    times: list[int] = []
    at: list[int] = []
    multi = 0
    for one_ns, count in zip(at_ns, counts, strict=True):
        times += [one_ns] * count
        multi += count > 1
        if count:
            at.append(one_ns)
    return Placed(times, multi, True, times[0] if times else None, len(at), _doubts(at))


def _doubts(at_ns: Sequence[int]) -> list[int]:
    times = set(at_ns)
    if len(times) == len(at_ns):
        return []  # nearly always
    distinct = sorted(times)
    gaps = [later - earlier for earlier, later in pairwise(distinct)]
    # Before the first events there is no other: the gap that follows has to do for them.
    before = dict(zip(distinct, [*gaps[:1], *gaps] or [0], strict=True))
    return [before[time_ns] for time_ns, next_ns in pairwise(at_ns) if time_ns == next_ns]


def _differences(totals: Sequence[int | None], total: int | None) -> list[int]:
    """From running totals; what only the final usage counts belongs to the last event."""
    counts: list[int] = []
    so_far = 0
    for told in totals:
        now = max(so_far, told if told is not None else so_far)
        counts.append(now - so_far)
        so_far = now
    if total is not None and total > so_far:
        counts[-1] += total - so_far
    return counts


def _spread(texts: Sequence[int], total: int) -> list[int]:
    """One token an event where that fits. Too many tokens: the events with most text carried several. Too few:
    events without text, the last first, carried none (servers end with an empty event that only says why).
    """
    counts = [1] * len(texts)
    surplus = total - len(texts)
    if surplus > 0:
        return _heap_on_longest(texts, counts, surplus)
    if surplus < 0:
        by_emptiness = sorted(range(len(texts)), key=lambda index: (texts[index] > 0, -index))
        for index in by_emptiness[:-surplus]:
            counts[index] = 0
    return counts


def _heap_on_longest(texts: Sequence[int], counts: list[int], surplus: int) -> list[int]:
    """Surplus tokens go where there is most text per token already placed."""
    characters = sum(texts)
    if characters == 0:
        counts[-1] += surplus
        return counts
    longest_first = sorted(range(len(texts)), key=lambda index: -texts[index])
    for index in longest_first:
        share = min(surplus, max(1, round(surplus * texts[index] / characters)))
        counts[index] += share
        surplus -= share
        if surplus == 0:
            break
    counts[longest_first[0]] += surplus
    return counts
