"""Who shares: the tree of prompts, and which of its prefixes save the most. Tokens that an unlimited cache serves.

Prefixes are told by their place (from which token to which, first seen in which request), never by their content.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.plan.references import ratio
from kvbench.plan.runs import Runs
from kvbench.workload.traces.trace import Trace, Whole

__all__ = ["COMMON_SHARE", "never_used_again", "saved_tokens", "sharing"]

COMMON_SHARE = 0.05
"""Of all sessions. A prefix that so many begin with is called a system prompt, a rarer one a document."""
_TOP = 10


def saved_tokens(runs: Runs) -> Whole:
    """Tokens that each reference is served by an unlimited cache, by the engine's rule; R values."""
    return np.where(runs.leading((runs.earlier > 0) & runs.can_hit), runs.tokens, 0)


def sharing(trace: Trace, runs: Runs, saved: Whole) -> dict[str, object]:
    """The tree in figures, what is saved by whom, and the prefixes that save most. `saved`: see `saved_tokens`."""
    per_run, uses = runs.per_run(saved), np.bincount(runs.runs, minlength=runs.count)
    total = int(per_run.sum())
    order = np.argsort(-per_run, kind="stable")
    order = order[per_run[order] > 0]
    cumulative = np.cumsum(per_run[order])
    sessions_known = bool(np.any(trace.sessions >= 0))
    session_of = np.where(trace.sessions >= 0, trace.sessions, len(trace) + np.arange(len(trace)))
    sessions = _sessions_per_run(runs, session_of)
    begins: NDArray[np.bool_] = np.zeros(runs.count, bool)
    begins[runs.runs[runs.offsets[:-1][np.diff(runs.offsets) > 0]]] = True
    session_count = len(np.unique(session_of))
    return {
        "saved_tokens": total,
        "share_of_prompt_tokens": ratio(total, int(trace.input_tokens.sum())),
        "prefixes": runs.count,
        "shared_prefixes": int(np.sum(uses > 1)),
        "first_prefixes": int(begins.sum()),
        "prefixes_for_half_of_saved": _first_reaching(cumulative, total * 0.5),
        "prefixes_for_90_percent_of_saved": _first_reaching(cumulative, total * 0.9),
        "sessions_known": sessions_known,
        "saved_by": _saved_by(trace, runs, saved, sessions, session_count, known=sessions_known),
        "top_prefixes": _top(trace, runs, order[:_TOP], per_run, uses, sessions, total),
    }


def _sessions_per_run(runs: Runs, session_of: Whole) -> Whole:
    """How many sessions use each run; a request without a session is one of its own."""
    sessions = session_of[runs.requests]
    order = np.lexsort((sessions, runs.runs))
    run, session = runs.runs[order], sessions[order]
    first = np.ones(len(run), bool)
    first[1:] = (run[1:] != run[:-1]) | (session[1:] != session[:-1])
    return np.bincount(run[first], minlength=runs.count)


def _first_reaching(cumulative: Whole, amount: float) -> int:
    return int(np.searchsorted(cumulative, amount, side="left")) + 1 if len(cumulative) else 0


def _saved_by(
    trace: Trace, runs: Runs, saved: Whole, sessions: Whole, session_count: int, *, known: bool
) -> dict[str, int | None]:
    """Tokens by who had them before: the same session, many other sessions, or a few."""
    before = runs.last_request
    own = trace.sessions[runs.requests]
    same = (own >= 0) & (before >= 0) & (own == trace.sessions[np.maximum(before, 0)])
    common = sessions[runs.runs] >= max(2.0, COMMON_SHARE * session_count)
    return {
        "same_session": int(saved[same].sum()) if known else None,
        "system_prompts": int(saved[~same & common].sum()),
        "documents": int(saved[~same & ~common].sum()),
    }


def _top(
    trace: Trace, runs: Runs, chosen: Whole, per_run: Whole, uses: Whole, sessions: Whole, total: int
) -> list[dict[str, object]]:
    first = np.full(runs.count, -1, np.int64)
    first[runs.runs[::-1]] = np.arange(len(runs.runs))[::-1]
    found: list[dict[str, object]] = []
    for rank, run in enumerate(chosen.tolist(), start=1):
        reference = int(first[run])
        start = int(runs.positions[reference]) * runs.block_tokens
        request = int(runs.requests[reference])
        found.append(
            {
                "rank": rank,
                "from_token": start,
                "to_token": start + int(runs.sizes[reference]) * runs.block_tokens,
                "requests": int(uses[run]),
                "sessions": int(sessions[run]),
                "saved_tokens": int(per_run[run]),
                "share_of_saved": ratio(int(per_run[run]), total),
                "first_request": request,
                "first_seen_s": float(trace.times_s[request]),
            }
        )
    return found


def never_used_again(runs: Runs) -> dict[str, float | int | None]:
    """Whole blocks that no later request names: what is written for nothing."""
    uses = np.bincount(runs.runs, weights=runs.whole, minlength=runs.count)
    sizes = runs.run_sizes()
    once, ever = int(sizes[uses == 1].sum()), int(sizes[uses >= 1].sum())
    return {"blocks": once, "of_blocks": ever, "share": ratio(once, ever)}
