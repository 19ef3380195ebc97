"""Whether hits are worth it: TTFT of requests that the tier served, against the same requests computed.

Both arms send the same requests, so each is its own control: cached in the candidate, computed in the baseline.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kvbench.judge import wording
from kvbench.judge.case import Case, JudgedPair, JudgedRound, Ruling
from kvbench.judge.columns import Bools, Floats, Rows, common, median
from kvbench.judge.evaluation import from_logs, status_of
from kvbench.judge.latency import carries
from kvbench.judge.looks import nominal_level
from kvbench.judge.main_source import MOSTLY
from kvbench.judge.needed import units_needed
from kvbench.judge.paired import Estimate, Levels, estimate
from kvbench.judge.verdict import RuleResult, Status

__all__ = ["HITS_WORTH_IT", "judge_hits"]

HITS_WORTH_IT = "hits-worth-it"
DECIDED: dict[Status, str] = {
    "pass": "hits are faster than recomputing",
    "fail": "hits are slower than recomputing",
    "unknown": "neither faster nor slower than recomputing yet",
}


def judge_hits(case: Case, refuted: float) -> Ruling:
    """Hits of all new tiers together; of several, also those of the newest alone where they are proven slower: the
    tiers before it may hide that. Which tier served a request only a ledger tells that the counters bear out.

    `refuted`: the one-sided level of each of the two tests at which hits are slower.
    """
    served = [_served(pair) for pair in case.pairs]
    together = _judged(case, served, None, refuted)
    newest = case.newest_tier if len(case.added_tiers) > 1 else None
    alone = None
    if newest is not None and together is not None and case.trusts_ledgers:
        alone = _judged(case, served, newest, refuted)
    if alone is not None and alone.result.status == "fail":
        return alone
    return together if together is not None else _unknown(case)


def _judged(case: Case, served: list[_Served], tier: str | None, refuted: float) -> Ruling | None:
    """The median log ratio of a round is its figure; rounds with too few such requests say nothing. None: all have
    too few.

    `tier`: only requests that had as much of their prompt from this one, as far as the ledger knows.
    """
    each = [requests.ratio(tier) for requests in served]
    ratios = {place: ratio for place, ratio in enumerate(each) if ratio is not None}
    if not ratios:
        return None
    units = case.units.only(list(ratios))
    found = estimate(
        units.average(ratios),
        units.look,
        confidence=case.confidence,
        levels=Levels(refuted, case.alpha),
    )
    status = status_of(found.decision, 0.0, upper=True)
    result = RuleResult(
        rule=HITS_WORTH_IT,
        kind="evidence",
        status=status,
        metric="ttft_service",
        quantile=0.5,
        unit="ratio",
        effect=math.exp(found.mean),
        ci=from_logs(found.ci),
        decision_ci=from_logs(found.decision),
        limit=1.0,
        windows=[
            {"round": float(case.pairs[place].candidate.index), "ratio": math.exp(r)} for place, r in ratios.items()
        ],
        text=_text(found, status, tier),
    )
    if status != "unknown":
        return Ruling(result)
    level = nominal_level(refuted if found.mean > 0 else case.alpha, units.look.at_end)
    if not level:
        return Ruling(result)
    needed = units_needed(found.mean, found.spread, found.units, alpha=level, confidence=case.confidence)
    return Ruling(result, needed)


class _Served(NamedTuple):
    """Requests of a pair that were cached in the candidate and computed in the baseline. None that failed or was to
    be left by its user: of those the slow ones have no TTFT."""

    candidate: JudgedRound
    chosen: Rows
    logs: Floats
    """log(TTFT with the hit / TTFT computed)"""

    def ratio(self, tier: str | None) -> float | None:
        """Median of the log ratios; None when they are too few to carry it."""
        logs = self.logs.copy() if tier is None else self.logs[self._mostly_from(tier)]
        return median(logs) if carries(len(logs), 0.5) else None

    def _mostly_from(self, tier: str) -> Bools:
        prompt = self.candidate.latencies.column("prompt_tokens_planned")
        return np.asarray((self.candidate.ledger.tokens(tier) >= MOSTLY * prompt)[self.chosen])


def _served(pair: JudgedPair) -> _Served:
    baseline, candidate = pair.baseline.latencies, pair.candidate.latencies
    left, right = common(baseline.ids, candidate.ids)
    prompt = candidate.column("prompt_tokens_planned")[right]
    extra = candidate.column("cached_tokens")[right] - baseline.column("cached_tokens")[left]
    hit = candidate.per_request("ttft_service")[right]
    computed = baseline.per_request("ttft_service")[left]
    chosen = (extra >= MOSTLY * prompt) & (extra > 0) & (hit > 0) & (computed > 0)
    chosen &= ~(candidate.failed | candidate.leaves)[right] & ~(baseline.failed | baseline.leaves)[left]
    return _Served(pair.candidate, np.arange(len(candidate))[right][chosen], np.log(hit[chosen] / computed[chosen]))


def _unknown(case: Case) -> Ruling:
    told = any(
        not np.isnan(side.latencies.column("cached_tokens")).all()
        for pair in case.pairs
        for side in (pair.baseline, pair.candidate)
    )
    why = "no round has enough requests that were cached in the candidate and computed in the baseline"
    if not told:
        why = "the engine does not tell the cached tokens of a request"
    return Ruling(
        RuleResult(
            rule=HITS_WORTH_IT,
            kind="evidence",
            status="unknown",
            metric="ttft_service",
            quantile=0.5,
            unit="ratio",
            limit=1.0,
            text=f"whether hits beat recomputing is unknown: {why}",
        )
    )


def _text(found: Estimate, status: Status, tier: str | None) -> str:
    decision = from_logs(found.decision)
    between = f" [{wording.ratio(decision[0])}, {wording.ratio(decision[1])}]" if decision else ""
    return (
        f"TTFT of requests that {tier or 'the tier'} served, against the same requests computed: ratio "
        f"{wording.ratio(math.exp(found.mean))}{between}: {DECIDED[status]}"
    )
