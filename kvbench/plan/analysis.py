"""Everything that a trace tells, as one document. The first keys are those of the reference numbers of traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvbench.plan.admission import admission
from kvbench.plan.advice import advise, unknown_advice
from kvbench.plan.bursts import burstiness
from kvbench.plan.depths import depths_of
from kvbench.plan.geometry import geometry_of
from kvbench.plan.hierarchy import INCLUSIONS, Inclusion, hierarchy, usual_hierarchies
from kvbench.plan.ideal import basic, ideal, reuse_time_s
from kvbench.plan.known_models import KNOWN_MODELS
from kvbench.plan.lru import (
    TTLS_S,
    arrival_depth,
    flat_stack_distance,
    hit_curve,
    lru_request_stream,
    ttl,
    usual_capacities,
)
from kvbench.plan.references import Tail
from kvbench.plan.runs import Runs, runs_of
from kvbench.plan.setting import Setting, make_setting
from kvbench.plan.sharing import never_used_again, saved_tokens, sharing
from kvbench.plan.sizing import HitCurve, bytes_of_models, needed
from kvbench.workload.traces.block_size import AGREEING, agreeing_share
from kvbench.workload.traces.trace import Trace

__all__ = ["PLAYED_RUNS", "Policy", "Question", "analyse"]

PLAYED_RUNS = 60_000
"""Tiers of which one sees what the other missed have to be played: some microseconds for each run and tier."""
Policy = Literal["lru", "arc"]


@dataclass(frozen=True)
class Question:
    """What is to be looked at; None: the usual choices for the trace. Sizes in blocks, times in seconds."""

    tail: Tail = "keep"
    """For `ttl` and `hierarchy`; the others show what they show under every rule, or under `keep`."""
    capacities: tuple[int, ...] | None = None
    hierarchies: tuple[tuple[int, ...], ...] | None = None
    """Each the capacities of tiers, fastest first."""
    inclusions: tuple[Inclusion, ...] | None = None
    """None: all, but of a trace with more than `PLAYED_RUNS` those that need no playing."""
    policy: Policy = "lru"
    """Of the host tier in `hierarchy`; the others are LRUs, as in vLLM."""
    host_place: int = 1
    """Which tier of the hierarchies is the host, counted from 0."""
    ttls_s: Sequence[float] = TTLS_S
    setting: Setting | None = None
    """Model, sizes and paths that advice and bytes are about; None: the stated assumptions."""


def analyse(trace: Trace, question: Question | None = None) -> dict[str, object]:
    """The document. Of a trace that does not say which blocks are equal, what can be said."""
    question = question or Question()
    if not trace.has_identity:
        return _without_identity(trace)
    runs = runs_of(trace)
    keep, vllm = runs.under("keep"), runs.under("vllm")
    keep_depths, vllm_depths = depths_of(keep), depths_of(vllm)
    total_tokens = int(trace.input_tokens.sum())
    counts = basic(trace, runs)
    unique = int(counts["unique_blocks"] or 0)
    capacities = question.capacities or usual_capacities(unique)
    arc = question.host_place if question.policy == "arc" else None
    tailed = {"keep": keep, "vllm": vllm}.get(question.tail) or runs.under(question.tail)
    tailed_depths = keep_depths if question.tail == "keep" else vllm_depths
    return {
        "file": trace.path.name,
        "format": trace.format,
        "block_size": trace.block_tokens,
        "basic": counts,
        "ideal": ideal(trace, keep, vllm),
        "reuse_time_s": reuse_time_s(trace, keep),
        "flat_stack_distance": flat_stack_distance(keep, keep_depths, capacities),
        "arrival_depth": arrival_depth(keep, keep_depths),
        "lru_request_stream": lru_request_stream(trace, keep, keep_depths, vllm, vllm_depths, capacities),
        "ttl": ttl(trace, tailed, question.ttls_s),
        "hierarchy": [
            hierarchy(tailed, tailed_depths, sizes, mode, total_tokens, arc=arc).document(question.tail)
            for sizes in _tiers(question, unique)
            for mode in _modes(question, keep)
        ],
        **_own(trace, question, runs, hit_curve(vllm, vllm_depths, total_tokens)),
    }


def _tiers(question: Question, unique_blocks: int) -> Sequence[tuple[int, ...]]:
    return usual_hierarchies(unique_blocks) if question.hierarchies is None else question.hierarchies


def _modes(question: Question, runs: Runs) -> Sequence[Inclusion]:
    """Those that were asked for; of a large trace without being asked only those that need no playing."""
    if question.inclusions is not None:
        return question.inclusions
    left_out = [] if len(runs.runs) <= PLAYED_RUNS else ["inclusive_filtered"]
    if question.policy == "arc":
        left_out.append("exclusive")  # its host takes in what the device evicts, and vLLM's ARC what is used
    return tuple(mode for mode in INCLUSIONS if mode not in left_out)


def _own(trace: Trace, question: Question, runs: Runs, curve: HitCurve) -> dict[str, object]:
    """Keys beyond the reference numbers; hits are leading whole blocks, the last token is computed."""
    setting = question.setting or make_setting()
    block_tokens = trace.block_tokens or 1
    total_tokens = int(trace.input_tokens.sum())
    never = never_used_again(runs)
    sizes = needed(curve)
    known = [geometry_of(config, name=name) for name, config in KNOWN_MODELS.items()]
    others = [geometry for geometry in known if geometry.name != setting.geometry.name]
    return {
        "never_used_again": never,
        "sharing": sharing(trace, runs, saved_tokens(runs)),
        "burstiness": burstiness(trace),
        "admission": admission(runs, total_tokens),
        "needed": sizes,
        "bytes_by_model": bytes_of_models(
            [setting.geometry, *others],
            block_tokens=block_tokens,
            unique_blocks=int(never["of_blocks"] or 0),
            sizes=sizes,
            duration_s=trace.duration_s,
        ),
        "lru_curve": _curve_in_bytes(curve, setting, block_tokens),
        "advice": advise(curve, setting, block_tokens).document(setting),
        "unknown": list(_unknown(trace, question, runs)),
    }


def _unknown(trace: Trace, question: Question, runs: Runs) -> Iterator[str]:
    size = trace.block_tokens or 1
    agreeing = agreeing_share(size, trace.input_tokens, np.diff(trace.offsets))
    if agreeing < AGREEING:
        yield (
            f"how many tokens an id stands for: at {size}, only {agreeing:.0%} of the requests name as many ids as "
            "their prompts have blocks (--block-tokens), and the rest of this answer is as wrong as that"
        )
    if not np.any(trace.sessions >= 0):
        yield "which requests belong to one session"
    if "inclusive_filtered" not in _modes(question, runs) and question.inclusions is None:
        yield (
            f"tiers of kind inclusive_filtered, which have to be played and take long beyond {PLAYED_RUNS:,} "
            "references to prefixes (--inclusion inclusive_filtered asks for them)"
        )


def _curve_in_bytes(curve: HitCurve, setting: Setting, block_tokens: int) -> dict[str, object]:
    """The whole curve in bytes of the setting's model, at capacities that are spread evenly on a log scale."""
    largest = curve.blocks_for(1.0) or 1
    sizes = np.unique(np.rint(np.geomspace(1, largest, 60)).astype(np.int64))
    return {
        "model": setting.geometry.name,
        "points": [
            {
                "capacity_bytes": int(size) * setting.geometry.block_bytes(block_tokens),
                "token_hit_rate": curve.share(int(size)),
            }
            for size in sizes
        ],
    }


def _without_identity(trace: Trace) -> dict[str, object]:
    """Arrivals and lengths, and what cannot be known."""
    nothing = dict.fromkeys(
        ("ideal", "reuse_time_s", "flat_stack_distance", "arrival_depth", "lru_request_stream", "ttl", "hierarchy")
    )
    return {
        "file": trace.path.name,
        "format": trace.format,
        "block_size": None,
        "basic": {
            "requests": len(trace),
            "input_tokens": int(trace.input_tokens.sum()),
            "output_tokens": int(trace.output_tokens.sum()),
            "duration_s": trace.duration_s,
        },
        **nothing,
        "burstiness": burstiness(trace),
        "advice": unknown_advice().document(None),
        "unknown": [
            "which blocks are equal, and so reuse, hits, tiers and who shares",
            "which requests belong to one session",
        ],
    }
