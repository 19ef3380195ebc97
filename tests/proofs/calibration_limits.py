"""The cells of the calibration table, and what each must hold to be called calibrated. Shares from 0 to 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.judge.looks import Look
from kvbench.judge.verdict import Outcome
from tests.proofs.calibration_cells import EFFECTS, LAST, Floats, IntervalOf, Judge, Share, Values, covered, share

__all__ = ["JUDGED_UP_TO", "MECHANISM", "Cell", "Coverage", "Drawn", "broken", "coverage", "make_cell"]

JUDGED_UP_TO = 0.6
"""Noise over limit (s/L): beyond it 12 rounds are known to be too few, so the cell is printed and not judged."""
SAVES_UP_TO = 0.4
"""Noise over limit up to which stopping early must save half of the engine's time."""
LEVEL = 0.025
ERRORS = 2
"""Standard errors that the share of false GOs and false breaches at a margin may lie above its level."""
MECHANISM = "mechanism"
"""What the name of an effect begins with that the engine made itself, without any benefit."""
UNCHANGED, ONE_AT, ALL_AT, BEYOND, TWICE, AT_THRESHOLD, BENEFIT = (effect.name for effect in EFFECTS)


@dataclass(frozen=True)
class Cell:
    """One load, margin and effect."""

    load: str
    margin: float
    effect: str
    truth: tuple[float, ...]
    """The ratio of each rule's figure, guardrails first."""
    noise: float
    """The largest s/L of its rules: the standard deviation of a log ratio over the log of the limit."""
    comparisons: int
    go: Share
    no_go: Share
    inconclusive: Share
    breach: Share
    decision_covers: Share
    """`decision_ci` at the stop."""
    ci_covers: Share
    """`ci` at the stop."""
    minutes: float
    """Median engine-minutes of both arms until the stop."""
    minutes_full: float
    """The same for all rounds."""
    saving: float
    """Median share of the engine-minutes that stopping early saves."""

    @property
    def judged(self) -> bool:
        return self.noise <= JUDGED_UP_TO

    @property
    def name(self) -> str:
        return f"{self.load} load, margin {self.margin:g}, {self.effect}"


@dataclass(frozen=True)
class Drawn:
    """Comparisons of one load, and what is known of the rounds they are drawn from."""

    load: str
    values: Values
    engine_s: Floats
    """What a round took both arms."""
    noise: Floats
    """Standard deviation of each rule's log ratio over the bank."""


def make_cell(drawn: Drawn, judge: Judge, name: str, truth: Floats, *, put_in: bool) -> Cell:
    """Judge every comparison. `truth`: the true log ratio of each rule; `put_in`: it is not in the rounds yet."""
    values = drawn.values
    ends = [judge.run(logs + truth if put_in else logs) for logs in values.logs]
    seconds = drawn.engine_s[values.places]
    full = seconds.sum(axis=1)
    until = np.array([row[: end.rounds].sum() for row, end in zip(seconds, ends, strict=True)])

    def outcome(wanted: Outcome) -> Share:
        return share([end.outcome is wanted for end in ends], values.groups)

    def covers(interval: IntervalOf) -> Share:
        return share([covered(interval, end.estimates, truth) for end in ends], values.groups)

    return Cell(
        load=drawn.load,
        margin=float(np.exp(judge.bounds[0])),
        effect=name,
        truth=tuple(np.exp(truth).tolist()),
        noise=float(np.max(drawn.noise / np.abs(judge.bounds))),
        comparisons=len(ends),
        go=outcome(Outcome.GO),
        no_go=outcome(Outcome.NO_GO),
        inconclusive=outcome(Outcome.INCONCLUSIVE),
        breach=share([end.breach for end in ends], values.groups),
        decision_covers=covers(lambda found: found.decision),
        ci_covers=covers(lambda found: found.ci),
        minutes=float(np.median(until)) / 60,
        minutes_full=float(np.median(full)) / 60,
        saving=float(np.median(1 - until / full)),
    )


@dataclass(frozen=True)
class Coverage:
    """How often the plain interval holds the truth after a number of rounds fixed beforehand."""

    load: str
    rounds: int
    covers: Share


def coverage(load: str, judge: Judge, values: Values) -> Iterator[Coverage]:
    """After 6 rounds and after all. The effect that is put in moves interval and truth alike, so none is."""
    for rounds in (LAST // 2, LAST):
        look, truth = Look(rounds, rounds, rounds), np.zeros(len(judge.bounds))
        hits = [covered(lambda e: e.ci, judge.estimates(logs[:rounds], look), truth) for logs in values.logs]
        yield Coverage(load, rounds, share(hits, values.groups))


def broken(cells: Sequence[Cell], coverages: Sequence[Coverage]) -> list[str]:
    """A sentence for everything that a judged cell, or the plain interval, does not hold."""
    found = [f"{cell.name}: {what}" for cell in cells if cell.judged for what in _broken(cell)]
    for one in coverages:
        if not 0.93 <= one.covers.value <= 0.97:
            found.append(f"{one.load} load, {one.rounds} rounds: ci covers {one.covers} %, not 93 to 97 %")
    return found


def _broken(cell: Cell) -> Iterator[str]:
    mechanism = cell.effect.startswith(MECHANISM)
    if mechanism or cell.effect in (ONE_AT, ALL_AT, AT_THRESHOLD):
        yield from _at_most("false GO", cell.go, LEVEL + ERRORS * cell.go.error)
    if (mechanism and max(cell.truth[:-1]) <= cell.margin) or cell.effect in (ONE_AT, ALL_AT):
        yield from _at_most("false breach", cell.breach, LEVEL + ERRORS * cell.breach.error)
    if cell.effect == UNCHANGED:
        yield from _at_most("breach by an arm against itself", cell.breach, 0.005)
    if cell.effect == BEYOND:
        yield from _at_most("GO", cell.go, 0.001)
    if cell.effect == TWICE:
        yield from _at_least("breach", cell.breach, 0.95)
    if cell.effect == BENEFIT:
        yield from _at_least("GO", cell.go, 0.90)
    if cell.effect in (UNCHANGED, TWICE):
        yield from _at_most("INCONCLUSIVE", cell.inconclusive, 0.10)
        if cell.noise <= SAVES_UP_TO and cell.saving < 0.5:
            yield f"stopping early saves {100 * cell.saving:.0f} % of the engine-minutes, must be 50 %"
    yield from _at_least("coverage of decision_ci at the stop", cell.decision_covers, 0.95)
    yield from _at_least("coverage of ci at the stop", cell.ci_covers, 0.92)


def _at_most(what: str, seen: Share, most: float) -> Iterator[str]:
    if seen.value > most:
        yield f"{what} {seen} %, may be {100 * most:.2f} %"


def _at_least(what: str, seen: Share, least: float) -> Iterator[str]:
    if seen.value < least:
        yield f"{what} {seen} %, must be {100 * least:.2f} %"
