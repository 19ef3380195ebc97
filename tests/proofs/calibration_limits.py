"""The cells of the calibration table, and what each must hold to be called calibrated. Shares from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.judge.looks import Look
from kvbench.judge.verdict import Outcome
from tests.proofs.calibration_cells import (
    BENEFIT,
    EFFECTS,
    LAST,
    Floats,
    IntervalOf,
    Judge,
    Share,
    Values,
    covered,
    share,
)

__all__ = [
    "JUDGED_UP_TO",
    "MECHANISM",
    "WHY_SAVINGS",
    "Cell",
    "Coverage",
    "Covers",
    "Drawn",
    "broken",
    "coverage",
    "make_cell",
    "saving_is_asked_of",
    "unjudged",
]

JUDGED_UP_TO = 0.6
"""Noise over limit (s/L): beyond it 12 rounds are known to be too few, so the cell is printed and not judged."""
SAVES_UP_TO = 0.4
"""Noise over limit up to which stopping early must save half of the engine's time. Where a benefit half as large
again as asked for decides, it lies half a limit from its threshold: there it is the noise over that distance. (At
s/L = 0.4 it lies 1.25 s from it, which the boundaries of twelve looks first reach at the eighth.)"""
LEVEL = 0.025
ERRORS = 2
"""Standard errors that the share of false GOs and false breaches at a margin may lie above its level."""
MECHANISM = "mechanism"
"""What the name of an effect begins with that the engine made itself; a benefit may have been put in besides."""
UNCHANGED, ONE_AT, ALL_AT, BEYOND, TWICE, AT_THRESHOLD, HALF_AGAIN = (effect.name for effect in EFFECTS)


@dataclass(frozen=True)
class Covers:
    """How often intervals hold the truth: those of all rules together, and those of each rule."""

    together: Share
    by_rule: tuple[Share, ...]

    @property
    def worst(self) -> Share:
        return min(self.by_rule, key=lambda one: one.value)

    def __str__(self) -> str:
        return f"{self.together} ({100 * self.worst.value:.1f})"


def covers(hits: Sequence[Sequence[bool]], values: Values) -> Covers:
    """`hits`: of every comparison, whether each rule's interval holds the truth."""
    table = np.array(hits, dtype=np.float64)
    return Covers(share(table.mean(axis=1), values.groups), tuple(share(rule, values.groups) for rule in table.T))


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
    deciding: float
    """The largest standard deviation over what lies between a rule's truth and its limit; infinite at a limit."""
    comparisons: int
    go: Share
    no_go: Share
    inconclusive: Share
    breach: Share
    decision_covers: Covers
    """`decision_ci` at the stop."""
    ci_covers: Covers
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


SAVES_BY: Mapping[str, Callable[[Cell], float]] = {
    UNCHANGED: lambda cell: cell.noise,
    TWICE: lambda cell: cell.noise,
    HALF_AGAIN: lambda cell: cell.deciding,
}
"""Effects of which the saving is asked, and by what a cell counts as quiet. At and near a limit it is right to use
all rounds."""
WHY_SAVINGS = (
    "*: half saved is asked where a verdict is clear and the noise small, so of unchanged arms and of 2 x margin "
    f"where s/L is at most {SAVES_UP_TO:g}, and of a benefit at 1.5 x its threshold where s/distance is: it lies "
    "half a limit from its threshold, and that is what its noise must be small against (at s/L = 0.4 it is 1.25 s "
    "away, which the looks 3 to 12 first reach at the eighth). At or near a limit all rounds may be used."
)


def saving_is_asked_of(cell: Cell) -> bool:
    """Whether stopping early must save half in this cell."""
    measure = SAVES_BY.get(cell.effect)
    return measure is not None and cell.judged and measure(cell) <= SAVES_UP_TO


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

    def held(interval: IntervalOf) -> Covers:
        return covers([covered(interval, end.estimates, truth) for end in ends], values)

    with np.errstate(divide="ignore"):
        deciding = float(np.max(drawn.noise / np.abs(judge.bounds - truth)))
    return Cell(
        load=drawn.load,
        margin=float(np.exp(judge.bounds[0])),
        effect=name,
        truth=tuple(np.exp(truth).tolist()),
        noise=float(np.max(drawn.noise / np.abs(judge.bounds))),
        deciding=deciding,
        comparisons=len(ends),
        go=outcome(Outcome.GO),
        no_go=outcome(Outcome.NO_GO),
        inconclusive=outcome(Outcome.INCONCLUSIVE),
        breach=share([end.breach for end in ends], values.groups),
        decision_covers=held(lambda found: found.decision),
        ci_covers=held(lambda found: found.ci),
        minutes=float(np.median(until)) / 60,
        minutes_full=float(np.median(full)) / 60,
        saving=float(np.median(1 - until / full)),
    )


@dataclass(frozen=True)
class Coverage:
    """How often the plain interval holds the truth after a number of rounds fixed beforehand."""

    load: str
    rounds: int
    covers: Covers


def coverage(load: str, judge: Judge, values: Values) -> Iterator[Coverage]:
    """After 6 rounds and after all. The effect that is put in moves interval and truth alike, so none is."""
    for rounds in (LAST // 2, LAST):
        look, truth = Look(rounds, rounds, rounds), np.zeros(len(judge.bounds))
        hits = [covered(lambda e: e.ci, judge.estimates(logs[:rounds], look), truth) for logs in values.logs]
        yield Coverage(load, rounds, covers(hits, values))


def broken(cells: Sequence[Cell], coverages: Sequence[Coverage]) -> list[str]:
    """A sentence for everything that a judged cell, or the plain interval, does not hold."""
    found = [f"{cell.name}: {what}" for cell in cells if cell.judged for what in _broken(cell)]
    for one in coverages:
        place = f"{one.load} load, {one.rounds} rounds: ci"
        if not 0.93 <= one.covers.together.value <= 0.97:
            found.append(f"{place} covers {one.covers.together} %, not 93 to 97 %")
        for number, rule in enumerate(one.covers.by_rule, 1):
            if not 0.93 - ERRORS * rule.error <= rule.value <= 0.97 + ERRORS * rule.error:
                found.append(f"{place} of rule {number} covers {rule} %, not 93 to 97 %")
    return found


def unjudged(cells: Sequence[Cell]) -> list[str]:
    """A sentence for every load and effect of which nothing was judged at any margin, and where nothing says what
    stopping early saves: calibration that has not looked has not been passed."""
    found = []
    for load, effect in dict.fromkeys((cell.load, cell.effect) for cell in cells):
        noises = [cell.noise for cell in cells if (cell.load, cell.effect) == (load, effect)]
        if min(noises) > JUDGED_UP_TO:
            found.append(f"{load} load, {effect}: not judged at any margin, s/L is {min(noises):.2f} or more")
    for effect in SAVES_BY:
        if not any(saving_is_asked_of(cell) for cell in cells if cell.effect == effect):
            found.append(f"{effect}: what stopping early saves was not judged, no cell is quiet enough")
    return found


def _go_is_wrong(cell: Cell) -> bool:
    """Whether a mechanism's true effect, as measured, asks for another verdict."""
    return max(cell.truth[:-1]) >= cell.margin or cell.truth[-1] >= BENEFIT


def _broken(cell: Cell) -> Iterator[str]:
    mechanism = cell.effect.startswith(MECHANISM)
    if (mechanism and _go_is_wrong(cell)) or cell.effect in (ONE_AT, ALL_AT, AT_THRESHOLD):
        yield from _at_most("false GO", cell.go, LEVEL + ERRORS * cell.go.error)
    if (mechanism and max(cell.truth[:-1]) <= cell.margin) or cell.effect in (ONE_AT, ALL_AT):
        yield from _at_most("false breach", cell.breach, LEVEL + ERRORS * cell.breach.error)
    if cell.effect == UNCHANGED:
        yield from _at_most("breach by an arm against itself", cell.breach, 0.005)
    if cell.effect == BEYOND:
        yield from _at_most("GO", cell.go, 0.001)
    if cell.effect == TWICE:
        yield from _at_least("breach", cell.breach, 0.95)
    if cell.effect == HALF_AGAIN:
        yield from _at_least("GO", cell.go, 0.90)
    if cell.effect in (UNCHANGED, TWICE):
        yield from _at_most("INCONCLUSIVE", cell.inconclusive, 0.10)
    yield from _saves(cell)
    for name, found, least in (("decision_ci", cell.decision_covers, 0.95), ("ci", cell.ci_covers, 0.92)):
        yield from _at_least(f"coverage of {name} at the stop", found.together, least)
        for number, rule in enumerate(found.by_rule, 1):
            yield from _at_least(
                f"coverage of {name} of rule {number} at the stop", rule, least - ERRORS * rule.error
            )


def _saves(cell: Cell) -> Iterator[str]:
    if saving_is_asked_of(cell) and cell.saving < 0.5:
        yield f"stopping early saves {100 * cell.saving:.0f} % of the engine-minutes, must be 50 %"


def _at_most(what: str, seen: Share, most: float) -> Iterator[str]:
    if seen.value > most:
        yield f"{what} {seen} %, may be {100 * most:.2f} %"


def _at_least(what: str, seen: Share, least: float) -> Iterator[str]:
    if seen.value < least:
        yield f"{what} {seen} %, must be {100 * least:.2f} %"
