"""The secondary tier's effect, free of restarts and drift: requests that were sent past it against the others.

Who is held out is drawn at random on the same server at the same time, so the difference of the means is the tier's
doing, provided that the server heeds the wish. Its error is Neyman's (1923), within each class and round:
conservative, and made by the draw alone, so it holds although requests that queue together are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from kvbench.judge.case import Case, JudgedRound
from kvbench.judge.columns import Floats
from kvbench.judge.quality import Holdout

__all__ = ["METHOD", "held_out"]

METHOD = (
    "difference of means within class and round, with Neyman's error of a randomised experiment; of a few held out "
    "the spread is taken to be no less than that of the others, in proportion to the means"
)
FEWEST = 2
"""On either side of a stratum: one value has no spread."""
BORROWED = 30
"""Degrees of freedom; they weigh less the more requests are held out."""
ALL_THE_SAME = 0.5
"""Requests that the tier serves more than so much as often as the others were not held out. A few may seem to be
served: one that waits beside another with the same prefix finds in the host what that one had fetched."""


class _Stratum(NamedTuple):
    """One class in one round."""

    class_: str
    held: Floats
    kept: Floats

    @property
    def size(self) -> int:
        return len(self.held) + len(self.kept)


def held_out(case: Case) -> list[Holdout]:
    """All requests together, then each class where there are several; nothing where none was held out."""
    if not case.workload.tier_holdout or not case.comparison.candidate.tiers.behind_host:
        return []
    strata = [stratum for pair in case.pairs for stratum in _strata(pair.candidate)]
    classes = sorted({stratum.class_ for stratum in strata})
    names = ["all", *classes] if len(classes) > 1 else classes
    found = [_effect(name, [s for s in strata if name in ("all", s.class_)], case.confidence) for name in names]
    heeded = _heeded(case)
    return [effect.model_copy(update={"heeded": heeded}) for effect in found if effect is not None]


def _heeded(case: Case) -> bool | None:
    """Whether what was asked for was done: then fewer tokens were found cached, or by the ledger fewer requests
    served by the tier. None: not known, as where it served nobody, or so few that chance explains either."""
    rounds = [pair.candidate for pair in case.pairs]
    strata = [stratum for judged in rounds for stratum in _strata(judged, judged.latencies.column("cached_tokens"))]
    fewer = _effect("all", strata, case.confidence)
    if fewer is not None and fewer.ci is not None and fewer.ci[0] > 0:
        return True
    if not case.trusts_ledgers:
        return None
    split = np.concatenate([judged.ledger.split for judged in rounds])
    served = np.concatenate([judged.ledger.tokens("disk") for judged in rounds]) > 0
    held = np.concatenate([judged.latencies.column("holdout") for judged in rounds]) == 1
    if not (served & split & ~held).any():
        return None
    usual = float(served[split & ~held].mean())
    asked, anyway = int((split & held).sum()), int((served & split & held).sum())
    if special.bdtr(anyway, asked, usual) <= 1 - case.confidence:
        return True
    return False if special.bdtrc(anyway - 1, asked, ALL_THE_SAME * usual) <= 1 - case.confidence else None


def _strata(judged: JudgedRound, values: Floats | None = None) -> Iterator[_Stratum]:
    """Of TTFT, or of other values of each request."""
    latencies = judged.latencies
    told = latencies.per_request("ttft") if values is None else values
    held = latencies.column("holdout") == 1
    for class_ in latencies.classes:
        chosen = latencies.of_class(class_) & ~np.isnan(told) & ~latencies.leaves
        yield _Stratum(class_, told[chosen & held], told[chosen & ~held])


def _effect(class_: str, strata: Sequence[_Stratum], confidence: float) -> Holdout | None:
    """Strata weigh as many requests as they have; those with too few on a side say nothing."""
    usable = [stratum for stratum in strata if min(len(stratum.held), len(stratum.kept)) >= FEWEST]
    total = sum(stratum.size for stratum in usable)
    if not total:
        return None
    shares = [stratum.size / total for stratum in usable]
    held, kept = (
        sum(share * float(np.mean(getattr(stratum, side))) for share, stratum in zip(shares, usable, strict=True))
        for side in ("held", "kept")
    )
    parts = [
        (share**2 * variance / count, free)
        for share, stratum in zip(shares, usable, strict=True)
        for variance, count, free in (
            (float(np.var(stratum.kept, ddof=1)), len(stratum.kept), float(len(stratum.kept) - 1)),
            _spread(stratum.held, stratum.kept),
        )
    ]
    margin = _margin(parts, confidence)
    return Holdout(
        class_=class_,
        held=sum(len(stratum.held) for stratum in usable),
        kept=sum(len(stratum.kept) for stratum in usable),
        ttft_held_s=held,
        ttft_kept_s=kept,
        difference_s=kept - held,
        ci=None if margin is None else (kept - held - margin, kept - held + margin),
        method=METHOD,
    )


def _spread(held: Floats, kept: Floats) -> tuple[float, int, float]:
    """Variance of the few held out, their number, and the variance's degrees of freedom.

    A few values of a skewed latency seldom hold any of the large ones, and then seem to vary little: with three to
    thirty held out of a stratum, intervals of 95 % covered 87 to 95 %. So degrees of freedom are borrowed from the
    others where those vary more in proportion to their mean; then it was 92 to 97 % (lognormal TTFT, standard
    deviations of its logarithm of 0.5 and 1, effects from 0.2 to 2, 1,500 draws each).
    """
    own, free = float(np.var(held, ddof=1)), len(held) - 1
    usual = float(np.mean(kept))
    like_others = float(np.var(kept, ddof=1)) * (float(np.mean(held)) / usual) ** 2 if usual else 0.0
    if like_others <= own:
        return own, len(held), float(free)
    borrowed = min(BORROWED, len(kept) - 1)
    return (free * own + borrowed * like_others) / (free + borrowed), len(held), float(free + borrowed)


def _margin(parts: Sequence[tuple[float, float]], confidence: float) -> float | None:
    """Half of the interval from the parts of the variance with their degrees of freedom, which together have those
    of Welch and Satterthwaite (1946). None: nothing varies."""
    variance = sum(part for part, _ in parts)
    if variance <= 0:
        return None
    freedom = variance**2 / sum(part**2 / free for part, free in parts)
    return float(special.stdtrit(freedom, 0.5 + confidence / 2)) * math.sqrt(variance)
