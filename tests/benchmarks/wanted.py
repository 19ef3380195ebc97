"""What is asked for, held against what was measured: a line for each figure that says `holds` or `MISSES`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

ASKED_RUNS = 5
"""Figures are medians of at least as many runs."""


class Wanted:
    """Prints every line as it is asked; `exit_code` is 1 once one was missed."""

    def __init__(self, *, runs: int | None = None, say: Callable[[str], None] = print) -> None:
        """`runs`: how many the figures are medians of; None: they are no medians."""
        self.missed: list[str] = []
        self._say = say
        if runs is not None and runs < ASKED_RUNS:
            say(f"  medians of {runs}, where {ASKED_RUNS} are asked for")

    def at_most(self, what: str, value: float | None, limit: float, unit: str = "") -> None:
        """What was not measured (None, NaN) is missed."""
        self._line(what, value, "at most", limit, unit, holds=value is not None and value <= limit)

    def at_least(self, what: str, value: float | None, limit: float, unit: str = "") -> None:
        self._line(what, value, "at least", limit, unit, holds=value is not None and value >= limit)

    def _line(self, what: str, value: float | None, how: str, limit: float, unit: str, *, holds: bool) -> None:
        told = "not measured" if value is None or math.isnan(value) else f"{value:,.4g}{unit}"
        self._say(f"  {'holds ' if holds else 'MISSES'}  {what}: {told} ({how} {limit:,.4g}{unit})")
        if not holds:
            self.missed.append(what)

    @property
    def exit_code(self) -> int:
        return 1 if self.missed else 0

    def end(self) -> int:
        """Say how it ended; the exit code."""
        self._say(f"MISSED: {'; '.join(self.missed)}" if self.missed else "everything holds")
        return self.exit_code


def median(runs: Sequence[dict[str, float]], name: str) -> float:
    """Of one figure; NaN as soon as a run has none."""
    values = [run[name] for run in runs]
    return math.nan if any(map(math.isnan, values)) else statistics.median(values)


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of every figure that the runs have."""
    return {name: median(runs, name) for name in runs[0]}


def shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
