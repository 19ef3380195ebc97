"""Everything that a trace's block identity tells, as one document, in the keys of the reference numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.errors import InputError, Where
from kvbench.plan.hierarchy import INCLUSIONS, Inclusion, hierarchy, usual_hierarchies
from kvbench.plan.ideal import basic, ideal, reuse_time_s
from kvbench.plan.lru import TTLS_S, arrival_depth, flat_stack_distance, lru_request_stream, ttl, usual_capacities
from kvbench.plan.references import Tail, references
from kvbench.plan.stack import arrival_depths
from kvbench.workload.traces.trace import Trace

__all__ = ["Question", "analyse"]


@dataclass(frozen=True)
class Question:
    """What is to be looked at; None: the usual choices for the trace. Sizes in blocks, times in seconds."""

    tail: Tail = "keep"
    """For `ttl` and `hierarchy`; the others show what they show under every rule, or under `keep`."""
    capacities: tuple[int, ...] | None = None
    hierarchies: tuple[tuple[int, ...], ...] | None = None
    """Each the capacities of tiers, fastest first."""
    inclusions: tuple[Inclusion, ...] = INCLUSIONS
    ttls_s: Sequence[float] = TTLS_S


def analyse(trace: Trace, question: Question | None = None) -> dict[str, object]:
    """The document. InputError when the trace says nothing about equal blocks."""
    question = question or Question()
    if not trace.has_identity:
        raise InputError(
            "this trace has arrivals and lengths only: it does not say which blocks are equal",
            where=Where(trace.path),
            do="analyse a trace with hash_ids, or replay this one as it is",
        )
    keep = references(trace, "keep")
    tailed = keep if question.tail == "keep" else references(trace, question.tail)
    counts = basic(trace, keep)
    depths = arrival_depths(keep)
    unique = int(counts["unique_blocks"] or 0)
    capacities = question.capacities or usual_capacities(unique)
    tiers = question.hierarchies if question.hierarchies is not None else usual_hierarchies(unique)
    return {
        "file": trace.path.name,
        "format": trace.format,
        "block_size": trace.block_tokens,
        "basic": counts,
        "ideal": ideal(trace),
        "reuse_time_s": reuse_time_s(keep),
        "flat_stack_distance": flat_stack_distance(keep, capacities),
        "arrival_depth": arrival_depth(depths),
        "lru_request_stream": lru_request_stream(trace, capacities, depths),
        "ttl": ttl(tailed, question.ttls_s),
        "hierarchy": [
            hierarchy(tailed, sizes, mode).document(question.tail)
            for sizes in tiers
            for mode in question.inclusions
        ],
    }
