"""The secondary tier's effect, free of restarts and drift: requests that were sent past it against the others.

Who is held out is drawn at random on the same server at the same time, so the difference of the means is the tier's
doing. Its error is Neyman's (1923), within each class and round: conservative, and made by the draw alone, so it
holds although requests that queue together are not independent.
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

METHOD = "difference of means within class and round, with Neyman's error of a randomised experiment"
FEWEST = 2
"""On either side of a stratum: one value has no spread."""


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
    if not case.workload.tier_holdout or case.comparison.candidate.tiers.disk is None:
        return []
    strata = [stratum for pair in case.pairs for stratum in _strata(pair.candidate)]
    classes = sorted({stratum.class_ for stratum in strata})
    names = ["all", *classes] if len(classes) > 1 else classes
    found = [_effect(name, [s for s in strata if name in ("all", s.class_)], case.confidence) for name in names]
    return [effect for effect in found if effect is not None]


def _strata(judged: JudgedRound) -> Iterator[_Stratum]:
    latencies = judged.latencies
    ttft = latencies.per_request("ttft")
    held = latencies.column("holdout") == 1
    for class_ in latencies.classes:
        chosen = latencies.of_class(class_) & ~np.isnan(ttft) & ~latencies.leaves
        yield _Stratum(class_, ttft[chosen & held], ttft[chosen & ~held])


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
        (share**2 * float(np.var(side, ddof=1)) / len(side), len(side) - 1)
        for share, stratum in zip(shares, usable, strict=True)
        for side in (stratum.held, stratum.kept)
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


def _margin(parts: Sequence[tuple[float, int]], confidence: float) -> float | None:
    """Half of the interval from the parts of the variance with their degrees of freedom, which together have those
    of Welch and Satterthwaite (1946). None: nothing varies."""
    variance = sum(part for part, _ in parts)
    if variance <= 0:
        return None
    freedom = variance**2 / sum(part**2 / free for part, free in parts)
    return float(special.stdtrit(freedom, 0.5 + confidence / 2)) * math.sqrt(variance)
