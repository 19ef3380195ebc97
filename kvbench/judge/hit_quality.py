"""What hits were worth: TTFT by source, the cost of a token from each, and what promotions saved or lost.

A line is fitted to the requests of both arms; what computing a promoted prompt would have taken follows from it.
Failed requests and requests whose sources are not known stay out. Seconds, tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from kvbench.judge import wording
from kvbench.judge.case import Case, JudgedRound
from kvbench.judge.columns import Bools, Floats, Rows, median, rows
from kvbench.judge.movement import lookup_wait, moved_bytes, movement, preemptions, tier_lives, written_bytes
from kvbench.judge.neighbours import neighbours
from kvbench.judge.paired import Levels, estimate
from kvbench.judge.quality import HitQuality, SourceTtft, TierWorth, TokenCost
from kvbench.judge.sources import SOURCES
from kvbench.plan.cost_mix import METHOD, MixFit, Requests, fit_mix

__all__ = ["hit_quality", "losses", "source_rows", "worth_sentence"]

TIERS: tuple[Literal["host"], Literal["disk"]] = ("host", "disk")
FEWEST = 3
"""Requests of one kind below which no median is told."""
FITTED_AT_MOST = 10_000
"""Requests that the line is fitted to: what rounds differ by, which makes the intervals, is then far more than what
more requests would add."""
DRAW_SEED = 20261130
GIB = 2**30


def hit_quality(case: Case) -> HitQuality | None:
    """What the engine counts needs no ledger of the candidate's requests, all else needs one that its counters bear
    out. None: there is neither."""
    candidates = [pair.candidate for pair in case.pairs]
    counted = HitQuality(
        movement=movement(candidates),
        lives=tier_lives(candidates),
        lookup_wait_s=lookup_wait(candidates),
        preemptions=preemptions(candidates),
    )
    if not case.trusts_ledgers or not any(judged.ledger.split.any() for judged in candidates):
        return None if counted == HitQuality() else counted
    requests, total = _of_both_arms(case)
    fit = fit_mix(requests, confidence=case.confidence)
    priced = [_price(judged, fit) for judged in candidates]
    by_request = {
        "method": _method(fit, total),
        "costs": _costs(fit),
        "ttft_by_source": _by_source(case),
        "worth": [] if fit is None else [row for tier in TIERS if (row := _worth(case, fit, priced, tier))],
        "neighbours": neighbours(case, [each.cost_s for each in priced]),
    }
    return counted.model_copy(update=by_request)


def worth_sentence(row: TierWorth) -> str:
    """`promotions from host lost 12 s over 40 requests; ...`."""
    lost = "lost" if row.saved_s < 0 else "saved"
    return (
        f"promotions from {row.tier} {lost} {wording.value(abs(row.saved_s), 's')} over "
        f"{wording.count(row.requests, 'request')}, {wording.share(row.lost_share)} of which waited longer than "
        "computing would have taken by the fitted costs"
    )


def losses(hits: HitQuality | None) -> list[str]:
    """Sentences about the tiers whose promotions lost more than they saved, as far as the interval tells."""
    worth = [] if hits is None else hits.worth
    return [worth_sentence(row) for row in worth if row.saved_ci is not None and row.saved_ci[1] < 0]


def _chosen(judged: JudgedRound) -> Bools:
    return np.asarray(judged.ledger.split & (judged.latencies.per_request("ttft_service") > 0))


def _requests(judged: JudgedRound, chosen: Rows, group: int, *, candidate: bool) -> Requests:
    seconds = judged.latencies.per_request("ttft_service")[chosen]
    return Requests(
        tokens={source: judged.ledger.tokens(source)[chosen] for source in SOURCES},
        seconds=seconds,
        groups=np.full(len(seconds), group, np.int64),
        of_candidate=np.full(len(seconds), candidate),
    )


def _method(fit: MixFit | None, total: int) -> str | None:
    if fit is None or fit.n == total:
        return None if fit is None else METHOD
    return f"{METHOD}; fitted to {fit.n:,} of {total:,} requests, drawn at random"


def _of_both_arms(case: Case) -> tuple[Requests, int]:
    """Requests to fit a line to, and of how many; rounds that share a launch are left out together."""
    sides = [
        (judged, _chosen(judged), group, candidate)
        for group, places in enumerate(case.units.groups)
        for place in places
        for judged, candidate in ((case.pairs[place].baseline, False), (case.pairs[place].candidate, True))
    ]
    total = sum(int(chosen.sum()) for _, chosen, _, _ in sides)
    share = min(1.0, FITTED_AT_MOST / max(total, 1))
    parts = [
        _requests(judged, _drawn(chosen, share), group, candidate=candidate)
        for judged, chosen, group, candidate in sides
    ]
    requests = Requests(
        tokens={source: np.concatenate([part.tokens[source] for part in parts]) for source in SOURCES},
        seconds=np.concatenate([part.seconds for part in parts]),
        groups=np.concatenate([part.groups for part in parts]),
        of_candidate=np.concatenate([part.of_candidate for part in parts]),
    )
    return requests, total


def _drawn(chosen: Bools, share: float) -> Bools:
    """That share of them, the same ones whenever a run is judged."""
    if share >= 1:
        return chosen
    places = np.flatnonzero(chosen)
    kept = np.random.default_rng(DRAW_SEED).choice(places, int(share * len(places)), replace=False)
    drawn = np.zeros(len(chosen), dtype=bool)
    drawn[kept] = True
    return drawn


def _costs(fit: MixFit | None) -> list[TokenCost]:
    found = [] if fit is None else [_cost(fit, source) for source in SOURCES]
    return [cost for cost in found if cost is not None]


def _cost(fit: MixFit, source: str) -> TokenCost | None:
    per_token_s = fit.per_token_s(source)
    if per_token_s is None:
        return None
    behind = source in TIERS
    return TokenCost(
        source=source,
        per_token_s=per_token_s,
        ci=fit.interval(lambda line: line.per_token_s(source)),
        fixed_s=fit.fixed_s(source) if behind else None,
        fixed_ci=fit.interval(lambda line: line.fixed_s(source)) if behind else None,
    )


# -- TTFT by source -------------------------------------------------------------------------------------------


def _by_source(case: Case) -> list[SourceTtft]:
    """Arm × where most of the prompt came from × prompts from a power of two to the next."""
    arms = (
        (case.comparison.baseline.name, [pair.baseline for pair in case.pairs]),
        (case.comparison.candidate.name, [pair.candidate for pair in case.pairs]),
    )
    return [
        row
        for arm, rounds in arms
        for row in source_rows(arm, rounds, lambda each: _interval_of_medians(case, each))
    ]


def source_rows(
    arm: str, rounds: Sequence[JudgedRound], interval: Callable[[Sequence[Floats]], tuple[float, float] | None]
) -> Iterator[SourceTtft]:
    """Of one arm; `interval` makes one of the values of every round."""
    kinds = [_kinds(judged) for judged in rounds]
    for source, low in sorted({kind for each in kinds for kind in each}, key=lambda k: (k[1], SOURCES.index(k[0]))):
        chosen = [each.get((source, low)) for each in kinds]
        service = [_values(judged, "ttft_service", mask) for judged, mask in zip(rounds, chosen, strict=True)]
        ttft = np.concatenate([_values(j, "ttft", mask) for j, mask in zip(rounds, chosen, strict=True)])
        if len(ttft) < FEWEST:
            continue
        yield SourceTtft(
            arm=arm,
            source=source,
            prompt_tokens_from=low,
            prompt_tokens_to=2 * low - 1,
            n=len(ttft),
            ttft_p50_s=median(ttft),
            service_p50_s=median(np.concatenate(service)),
            service_ci=interval(service),
        )


def _kinds(judged: JudgedRound) -> dict[tuple[str, int], Bools]:
    """Which requests are of which kind: main source, and power of two below the prompt's length."""
    split = judged.ledger.split
    tokens = np.stack([judged.ledger.tokens(source)[split] for source in SOURCES])
    power = np.frexp(np.maximum(tokens.sum(axis=0), 1.0))[1] - 1
    kind = np.full(len(split), -1)
    kind[split] = power * len(SOURCES) + np.argmax(tokens, axis=0)
    found: dict[tuple[str, int], Bools] = {}
    for one in np.flatnonzero(np.bincount(kind[split])).tolist():
        length, place = divmod(one, len(SOURCES))
        found[SOURCES[place], 2**length] = np.asarray(kind == one)
    return found


def _values(judged: JudgedRound, metric: str, chosen: Bools | None) -> Floats:
    return np.empty(0) if chosen is None else judged.latencies.per_request(metric)[chosen]


def _interval_of_medians(case: Case, each: Sequence[Floats]) -> tuple[float, float] | None:
    medians = {place: median(values.copy()) for place, values in enumerate(each) if len(values) >= FEWEST}
    units = case.units.only(list(medians))
    levels = Levels(case.alpha, case.alpha)
    return estimate(units.average(medians), units.look, confidence=case.confidence, levels=levels).ci


# -- what hits were worth --------------------------------------------------------------------------------------


class _Priced(NamedTuple):
    """One round of the candidate by the fitted line."""

    cost_s: Floats
    """What each request's TTFT is by the line; zero where nothing is known of it."""
    saved: dict[str, tuple[Floats, Floats]]
    """By tier: (seconds saved, tokens from the tier) of every request that had any from it."""


def _price(judged: JudgedRound, fit: MixFit | None) -> _Priced:
    """Computing would have taken what the line says, plus what requests without promotions took beyond the line. A
    request served by both tiers counts in each by the tokens that it had from there."""
    costs_s, chosen = np.zeros(len(judged.latencies)), rows(_chosen(judged))
    requests = _requests(judged, chosen, 0, candidate=True)
    if fit is None or not len(requests.seconds):
        return _Priced(costs_s, dict.fromkeys(TIERS, (np.empty(0), np.empty(0))))
    costs_s[chosen] = fit.predicted(requests)
    behind = requests.tokens["host"] + requests.tokens["disk"]
    beyond = (requests.seconds - costs_s[chosen])[behind == 0]
    usual_s = float(beyond.mean()) if len(beyond) >= FEWEST else 0.0
    saved_s = fit.computed_instead(requests) + usual_s - requests.seconds
    saved: dict[str, tuple[Floats, Floats]] = {}
    for tier in TIERS:
        served = requests.tokens[tier] > 0
        tokens = requests.tokens[tier][served]
        saved[tier] = saved_s[served] * (tokens / behind[served]), tokens
    return _Priced(costs_s, saved)


def _worth(case: Case, fit: MixFit, priced: Sequence[_Priced], tier: Literal["host", "disk"]) -> TierWorth | None:
    rounds = [each.saved[tier] for each in priced]
    saved = np.concatenate([seconds for seconds, _ in rounds])
    tokens = float(sum(tokens.sum() for _, tokens in rounds))
    if not len(saved):
        return None
    levels = Levels(case.alpha, case.alpha)
    sums = case.units.average([float(seconds.sum()) for seconds, _ in rounds])
    ci = estimate(sums, case.units.look, confidence=case.confidence, levels=levels).ci
    count = len(case.pairs)
    even, total = fit.break_even(tier), float(saved.sum())
    behind = sum(float(t.sum()) for each in priced for _, t in each.saved.values())
    counted = moved_bytes([pair.candidate for pair in case.pairs], tier, tokens / behind)
    return TierWorth(
        tier=tier,
        requests=len(saved),
        tokens=int(tokens),
        saved_s=total,
        saved_ci=None if ci is None else (count * ci[0], count * ci[1]),
        lost_share=float(np.mean(saved < 0)),
        break_even_tokens=even if even is not None and math.isfinite(even) else None,
        break_even_ci=fit.interval(lambda line: line.break_even(tier)),
        pays=_pays(fit, tier),
        saved_s_per_gib_moved=_per_gib(total, counted or _bytes_of(case, tokens)),
        moved_by="counters" if counted else "tokens",
        saved_s_per_gib_kept=_per_gib(total / count, _kept_bytes(case, tier)),
    )


def _pays(fit: MixFit, tier: str) -> Literal["yes", "never", "unknown"]:
    """By the interval: a cost that happens to lie above another one proves nothing."""
    ci = fit.interval(lambda line: line.saved_per_token_s(tier))
    if ci is None or ci[0] <= 0 <= ci[1]:
        return "unknown"
    return "yes" if ci[0] > 0 else "never"


def _per_gib(saved_s: float, amount_bytes: float | None) -> float | None:
    return saved_s / (amount_bytes / GIB) if amount_bytes else None


def _bytes_of(case: Case, tokens: float) -> float | None:
    per_token = case.pairs[0].candidate.recorded.capacities.get("kv_bytes_per_token")
    return None if per_token is None else tokens * per_token


def _kept_bytes(case: Case, tier: str) -> float | None:
    """All through a round: the host's size; of the disk at most what was written to it (see `written_bytes`)."""
    host = case.comparison.candidate.tiers.host
    if tier == "host":
        return float(host.size) if host is not None else None
    return written_bytes([pair.candidate for pair in case.pairs])
