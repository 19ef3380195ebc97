"""What the requests of each class are made of: prefixes, suffixes, outputs, turns and pauses; not when they come.

Each quantity of each class has a random stream of its own: changing one line of a file leaves other draws alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvbench.errors import InputError
from kvbench.spec.workload import Class, Compact, Workload
from kvbench.workload.canaries import NOBODY, Tenants
from kvbench.workload.conversation import Conversation, Turn
from kvbench.workload.lengths import length_sampler, think_sampler
from kvbench.workload.pools import make_pool
from kvbench.workload.popularity import member_sampler
from kvbench.workload.randomness import Identities, Stream
from kvbench.workload.schedule import Segment
from kvbench.workload.sidelines import Aborts, Branches, check_session

__all__ = ["ClassSource", "make_classes"]


class ClassSource:
    """Makes the conversations of one class, one after the other."""

    def __init__(
        self,
        class_: Class,
        pool: tuple[Segment, ...],
        think_scale: float,
        seed: int,
        *label: str | int,
        tenants: Tenants = NOBODY,
        first_owner: int = 0,
    ) -> None:
        """`first_owner` moves the tenants of pools, so that the favourites of all classes are not of one tenant."""
        self.pool = pool
        self._label = label
        self._tenants = tenants
        self._first_owner = first_owner
        self._is_session = class_.turns is not None
        self._turns = length_sampler(class_.turns or 1, Stream(seed, *label, "turns"))
        self._think = think_sampler(class_.think, think_scale, Stream(seed, *label, "think"))
        self._suffix = length_sampler(class_.suffix_tokens, Stream(seed, *label, "suffix"))
        self._output = length_sampler(class_.output_tokens, Stream(seed, *label, "output"))
        self._member = member_sampler(
            class_.prefix.popularity if class_.prefix else "uniform", len(pool), Stream(seed, *label, "popularity")
        )
        self._suffixes = Identities(seed, *label, "suffix")
        self._branches = Branches(class_.branch, class_, think_scale, seed, *label) if class_.branch else None
        self._aborts = Aborts(class_.abort, seed, *label) if class_.abort else None
        self._compact = class_.compact
        self._summaries = Identities(seed, *label, "compact")

    def next(self, slot: int, *, time_left_s: float) -> Conversation:
        """The next conversation; `slot` names its contents. Turns that cannot be sent in time are left out."""
        prefix = self._member() if self.pool else None
        shared = () if prefix is None else (self.pool[prefix],)
        turns = [self._turn(slot, shared, Turn((), 0))]
        last, context_tokens = 0, turns[0].tokens
        for number in range(1, self._turns()):
            think_s = self._think()
            ends = self._branches.start(turns, last, slot, time_left_s=time_left_s) if self._branches else ()
            after_s = max(turns[place].over_s for place in (last, *ends)) + think_s
            if after_s >= time_left_s:
                break
            rewritten = self._compact is not None and context_tokens > self._compact.after_tokens
            context = self._rewritten(self._compact, slot, number, shared) if self._compact and rewritten else ()
            place = Turn((), 0, think_s, after_s, number=number, before=last, carries=not rewritten, waits_for=ends)
            turns.append(self._turn(slot, context, place))
            last = len(turns) - 1
            check_session(len(turns), *self._label)
            context_tokens = turns[last].tokens + (0 if rewritten else context_tokens)
        tenant = self.owner(slot if prefix is None else prefix)
        marked = (replace(turn, segments=self._tenants.mark(turn.segments, tenant)) for turn in turns)
        return Conversation(prefix, self._is_session, tuple(marked) if tenant is not None else tuple(turns), tenant)

    def owner(self, place: int) -> int | None:
        """The tenant of a member of the pool; where there is none, of a conversation."""
        return self._tenants.owner(self._first_owner + place)

    def _turn(self, slot: int, context: tuple[Segment, ...], place: Turn) -> Turn:
        """The turn at this place, with what it says and is asked for."""
        suffix = Segment(self._suffixes(slot, place.number), self._suffix())
        leaves = self._aborts.next() if self._aborts else None
        return replace(place, segments=(*context, suffix), output_tokens=self._output(), leaves=leaves)

    def _rewritten(
        self, compact: Compact, slot: int, number: int, shared: tuple[Segment, ...]
    ) -> tuple[Segment, ...]:
        """The context after it was compacted: the old prefix and a summary of its own."""
        tokens = compact.to_tokens - sum(segment.tokens for segment in shared)
        return (*shared, Segment(self._summaries(slot, number), tokens))


def make_classes(
    workload: Workload,
    round_index: int,
    *,
    block_tokens: int | None,
    capacities_tokens: Mapping[str, int] | None,
) -> dict[str, ClassSource]:
    """A source for every class of the workload, in the file's order, with this round's prefixes.

    InputError when a pool cannot be made, or a compacted context is to be shorter than a prefix.
    """
    sources: dict[str, ClassSource] = {}
    tenants = Tenants.of_round(workload, round_index)
    for number, (name, class_) in enumerate(workload.classes.items()):
        label = (workload.name, round_index, "class", name)
        pool = (
            make_pool(
                class_.prefix,
                name,
                stream=Stream(workload.seed, *label, "prefix"),
                identities=Identities(workload.seed, *label, "prefix"),
                block_tokens=block_tokens,
                capacities_tokens=capacities_tokens,
            )
            if class_.prefix
            else ()
        )
        longest = max((prefix.tokens for prefix in pool), default=0)
        if class_.compact and class_.compact.to_tokens <= longest:
            raise InputError(
                f"class {name!r} compacts to {class_.compact.to_tokens} tokens, but a prefix has {longest}",
                key=("classes", name, "compact", "to_tokens"),
                do="make compact.to_tokens larger than the longest prefix, which stays",
            )
        sources[name] = ClassSource(
            class_, pool, workload.think_scale, workload.seed, *label, tenants=tenants, first_owner=number
        )
    return sources
