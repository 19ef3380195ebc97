"""Sums that a correct engine keeps at every moment, or whenever no request is under way. Tokens.

vLLM counts prompts, their sources and what was cached in one go when a request is prefilled; which tier served it,
and what the caches were asked, in one go when it is admitted. So sums within one of these hold in every scrape that
does not fall into such a moment, sums across both only at rest, and over requests of whom none gave up between the
two. Source: vLLM's `v1/metrics/stats.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvbench.observe.exposition import Exposition
from kvbench.observe.lmcache_names import FOUND, FOUND_ON_DISK, FOUND_ON_HOST
from kvbench.observe.token_sources import known_total
from kvbench.observe.trtllm_names import BY_TIER, CACHED
from kvbench.observe.vllm_names import BY_SOURCE, CACHED_BY_SOURCE, RECOMPUTED

__all__ = ["IDENTITIES", "Gap", "Identity", "IdentityWatch", "identity_breaks", "identity_gaps", "settled"]

Sum = Callable[[Exposition], float | None]


def _of(*families: str) -> Sum:
    """The sum of several families, None when one is not told."""

    def total(exposition: Exposition) -> float | None:
        found = [known_total(exposition, family) for family in families]
        known = [value for value in found if value is not None]
        return sum(known) if len(known) == len(found) else None

    return total


def _sources(exposition: Exposition) -> float | None:
    """Old releases count a cached token that is computed all the same on both sides."""
    total = known_total(exposition, BY_SOURCE)
    both = known_total(exposition, RECOMPUTED) if _told(exposition, RECOMPUTED) else 0.0
    return None if total is None or both is None else total - both


def _told(exposition: Exposition, family: str) -> bool:
    """Whether the server has a family, readable or not."""
    return family in exposition or family in exposition.unread


def _cached_sources(exposition: Exposition) -> float | None:
    total, computed = _sources(exposition), known_total(exposition, BY_SOURCE, source="local_compute")
    return None if total is None or computed is None else total - computed


def _levels(exposition: Exposition) -> float | None:
    return known_total(exposition, BY_TIER) if exposition[BY_TIER] else None


@dataclass(frozen=True)
class Identity:
    """One sum. `words` are those of its whole and of its parts."""

    id: str
    words: tuple[str, str]
    whole: Sum
    parts: Sum
    at_rest_only: bool = False


IDENTITIES = (
    Identity("prompt-tokens", ("prompt tokens", "their sources"), _of("vllm:prompt_tokens"), _sources),
    Identity(
        "cached-tokens",
        ("cached prompt tokens", "device and tier sources"),
        _of("vllm:prompt_tokens_cached"),
        _cached_sources,
    ),
    Identity(
        "cache-hits",
        ("cached tokens by source", "hits of the device cache and of the tiers"),
        _of(CACHED_BY_SOURCE),
        _of("vllm:prefix_cache_hits", "vllm:external_prefix_cache_hits"),
    ),
    Identity(
        "cached-sources",
        ("cached prompt tokens", "device, host, disk and other sources"),
        _of("vllm:prompt_tokens_cached"),
        _of(CACHED_BY_SOURCE),
        at_rest_only=True,
    ),
    Identity("cache-levels", ("cached prompt tokens", "cache levels"), _of(CACHED), _levels, at_rest_only=True),
    Identity("found-tokens", ("tokens found", "host and disk"), _of(FOUND), _of(FOUND_ON_HOST, FOUND_ON_DISK)),
)


@dataclass(frozen=True)
class Gap:
    """What one identity says in one scrape."""

    identity: Identity
    whole: float
    parts: float

    @property
    def share(self) -> float:
        """Whole less parts, of the larger; zero when the sum is kept."""
        return (
            0.0 if self.whole == self.parts else (self.whole - self.parts) / max(abs(self.whole), abs(self.parts))
        )

    @property
    def text(self) -> str:
        """A sentence without its full stop."""
        what, others = self.identity.words
        return f"{what} are {self.whole:.0f}, but {others} add up to {self.parts:.0f}"


class IdentityWatch:
    """The identities of one server from scrape to scrape.

    A request that gave up leaves its mark in the sums across admission and prefill for good. From the next rest on
    they are judged by what they grew by since then, until another one gives up.
    """

    def __init__(self) -> None:
        self._rests: dict[str, tuple[float, float, float]] = {}
        """Of each identity: how many had given up at the rest that it is judged since, its whole and its parts."""

    def forget(self) -> None:
        """Counters began anew: what they stood at before is nothing to judge them by."""
        self._rests.clear()

    def gaps(self, exposition: Exposition) -> Iterator[Gap]:
        """Every identity that the server tells enough for and that must hold at this moment, kept or not. Before
        anything was counted there is nothing to hold."""
        at_rest = settled(exposition) and exposition.unread.isdisjoint(_TELL_WHO_GAVE_UP)
        gave_up = _given_up(exposition)
        for identity in IDENTITIES:
            whole, parts = identity.whole(exposition), identity.parts(exposition)
            if whole is None or parts is None or whole == parts == 0:
                continue
            if not identity.at_rest_only or (at_rest and not gave_up):
                yield Gap(identity, whole, parts)
            elif at_rest:
                since = self._rests.get(identity.id)
                if since is not None and since[0] == gave_up and whole >= since[1] and parts >= since[2]:
                    yield Gap(identity, whole - since[1], parts - since[2])
                else:
                    self._rests[identity.id] = (gave_up, whole, parts)


def identity_gaps(exposition: Exposition) -> Iterator[Gap]:
    """Those that one page alone tells of."""
    return IdentityWatch().gaps(exposition)


def identity_breaks(exposition: Exposition) -> tuple[str, ...]:
    """Sentences: sums that a correct engine keeps, and this one does not."""
    return tuple(gap.text for gap in identity_gaps(exposition) if gap.whole != gap.parts)


def settled(exposition: Exposition) -> bool:
    """Whether the server says that no request runs or waits. False when it does not say."""
    for engine in ("vllm:", "trtllm_"):
        under_way = _of(engine + "num_requests_running", engine + "num_requests_waiting")(exposition)
        if under_way is not None:
            return under_way == 0
    return False


_FINISHED, _PREEMPTED = "vllm:request_success", "vllm:num_preemptions"
_TELL_WHO_GAVE_UP = frozenset({_FINISHED, _PREEMPTED})


def _given_up(exposition: Exposition) -> float:
    """How often a request may have been admitted and not prefilled, or admitted twice."""
    aborted = [known_total(exposition, _FINISHED, finished_reason=why) for why in ("abort", "error")]
    return sum(count or 0.0 for count in (known_total(exposition, _PREEMPTED), *aborted))
