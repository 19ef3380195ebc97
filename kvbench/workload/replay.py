"""From a trace to the schedule of one round. Times in seconds from the round's start, lengths in tokens.

A replay's prompts are those of the trace: made of its block ids, not of what the engine answered. Requests come at
the trace's own times over `speed`; a later turn of a session waits for its predecessor's end plus the trace's think
time, where the trace tells one, else it comes at its own time as well. Phases cut the trace by time: a request
belongs to the phase in which its time lies, and what comes after the last phase is not played. All requests are of
one class, `trace` unless the workload names it, or of the class called like their `type` or `model`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kvbench.errors import InputError, NotSupportedYetError, Where
from kvbench.plan.replay_reuse import ReplayReuse, check_reuse
from kvbench.spec.workload import TraceSource, Workload
from kvbench.workload.randomness import Identities, Stream
from kvbench.workload.rates import lay_out_phases
from kvbench.workload.schedule import PlannedRequest, Schedule, Segment, phase_at
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.content import Scaled, contents, scaled
from kvbench.workload.traces.reading import read_trace
from kvbench.workload.traces.trace import Floats, Trace

__all__ = ["Replay", "ReplaySummary", "replay"]


@dataclass(frozen=True)
class ReplaySummary:
    """What becomes of a trace when it is played."""

    file: str
    format: str
    trace_requests: int
    """In the whole file."""
    requests: int
    """That are played."""
    speed: float
    block_tokens: int | None
    """Of the trace; None for one without ids."""
    played_block_tokens: int | None
    """Tokens that a block (or `blocks_together` of them) has in the schedule, after scaling."""
    blocks_together: int
    """Blocks of the trace that are played as one, where the scale is below one token a block."""
    reuse: ReplayReuse | None
    """Of the played part before scaling: the schedule's, and equal to the trace's."""

    def document(self) -> dict[str, object]:
        """For machines."""
        return asdict(self)


@dataclass(frozen=True)
class Replay:
    """A schedule made from a trace."""

    schedule: Schedule
    summary: ReplaySummary


def replay(
    workload: Workload, round_index: int, *, capacities_tokens: Mapping[str, int] | None, bad_lines: int = 0
) -> Replay:
    """Plan one round; up to `bad_lines` lines that cannot be read are left out. InputError when the trace cannot be
    read or played as the workload asks, or when the schedule's reuse, ideal and at the capacities of the tiers, is
    not the trace's.
    """
    source = workload.arrivals.trace
    if source is None:
        raise InputError("arrivals from a trace need trace: {path: FILE}", key=("arrivals", "trace"))
    _refuse_unsupported(workload)
    whole = _read(source, bad_lines)
    trace, times_s = _played(whole, source, workload)
    content = _content(workload, round_index, source, trace, capacities_tokens or {})
    played = content.played
    schedule = Schedule(
        workload=workload.name,
        seed=workload.seed,
        round=round_index,
        phases=lay_out_phases(workload.phases),
        prime=(),
        requests=_requests(workload, trace, times_s, content.prompts),
        concurrency=None,
        request_timeout_s=workload.request_timeout,
    )
    summary = ReplaySummary(
        file=whole.path.name,
        format=whole.format,
        trace_requests=len(whole),
        requests=len(trace),
        speed=source.speed,
        block_tokens=whole.block_tokens,
        played_block_tokens=played.played_block_tokens if played else None,
        blocks_together=(played.trace.block_tokens or 1) // (trace.block_tokens or 1) if played else 1,
        reuse=content.reuse,
    )
    return Replay(schedule, summary)


@dataclass(frozen=True)
class _Content:
    """The prompts of a replay. A trace without ids has neither blocks nor reuse."""

    prompts: Sequence[tuple[Segment, ...]]
    played: Scaled | None
    reuse: ReplayReuse | None


def _content(
    workload: Workload, round_index: int, source: TraceSource, trace: Trace, capacities_tokens: Mapping[str, int]
) -> _Content:
    """Prompts at the asked scale; before that their reuse is checked at the trace's own block size."""
    label = (workload.name, round_index, "trace")
    blocks = Identities(workload.seed, *label, "blocks")
    own = Identities(workload.seed, *label, "own")
    if not trace.has_identity:
        lengths = enumerate(trace.input_tokens.tolist())
        new = [(Segment(own(index), max(1, round(tokens * source.scale))),) for index, tokens in lengths]
        return _Content(new, None, None)
    unscaled, played = scaled(trace, 1.0), scaled(trace, source.scale)
    prompts = list(contents(unscaled, identity=blocks, own=own, tail="keep"))
    reuse = check_reuse(unscaled.trace, prompts, capacities_tokens)
    if (source.scale, source.tail) != (1.0, "keep"):
        prompts = list(contents(played, identity=blocks, own=own, tail=source.tail))
    return _Content(prompts, played, reuse)


def _refuse_unsupported(workload: Workload) -> None:
    if workload.repeat:
        raise NotSupportedYetError("repeat together with a trace", key=("repeat",))
    if workload.prime != "none":
        raise InputError(
            "prime fills the tiers with the prefixes of pools, and a trace has none",
            key=("prime",),
            do="leave prime out and let the first phase warm the tiers: {name: warm, for: 60s, measured: false}",
        )


def _read(source: TraceSource, bad_lines: int) -> Trace:
    """The trace of the file as it is now; rounds of one run do not read it again."""
    try:
        state = source.path.stat()
    except OSError as error:
        raise InputError(f"this trace cannot be read: {error.strerror}", where=Where(source.path)) from None
    told = (source.path, source.format, source.block_tokens, bad_lines)
    return _read_once(*told, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=1)
def _read_once(
    path: Path, format_: str | None, block_tokens: int | None, bad_lines: int, changed_ns: int, size: int
) -> Trace:
    return read_trace(path, format_=format_, block_tokens=block_tokens, bad_lines=BadLines(bad_lines))


def _played(whole: Trace, source: TraceSource, workload: Workload) -> tuple[Trace, Floats]:
    """The part of the trace that is played, and when its requests come."""
    end_s = lay_out_phases(workload.phases)[-1].end_s
    trace = whole.head(source.limit or len(whole))
    times_s = trace.times_s
    if source.spread == "batch":
        times_s = _spread(times_s, Stream(workload.seed, workload.name, "spread"))
    times_s = times_s / source.speed
    count = int(np.searchsorted(times_s, end_s, side="left"))
    return trace.head(count), times_s[:count]


def _spread(times_s: Floats, stream: Stream) -> Floats:
    """Requests of equal times, spread over the time to the next batch as those of a Poisson process would lie.

    The grid of a batched trace is the usual distance of different times; beyond it nothing is spread.
    """
    different, first, counts = np.unique(times_s, return_index=True, return_counts=True)
    if len(different) < 2:
        return times_s
    gaps = np.diff(different)
    widths = np.minimum(np.append(gaps, np.median(gaps)), np.median(gaps))
    spread = times_s.copy()
    for start, count, width in zip(first.tolist(), counts.tolist(), widths.tolist(), strict=True):
        if count > 1:
            spread[start : start + count] += sorted(stream.uniform() * width for _ in range(count))
    return spread


def _requests(
    workload: Workload, trace: Trace, times_s: Floats, prompts: Sequence[tuple[Segment, ...]]
) -> tuple[PlannedRequest, ...]:
    """In the order of the trace's times."""
    source = workload.arrivals.trace or TraceSource(path=trace.path)
    phases = lay_out_phases(workload.phases)
    class_of = _classes(workload, source, trace)
    turns: list[int] = []
    planned: list[PlannedRequest] = []
    for index, time_s in enumerate(times_s.tolist()):
        previous = int(trace.previous[index])
        think_s = float(trace.think_s[index]) / source.speed * workload.think_scale
        waits = previous >= 0 and source.sessions == "wait" and not math.isnan(think_s)
        turns.append(0 if previous < 0 else turns[previous] + 1)
        phase = phase_at(phases, time_s)
        planned.append(
            PlannedRequest(
                id=index,
                phase=phase.name,
                measured=phase.measured,
                class_=class_of[trace.labels[index]],
                session=int(trace.sessions[index]) if trace.sessions[index] >= 0 else None,
                turn=turns[index],
                intended_s=None if waits else time_s,
                think_s=think_s if waits else 0.0,
                continues=previous if waits else None,
                segments=prompts[index],
                output_tokens=max(1, round(int(trace.output_tokens[index]) * source.scale)),
                prefix=None,
                repeat_of=None,
                carries=not waits,
            )
        )
    return tuple(planned)


def _classes(workload: Workload, source: TraceSource, trace: Trace) -> dict[str | None, str]:
    """The class of every label: the workload's one class, or the class of that name."""
    names = list(workload.classes)
    labels = dict.fromkeys(trace.labels)
    if source.classes == "one":
        if len(names) > 1:
            raise InputError(
                f"the workload has the classes {', '.join(names)}, and the trace says nothing about them",
                key=("classes",),
                do="leave classes out, name one, or write classes: label beside the trace's path",
            )
        return dict.fromkeys(labels, names[0])
    unknown = [str(label) for label in labels if label not in workload.classes]
    if unknown:
        raise InputError(
            f"requests of this trace are called {', '.join(unknown[:8])}, and no class of the workload is",
            where=Where(trace.path),
            do="give the workload a class of each name, or write classes: one beside the trace's path",
        )
    return {label: str(label) for label in labels}
