"""Which events of an answer carried how many tokens. Events are never taken for tokens: the server's own token ids
count, else its running usage, else the final usage spread over the events that can have carried tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

__all__ = ["Carriers", "Placed", "place_tokens"]


class Carriers:
    """The events that may carry tokens, by column: an object for each would cost more than all the rest."""

    __slots__ = ("at_ns", "counted", "ids", "since_ns", "text", "torn_ns")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        """Before this none of them can have come: when the request was sent."""
        self.torn_ns: set[int] = set()
        """Times of reads that held the end of an event and the beginning of the next."""
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
    """One entry for each event that was read together with the next one, or with a part of it, and so may have that
    one's time: how far off its time can be. It came after the read before, hence at most by the gap to the event in
    that, or by the whole time since the request was sent."""


def place_tokens(carriers: Carriers, total: int | None) -> Placed:
    """Give each token the receive time of the event that carried it. `total` is the final usage, if any."""
    if not carriers.at_ns:
        return Placed([], 0, True, None, 0, [])
    if any(carriers.ids):
        return _placed(carriers, [ids or 0 for ids in carriers.ids])
    if carriers.counted.count(None) < len(carriers.counted):
        return _placed(carriers, _differences(carriers.counted, total))
    if total is not None:
        return _placed(carriers, _spread(carriers.text, total))
    first = next((at_ns for at_ns, text in zip(carriers.at_ns, carriers.text, strict=True) if text), None)
    return Placed([], 0, False, first, 0, [])


def _placed(carriers: Carriers, counts: Sequence[int]) -> Placed:
    at_ns = carriers.at_ns
    if counts.count(1) == len(counts):  # nearly always
        return Placed(at_ns, 0, True, at_ns[0], len(at_ns), _doubts(at_ns, carriers))
    times: list[int] = []
    at: list[int] = []
    multi = 0
    for one_ns, count in zip(at_ns, counts, strict=True):
        times += [one_ns] * count
        multi += count > 1
        if count:
            at.append(one_ns)
    return Placed(times, multi, True, times[0] if times else None, len(at), _doubts(at, carriers))


def _doubts(at_ns: Sequence[int], carriers: Carriers) -> list[int]:
    times, torn_ns = set(at_ns), carriers.torn_ns
    if len(times) == len(at_ns) and not torn_ns:
        return []  # nearly always
    since = {later: max(0, later - earlier) for earlier, later in pairwise([carriers.since_ns, *sorted(times)])}
    followed = zip_longest(at_ns, at_ns[1:])
    return [since[time_ns] for time_ns, next_ns in followed if time_ns == next_ns or time_ns in torn_ns]


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
