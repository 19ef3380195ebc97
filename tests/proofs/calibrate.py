"""kvbench's own error rates, measured: `make calibrate`, or `python -m tests.proofs.calibrate`. Two cores, minutes.

Plays a bank of emulated rounds of an arm with itself at three loads (`calibration_bank`; kept under
KVBENCH_HOME/calibration-bank, so a run that was stopped goes on), draws comparisons from it, puts effects into the
candidate and judges them (`calibration_cells`), prints tables in Markdown, and exits with 1 when a judged cell does
not hold what it must (`calibration_limits`), naming it. The same seed prints the same figures; cells that differ in
the margin alone share their draws.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvbench.engine.environment import kvbench_home
from kvbench.judge.looks import Look
from tests.proofs.calibration_bank import ARMS, LOADS, SLOWED_BY, Bank, fill
from tests.proofs.calibration_cells import (
    EFFECTS,
    FIRST,
    HALF_AGAIN,
    LAST,
    Floats,
    Judge,
    Values,
    log_ratios,
    resolved,
    rules,
    values_of,
)
from tests.proofs.calibration_check import differences, judged_in_full, pairs_again
from tests.proofs.calibration_field import FieldTests, field_tests
from tests.proofs.calibration_limits import (
    JUDGED_UP_TO,
    MECHANISM,
    WHY_SAVINGS,
    Cell,
    Coverage,
    Drawn,
    broken,
    coverage,
    make_cell,
    saving_is_asked_of,
    unjudged,
)

MARGINS = (1.10, 1.20, 1.40)
"""Of the guardrails: that of the shipped rules, which only a quiet load may carry, and two for busier ones."""
RULES = ("short TTFT p99", "ITL p99", "long TTFT p50")
COMPARISONS, ROUNDS = 1000, 400
"""What the error rates are asked of: comparisons in each cell, paired rounds of each load."""
POOLED = (1, 6)
"""Rounds whose requests the field's tests pool."""
RESOLVED_AT = (*(Look(n, n, n) for n in (LAST // 2, LAST)), *(Look(n, FIRST, LAST) for n in (LAST // 2, LAST)))
"""Of which plans the margins that they resolve are told: so many rounds and no look before, and two of the looks of
the shipped rules."""
WHY_RESOLVED = (
    "A margin is resolved when nine of ten comparisons of an unchanged arm prove it. By rounds fixed beforehand: "
    f"nobody looks earlier (`min` = `max`, the plain t). After some of {FIRST} to {LAST}: at that look of the "
    "shipped rules, whose earlier looks have taken a part of the level."
)


@dataclass(frozen=True)
class Options:
    """How much of it, and from which seed."""

    comparisons: int
    rounds: int
    seed: int
    directory: Path
    workers: int

    @property
    def whole(self) -> bool:
        return self.comparisons >= COMPARISONS and self.rounds >= ROUNDS


@dataclass(frozen=True)
class Load:
    """Everything measured at one load."""

    drawn: Drawn
    cells: list[Cell]
    coverage: list[Coverage]
    field: list[FieldTests]
    resolved: dict[Look, list[float]]
    checked: list[str]
    """In what the judge itself disagreed with the short way."""


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(load: str, options: Options) -> Load:
    """Bank, comparisons and cells of one load."""
    bank = fill(options.directory, load, options.seed, options.rounds, workers=options.workers, tell=progress)
    logs, seed = log_ratios(bank), [options.seed, list(LOADS).index(load)]
    noise = np.sqrt((logs**2).mean(axis=0))  # swapping the arms makes the mean exactly zero
    plain = Drawn(load, values_of(logs, options.comparisons, [*seed, 0]), _engine_s(bank, "candidate"), noise)
    cells = [cell for margin in MARGINS for cell in _cells(bank, plain, Judge(rules(margin)), options, seed)]
    judge = Judge(rules(MARGINS[0]))
    return Load(
        drawn=plain,
        cells=cells,
        coverage=list(coverage(load, judge, plain.values)),
        field=[field_tests(bank, plain.values, options.seed, rounds) for rounds in POOLED],
        resolved={look: resolved(judge, plain.values, look) for look in RESOLVED_AT},
        checked=_check(load, options, plain.values),
    )


def _engine_s(bank: Bank, arm: str) -> Floats:
    both = zip(bank.rounds["baseline"], bank.rounds[arm], strict=True)
    return np.array([base.engine_s + cand.engine_s for base, cand in both])


def _cells(bank: Bank, plain: Drawn, judge: Judge, options: Options, seed: list[int]) -> Iterator[Cell]:
    """Every effect that is put in, and the one that the engine made: as it is, and with a benefit put in, without
    which no guardrail would stand between it and a GO."""
    logs = log_ratios(bank)
    for number, effect in enumerate(EFFECTS):
        progress(f"{plain.load}, margin {np.exp(judge.bounds[0]):.2f}: {effect.name}")
        drawn = Drawn(
            plain.load, values_of(logs, options.comparisons, [*seed, number]), plain.engine_s, plain.noise
        )
        yield make_cell(drawn, judge, effect.name, effect.logs(judge), put_in=True)
    slowed = log_ratios(bank, "slowed")
    values = values_of(slowed, options.comparisons, [*seed, len(EFFECTS)], swap=False)
    drawn = Drawn(plain.load, values, _engine_s(bank, "slowed"), slowed.std(axis=0, ddof=1))
    name, truth = f"{MECHANISM}: every step {SLOWED_BY:g} x", slowed.mean(axis=0)
    yield make_cell(drawn, judge, name, truth, put_in=False)
    benefit = np.array([0.0, 0.0, HALF_AGAIN * judge.bounds[-1] - truth[-1]])
    better = replace(drawn, values=replace(values, logs=values.logs + benefit))
    yield make_cell(better, judge, f"{name}, benefit at {HALF_AGAIN:g} x threshold", truth + benefit, put_in=False)


def _check(load: str, options: Options, values: Values) -> list[str]:
    """One comparison of this load, with each load another effect, by the whole of the judge."""
    number = list(LOADS).index(load)
    the_rules, effect = rules(MARGINS[-1]), EFFECTS[(0, 4, 6)[number]]
    judge = Judge(the_rules)
    logs = effect.logs(judge)
    pairs = pairs_again(load, options.seed, values.places[number], values.swapped[number], logs)
    verdict, done = judged_in_full(load, options.seed, pairs, the_rules)
    return differences(judge.run(values.logs[number] + logs), verdict, done, the_rules)


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    """In Markdown."""
    for row in (header, tuple("---" for _ in header), *rows):
        print("| " + " | ".join(row) + " |")
    print()


def report(loads: list[Load], options: Options) -> None:
    """Everything measured, shares in per cent with their standard errors."""
    print(
        f"{options.comparisons} comparisons a cell from {options.rounds} paired rounds of arms "
        f"({', '.join(ARMS)}) a load, seed {options.seed}; shares in % ± standard error\n"
    )
    table(
        ("load", "margin", "effect", "true ratios", "s/L", "s/distance", "GO", "NO_GO", "INCONCLUSIVE", "breach",
         "decision_ci covers (worst rule)", "ci covers after early stopping (worst rule)", "engine-minutes",
         "saved"),
        (_cell_row(cell) for load in loads for cell in load.cells),
    )  # fmt: skip
    print(f"s/L: the noise over a limit; s/distance: over what lies between truth and limit.\n{WHY_SAVINGS}\n")
    table(
        ("load", "rounds, fixed", "ci covers", *RULES),
        (
            (one.load, str(one.rounds), str(one.covers.together), *map(str, one.covers.by_rule))
            for load in loads
            for one in load.coverage
        ),
    )
    table(
        ("load", "noise s of " + ", ".join(RULES), *(f"margin resolved {_plan(look)}" for look in RESOLVED_AT)),
        (_resolved_row(load) for load in loads),
    )
    print(WHY_RESOLVED + "\n")
    print("An arm with itself, called different at 5 % by tests over requests (TTFT of short requests):\n")
    table(
        ("load", "rounds", "Mann-Whitney", "bootstrap of p99"),
        ((o.load, str(o.rounds), str(o.mann_whitney), str(o.bootstrap)) for load in loads for o in load.field),
    )


def _cell_row(cell: Cell) -> tuple[str, ...]:
    noise = f"{cell.noise:.2f}" + ("" if cell.judged else f" (above {JUDGED_UP_TO:g}: not judged)")
    shares = (cell.go, cell.no_go, cell.inconclusive, cell.breach, cell.decision_covers, cell.ci_covers)
    return (
        cell.load,
        f"{cell.margin:.2f}",
        cell.effect,
        ", ".join(f"{ratio:.3f}" for ratio in cell.truth),
        noise,
        f"{cell.deciding:.2f}",
        *map(str, shares),
        f"{cell.minutes:.1f} of {cell.minutes_full:.1f}",
        f"{100 * cell.saving:.0f} %{' *' if saving_is_asked_of(cell) else ''}",
    )


def _plan(look: Look) -> str:
    """`after 6 of 3 to 12 rounds`."""
    if look.first == look.last:
        return f"by {look.last} rounds fixed beforehand"
    return f"after {look.done} of {look.first} to {look.last} rounds"


def _resolved_row(load: Load) -> tuple[str, ...]:
    noise = ", ".join(f"{one:.3f}" for one in load.drawn.noise)
    ratios = (", ".join(f"{one:.2f}" for one in load.resolved[look]) for look in RESOLVED_AT)
    return load.drawn.load, noise, *ratios


def parse() -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, help="in each cell (1000)")
    parser.add_argument("--rounds-in-bank", type=int, help="paired rounds a load, at least 24 (400)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bank", type=Path, help="where rounds are kept (KVBENCH_HOME/calibration-bank)")
    parser.add_argument("--quick", action="store_true", help="40 rounds and 100 comparisons: to see that it runs")
    given = parser.parse_args()
    comparisons, rounds = (100, 40) if given.quick else (COMPARISONS, ROUNDS)
    options = Options(
        comparisons=comparisons if given.comparisons is None else given.comparisons,
        rounds=rounds if given.rounds_in_bank is None else given.rounds_in_bank,
        seed=given.seed,
        directory=given.bank or kvbench_home() / "calibration-bank",
        workers=min(2, os.cpu_count() or 1),
    )
    if options.rounds < 2 * LAST or options.comparisons < 10 or options.seed < 0:
        parser.error(
            f"needs --rounds-in-bank of at least {2 * LAST}, --comparisons of at least 10, a seed from 0 on"
        )
    return options


def main() -> None:
    """Measure, print, and exit with 1 when something does not hold, or was not judged at all."""
    began, options = time.monotonic(), parse()
    loads = [measure(load, options) for load in LOADS]
    report(loads, options)
    faults = broken(
        [cell for load in loads for cell in load.cells], [one for load in loads for one in load.coverage]
    )
    faults += [
        f"{load.drawn.load} load, against the whole judge: {what}" for load in loads for what in load.checked
    ]
    cells = [cell for load in loads for cell in load.cells]
    faults += unjudged(cells)
    if not options.whole:
        print(f"Fewer than {COMPARISONS} comparisons or {ROUNDS} rounds: shows that it runs, calibrates nothing.")
    print(
        f"{sum(cell.judged for cell in cells)} of {len(cells)} cells judged; the short way to a verdict was checked"
    )
    print(f"against the whole judge in {len(loads)} comparisons; {time.monotonic() - began:.0f} s")
    for fault in faults:
        print(f"DOES NOT HOLD: {fault}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
