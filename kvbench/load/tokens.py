"""Which events of an answer carried how many tokens. Events are never taken for tokens: the server's own token ids
count, else its running usage, else the final usage spread over the events that can have carried tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Carrier", "Placed", "place_tokens"]


class Carrier(NamedTuple):
    """An event that may carry tokens."""

    at_ns: int
    ids: int | None
    """Token ids in it; None: the field is not there or null."""
    counted: int | None
    """Output tokens so far by the usage in the event; None: no usage in it."""
    text: int
    """Characters of text in it."""


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


def place_tokens(carriers: Sequence[Carrier], total: int | None) -> Placed:
    """Give each token the receive time of the event that carried it. `total` is the final usage, if any."""
    if not carriers:
        return Placed([], 0, True, None, 0, [])
    if any(carrier.ids for carrier in carriers):
        return _placed(carriers, [carrier.ids or 0 for carrier in carriers])
    if any(carrier.counted is not None for carrier in carriers):
        return _placed(carriers, _differences(carriers, total))
    if total is not None:
        return _placed(carriers, _spread(carriers, total))
    first = next((carrier.at_ns for carrier in carriers if carrier.text), None)
    return Placed([], 0, False, first, 0, [])


def _placed(carriers: Sequence[Carrier], counts: Sequence[int]) -> Placed:
    times: list[int] = []
    at: list[int] = []
    multi = 0
    for carrier, count in zip(carriers, counts, strict=True):
        if count == 1:
            times.append(carrier.at_ns)
        elif count > 1:
            times += [carrier.at_ns] * count
            multi += 1
        if count:
            at.append(carrier.at_ns)
    return Placed(times, multi, True, times[0] if times else None, len(at), _doubts(at))


def _doubts(at_ns: Sequence[int]) -> list[int]:
    distinct = sorted(set(at_ns))
    if len(distinct) == len(at_ns):
        return []  # nearly always
    gaps = [later - earlier for earlier, later in pairwise(distinct)]
    # Before the first events there is no other: the gap that follows has to do for them.
    before = dict(zip(distinct, [*gaps[:1], *gaps] or [0], strict=True))
    return [before[time_ns] for time_ns, next_ns in pairwise(at_ns) if time_ns == next_ns]


def _differences(carriers: Sequence[Carrier], total: int | None) -> list[int]:
    """From running totals; what only the final usage counts belongs to the last event."""
    counts: list[int] = []
    so_far = 0
    for carrier in carriers:
        now = max(so_far, carrier.counted if carrier.counted is not None else so_far)
        counts.append(now - so_far)
        so_far = now
    if total is not None and total > so_far:
        counts[-1] += total - so_far
    return counts


def _spread(carriers: Sequence[Carrier], total: int) -> list[int]:
    """One token an event where that fits. Too many tokens: the events with most text carried several. Too few:
    events without text, the last first, carried none (servers end with an empty event that only says why).
    """
    counts = [1] * len(carriers)
    surplus = total - len(carriers)
    if surplus > 0:
        return _heap_on_longest(carriers, counts, surplus)
    by_emptiness = sorted(range(len(carriers)), key=lambda index: (carriers[index].text > 0, -index))
    for index in by_emptiness[:-surplus] if surplus else ():
        counts[index] = 0
    return counts


def _heap_on_longest(carriers: Sequence[Carrier], counts: list[int], surplus: int) -> list[int]:
    """Surplus tokens go where there is most text per token already placed."""
    texts = sum(carrier.text for carrier in carriers)
    if texts == 0:
        counts[-1] += surplus
        return counts
    longest_first = sorted(range(len(carriers)), key=lambda index: -carriers[index].text)
    for index in longest_first:
        share = min(surplus, max(1, round(surplus * carriers[index].text / texts)))
        counts[index] += share
        surplus -= share
        if surplus == 0:
            break
    counts[longest_first[0]] += surplus
    return counts
