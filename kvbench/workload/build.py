"""From a workload to the schedule of one round: a function of the file, its seed, the round and the capacities.

Times in seconds from the round's start, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvbench.errors import InputError
from kvbench.spec.places import placed
from kvbench.spec.workload import Workload
from kvbench.workload.arrivals import MOST_REQUESTS, arrival_times
from kvbench.workload.canaries import Tenants, check_canaries
from kvbench.workload.classes import ClassSource, make_classes
from kvbench.workload.conversation import Conversation, Turn
from kvbench.workload.holdout import with_holdout
from kvbench.workload.popularity import weighted_sampler
from kvbench.workload.randomness import Identities, Stream
from kvbench.workload.rates import lay_out_phases
from kvbench.workload.replay import Replay, replay
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment, phase_at

__all__ = ["Start", "build_replay", "build_schedule", "schedule_of"]

_PRIME_SUFFIX_TOKENS = 8
"""At least one token must follow a prefix that ends on a block's edge, else its last block cannot hit later."""


def build_schedule(
    workload: Workload,
    round_index: int,
    *,
    block_tokens: int | None,
    capacities_tokens: Mapping[str, int] | None,
    max_model_len: int | None,
) -> Schedule:
    """What one round sends; the same for every arm.

    `block_tokens`, `capacities_tokens` (by tier) and `max_model_len` (prompt and output together) are the baseline
    engine's, for whichever arm the schedule is made; None: not known. InputError when the file asks for what cannot
    be planned.
    """
    if workload.arrivals.trace is not None:
        return build_replay(
            workload, round_index, capacities_tokens=capacities_tokens, max_model_len=max_model_len
        ).schedule
    with placed(workload):
        phases = lay_out_phases(workload.phases)
        concurrency = _concurrency(workload)
        sources = make_classes(
            workload, round_index, block_tokens=block_tokens, capacities_tokens=capacities_tokens
        )
        mix = _Mix(workload, round_index, phases, sources)
        if concurrency is None:
            stream = Stream(workload.seed, workload.name, round_index, "arrivals")
            starts = list(_open_loop(mix, arrival_times(workload.arrivals, workload.phases, stream)))
        else:
            starts = list(_closed_loop(mix, concurrency))
        prime = tuple(_prime(workload, round_index, sources))
        return schedule_of(
            workload, round_index, starts, prime=prime, concurrency=concurrency, max_model_len=max_model_len
        )


def build_replay(
    workload: Workload,
    round_index: int,
    *,
    capacities_tokens: Mapping[str, int] | None,
    max_model_len: int | None,
    bad_lines: int = 0,
) -> Replay:
    """What one round sends of a trace, and what became of the trace. Arguments and errors: see `build_schedule`;
    up to `bad_lines` lines of the trace that cannot be read are left out.
    """
    with placed(workload):
        played = replay(workload, round_index, capacities_tokens=capacities_tokens, bad_lines=bad_lines)
        _checked(played.schedule, max_model_len)
    return replace(played, schedule=with_holdout(played.schedule, workload))


def schedule_of(
    workload: Workload,
    round_index: int,
    starts: Iterable[Start],
    *,
    prime: tuple[PlannedRequest, ...] = (),
    concurrency: int | None = None,
    max_model_len: int | None,
) -> Schedule:
    """The schedule of conversations whose beginnings are known, wherever they come from: a mix of classes, a trace.

    InputError when a prompt and its output are longer together than `max_model_len` (None: not known).
    """
    phases = lay_out_phases(workload.phases)
    schedule = Schedule(
        workload=workload.name,
        seed=workload.seed,
        round=round_index,
        phases=phases,
        prime=prime,
        requests=tuple(_number(starts, phases, first_id=len(prime))),
        concurrency=concurrency,
        request_timeout_s=workload.request_timeout,
        canaries=Tenants.of_round(workload, round_index).canaries,
    )
    return with_holdout(check_canaries(_checked(schedule, max_model_len)), workload)


def _checked(schedule: Schedule, max_model_len: int | None) -> Schedule:
    if max_model_len is not None:
        _check_lengths(schedule, max_model_len)
    return schedule


def _concurrency(workload: Workload) -> int | None:
    if workload.arrivals.process != "closed":
        return None
    if workload.arrivals.closed is None:
        raise InputError(
            "closed-loop arrivals need a concurrency",
            key=("arrivals", "closed"),
            do="write closed: {concurrency: 8}",
        )
    return workload.arrivals.closed.concurrency


@dataclass(frozen=True, slots=True)
class Start:
    """A conversation and when it begins. `slot` counts conversations in the order of their beginning."""

    slot: int
    class_: str
    earliest_s: float
    intended_s: float | None
    """None: when a slot of a closed loop is free."""
    conversation: Conversation
    repeat_of: int | None
    """The slot whose first request this one sends again."""


class _Mix:
    """Gives every start a class by weight, and a new conversation or, for a share of them, an earlier one again.

    A repeat takes the place of a new request of its class, so that rate and mix stay as asked. It is drawn from the
    requests of the same phase and class, each repeated at most once; of a session, the first turn is repeated.
    """

    def __init__(
        self, workload: Workload, round_index: int, phases: Sequence[PhaseSpan], sources: Mapping[str, ClassSource]
    ) -> None:
        label = (workload.name, round_index)
        weights = [class_.weight for class_ in workload.classes.values()]
        self.end_s = phases[-1].end_s
        self._phases = phases
        self._sources = sources
        self._names = list(sources)
        self._choose = weighted_sampler(weights, Stream(workload.seed, *label, "mix"))
        self._repeat_share = workload.repeat
        self._repeat_stream = Stream(workload.seed, *label, "repeat")
        self._repeatable: dict[tuple[str, str], list[Start]] = {}
        self._slots = 0

    def next(self, earliest_s: float, intended_s: float | None) -> Start:
        """The conversation that begins at `earliest_s`; call in the order of time."""
        class_ = self._names[self._choose()]
        slot, self._slots = self._slots, self._slots + 1
        candidates = self._repeatable.setdefault((phase_at(self._phases, earliest_s).name, class_), [])
        if candidates and self._repeat_stream.uniform() < self._repeat_share:
            original = candidates.pop(self._repeat_stream.below(len(candidates)))
            again = original.conversation.first_turn()
            return Start(slot, class_, earliest_s, intended_s, again, original.slot)
        conversation = self._sources[class_].next(slot, time_left_s=self.end_s - earliest_s)
        start = Start(slot, class_, earliest_s, intended_s, conversation, None)
        if self._repeat_share and conversation.turns[0].leaves is None:  # what is left early says nothing of noise
            candidates.append(start)
        return start


def _open_loop(mix: _Mix, times_s: Iterable[float]) -> Iterator[Start]:
    """A conversation for each arrival."""
    requests = 0
    for t_s in times_s:
        start = mix.next(t_s, t_s)
        requests += len(start.conversation.turns)
        if requests > MOST_REQUESTS:
            raise InputError(
                f"the sessions of one round have more than {MOST_REQUESTS} requests",
                do="lower the rate, shorten the phases or make turns fewer",
            )
        yield start


def _closed_loop(mix: _Mix, concurrency: int) -> Iterator[Start]:
    """As many conversations as the fastest engine could get through; only the first `concurrency` have a time."""
    busy_s = 0.0
    requests = 0
    for slot in range(MOST_REQUESTS):
        earliest_s = 0.0 if slot < concurrency else busy_s / concurrency
        if earliest_s >= mix.end_s:
            return
        start = mix.next(earliest_s, 0.0 if slot < concurrency else None)
        busy_s += start.conversation.fastest_s
        requests += len(start.conversation.turns)
        if requests > MOST_REQUESTS:
            break
        yield start
    raise InputError(
        f"a closed loop of {concurrency} over {mix.end_s:g} s can take more than {MOST_REQUESTS} requests",
        key=("arrivals", "closed", "concurrency"),
        do="lower the concurrency, shorten the phases or make outputs longer",
    )


def _number(starts: Iterable[Start], phases: Sequence[PhaseSpan], *, first_id: int) -> list[PlannedRequest]:
    """All turns of all conversations by earliest time, numbered in that order."""
    turns = [
        (start.earliest_s + turn.after_s, start.slot, place, start, turn)
        for start in starts
        for place, turn in enumerate(start.conversation.turns)
    ]
    turns.sort(key=lambda entry: entry[:3])
    ids = {(slot, place): id_ for id_, (_, slot, place, _, _) in enumerate(turns, first_id)}
    return [
        _planned(ids, start, place, turn, phase_at(phases, earliest_s))
        for earliest_s, _, place, start, turn in turns
    ]


def _planned(
    ids: Mapping[tuple[int, int], int], start: Start, place: int, turn: Turn, phase: PhaseSpan
) -> PlannedRequest:
    return PlannedRequest(
        id=ids[start.slot, place],
        phase=phase.name,
        measured=phase.measured,
        class_=start.class_,
        session=start.slot if start.conversation.is_session else None,
        turn=turn.number,
        intended_s=start.intended_s if turn.before is None else None,
        think_s=turn.think_s,
        continues=None if turn.before is None else ids[start.slot, turn.before],
        segments=turn.segments,
        output_tokens=turn.output_tokens,
        prefix=start.conversation.prefix,
        repeat_of=None if start.repeat_of is None else ids[start.repeat_of, 0],
        carries=turn.carries,
        waits_for=tuple(ids[start.slot, other] for other in turn.waits_for),
        branch=turn.branch,
        abort_after_tokens=turn.leaves.after_tokens if turn.leaves else None,
        abort_after_s=turn.leaves.after_s if turn.leaves else None,
        tenant=start.conversation.tenant,
    )


def _prime(workload: Workload, round_index: int, sources: Mapping[str, ClassSource]) -> Iterator[PlannedRequest]:
    """Each prefix once: of every class the least popular first, so that the tiers begin as use would leave them."""
    if workload.prime == "none":
        return
    members = [
        ((member + 1) / len(source.pool), class_, member, prefix)
        for class_, source in sources.items()
        for member, prefix in enumerate(source.pool)
    ]
    members.sort(key=lambda entry: entry[0], reverse=True)
    suffixes = Identities(workload.seed, workload.name, round_index, "prime")
    tenants = Tenants.of_round(workload, round_index)
    for id_, (_, class_, member, prefix) in enumerate(members):
        tenant = sources[class_].owner(member)
        yield PlannedRequest(
            id=id_,
            phase="prime",
            measured=False,
            class_=class_,
            session=None,
            turn=0,
            intended_s=None,
            think_s=0.0,
            continues=None,
            segments=tenants.mark((prefix, Segment(suffixes(id_), _PRIME_SUFFIX_TOKENS)), tenant),
            output_tokens=1,
            prefix=member,
            repeat_of=None,
            tenant=tenant,
        )


def _check_lengths(schedule: Schedule, max_model_len: int) -> None:
    for request, prompt_tokens in zip(schedule.in_order(), schedule.prompt_tokens(), strict=True):
        if prompt_tokens + request.output_tokens > max_model_len:
            turn = f" at turn {request.turn + 1} of a session" if request.turn else ""
            raise InputError(
                f"class {request.class_!r} plans a prompt of {prompt_tokens} tokens and {request.output_tokens} of "
                f"output{turn}, but the engine takes {max_model_len} together",
                key=("classes", request.class_),
                do="shorten prefix, suffix_tokens, output_tokens or turns (of a trace: scale), or raise "
                "max-model-len in the profile",
            )
