"""Whether calibration's short way to a verdict is the judge's own: the same rounds played again with whole tables.

The effect is put into the tables (first tokens later by a factor of the TTFT, gaps longer by theirs), and the whole
of `kvbench.judge.judge.judge` runs after every round, as it does in a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.engine.emulated.simulated import SimulatedRound
from kvbench.judge.evidence import ArmRound, Comparison, RoundPair
from kvbench.judge.judge import decided, judge
from kvbench.judge.verdict import CandidateVerdict
from kvbench.spec.rules import Rules
from tests.proofs.calibration_bank import play, profile, workload
from tests.proofs.calibration_cells import Compared

__all__ = ["differences", "judged_in_full", "pairs_again", "scaled"]

CLOSE = 1e-4
"""On log scale: the bank keeps 24 bits of a latency, and a gap is the difference of two times."""


def scaled(recorded: ArmRound, ttft: Mapping[str, float], gaps: float) -> ArmRound:
    """The same round with every TTFT (by class) and every gap between tokens times a factor."""
    requests, tokens = recorded.requests.copy(), recorded.tokens.copy()
    first = requests["first_token_s"]
    later = requests["intended_s"] + (first - requests["intended_s"]) * requests["class"].map(ttft)
    last = later + (requests["last_token_s"] - first) * gaps
    before, after = (pd.Series(times.to_numpy(), index=requests["id"]) for times in (first, later))
    old, new = tokens["id"].map(before), tokens["id"].map(after)
    tokens["t_s"] = new + (tokens["t_s"] - old) * gaps
    requests["ended_s"] = requests["ended_s"] + (last - requests["last_token_s"])
    requests["first_token_s"], requests["last_token_s"] = later, last
    facts = {name: getattr(recorded, name) for name in ArmRound.__dataclass_fields__}
    return ArmRound(**facts | {"requests": requests, "tokens": tokens})


def pairs_again(
    load: str,
    seed: int,
    places: npt.NDArray[np.int64],
    swapped: npt.NDArray[np.bool_],
    effect: npt.NDArray[np.float64],
) -> list[RoundPair]:
    """The rounds at these places of the bank, played again, with the effect in the candidate."""
    short, gaps, long = (math.exp(log) for log in effect)
    pairs = []
    for number, (place, swap) in enumerate(zip(places.tolist(), swapped.tolist(), strict=True), 1):
        played: list[SimulatedRound] = [play(load, seed, place + 1, arm) for arm in ("baseline", "candidate")]
        base, cand = played[::-1] if swap else played
        changed = scaled(cand.arm_round("candidate", number), {"short": short, "long": long}, gaps)
        pairs.append(RoundPair(number, base.arm_round("baseline", number), changed))
    return pairs


def judged_in_full(load: str, seed: int, pairs: list[RoundPair], the_rules: Rules) -> tuple[CandidateVerdict, int]:
    """The verdict where a run would have stopped, and after how many rounds that is."""
    for done in range(the_rules.rounds.min, len(pairs) + 1):
        comparison = Comparison(
            baseline=profile("baseline"),
            candidate=profile("candidate"),
            workload=workload(load, seed),
            rules=the_rules,
            pairs=tuple(pairs[:done]),
            rounds_planned=the_rules.rounds.max,
        )
        verdict = judge(comparison)
        if decided(verdict, the_rules):
            break
    return verdict, done


def differences(short_way: Compared, verdict: CandidateVerdict, done: int, the_rules: Rules) -> list[str]:
    """In words, everything in which the two ways disagree; empty when they agree."""
    found = []
    if verdict.verdict is not short_way.outcome:
        found.append(f"verdict {verdict.verdict} {verdict.reasons[:1]}, the short way says {short_way.outcome}")
    if done != short_way.rounds:
        found.append(f"stopped after {done} rounds, the short way after {short_way.rounds}")
    results = {result.rule: result for result in verdict.rules}
    asked = [rule.id for rule in (*the_rules.guardrails, *the_rules.benefits)]
    for name, estimate in zip(asked, short_way.estimates, strict=True):
        for what, theirs, ours in (
            ("ci", results[name].ci, estimate.ci),
            ("decision_ci", results[name].decision_ci, estimate.decision),
        ):
            same = theirs is not None and ours is not None and np.allclose(np.log(theirs), ours, rtol=0, atol=CLOSE)
            if not same and (theirs is not None or ours is not None):
                found.append(f"{what} of {name} is {theirs}, by the short way the logarithms are {ours}")
    return found
