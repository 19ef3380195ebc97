"""The rules of one candidate over its recorded runs: points, trend, changes of level and what changed with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import theilslopes

from kvbench.history.changes import change_points
from kvbench.history.rows import VERSIONS
from kvbench.judge.verdict import Outcome

__all__ = ["Change", "Comparison", "Point", "Run", "Series", "Trend", "VersionChange", "comparisons"]

FEWEST_FOR_TREND = 5
"""Runs since the last change of level."""
CONFIDENCE = 0.95
"""Of a trend's interval."""


@dataclass(frozen=True)
class VersionChange:
    """Something that a run was made with is not what it was in the run before."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Run:
    """A recorded comparison with one candidate."""

    name: str
    created: datetime
    verdict: Outcome
    changed: tuple[VersionChange, ...]
    """Against the run before it; empty for the first."""


@dataclass(frozen=True)
class Point:
    """One rule in one run; figures are None when they were not measured."""

    run: Run
    status: str
    value: float | None
    interval: tuple[float, float] | None
    limit: float | None
    baseline_value: float | None
    candidate_value: float | None

    @property
    def counts(self) -> bool:
        """Whether trend and changes are made of it: an INVALID run measured nothing that could be trusted."""
        return self.value is not None and self.run.verdict is not Outcome.INVALID


@dataclass(frozen=True)
class Trend:
    """How far a rule drifted over the `runs` since the last change of level: Theil-Sen slope times the time.

    In the rule's unit; of a `logarithmic` series a factor. P. K. Sen, J. Am. Stat. Assoc. 63 (1968), 1379-1389.
    """

    drift: float
    interval: tuple[float, float]
    runs: int


@dataclass(frozen=True)
class Change:
    """A change of level: medians before and from `run` on, and what else changed there."""

    run: Run
    before: float
    after: float
    p_value: float
    with_it: tuple[tuple[Run, VersionChange], ...]
    """Versions that changed with this run or with its neighbours: the place is uncertain by about a run."""


@dataclass(frozen=True)
class Series:
    """A rule over the runs."""

    rule: str
    kind: str
    what: str
    unit: str | None
    ratio: bool
    upper: bool
    logarithmic: bool
    """Whether changes are told as factors: every value is positive and none is a fraction."""
    points: tuple[Point, ...]
    trend: Trend | None
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Comparison:
    """A candidate against a baseline."""

    baseline: str
    candidate: str
    runs: tuple[Run, ...]
    series: tuple[Series, ...]


def comparisons(rows: pd.DataFrame, last: int | None, rules: Sequence[str] = ()) -> list[Comparison]:
    """Each pair of arms in `rows` (columns of `HISTORY`) over its `last` runs, the one with the newest run first.

    Without `rules` those of validity are left out unless one did not pass. A pair without any rule is left out.
    """
    found = []
    for (baseline, candidate), group in rows.groupby(["baseline", "candidate"], sort=True):
        runs = _runs(group, last)
        shown = group[group["run_digest"].isin(runs)]
        series = [
            _series(str(rule), part, runs)
            for rule, part in shown.groupby("rule", sort=False)
            if (rule in rules if rules else _worth_showing(part))
        ]
        if series:
            found.append(Comparison(str(baseline), str(candidate), tuple(runs.values()), tuple(series)))
    return sorted(found, key=lambda each: each.runs[-1].created, reverse=True)


def _worth_showing(rows: pd.DataFrame) -> bool:
    return bool((rows["kind"] != "validity").any() or (rows["status"] != "pass").any())


def _runs(rows: pd.DataFrame, last: int | None) -> dict[str, Run]:
    """By digest, in order of time."""
    firsts = rows.drop_duplicates("run_digest").sort_values(["created", "run"])
    firsts = firsts if last is None else firsts.tail(last)
    runs: dict[str, Run] = {}
    before: dict[str, object] | None = None
    for record in firsts.to_dict("records"):
        row: dict[str, object] = {str(name): value for name, value in record.items()}
        runs[str(row["run_digest"])] = Run(
            name=str(row["run"]),
            created=pd.Timestamp(str(row["created"])).to_pydatetime(),
            verdict=Outcome(str(row["verdict"])),
            changed=tuple(_changed(before, row)) if before is not None else (),
        )
        before = row
    return runs


def _changed(before: dict[str, object], after: dict[str, object]) -> Iterable[VersionChange]:
    for column, name in VERSIONS.items():
        old, new = (_version(column, row[column]) for row in (before, after))
        if old != new:
            yield VersionChange(name, old, new)


def _version(column: str, value: object) -> str:
    """Of a digest its first twelve digits tell it apart."""
    if not isinstance(value, str):
        return "not told"
    return value.removeprefix("sha256:")[:12] if column.endswith("_digest") else value


def _series(rule: str, rows: pd.DataFrame, runs: dict[str, Run]) -> Series:
    newest = rows.iloc[-1]
    # A rule without an effect in any run is told by its value; where it has one, a value is another figure.
    figure = "effect" if rows["effect"].notna().any() else "candidate_value"
    points = tuple(_point(row, runs[str(row["run_digest"])], figure) for row in rows.to_dict("records"))
    unit = newest["unit"] if isinstance(newest["unit"], str) else None
    counted = [point for point in points if point.counts]
    values = np.array([point.value for point in counted], dtype=np.float64)
    logarithmic = bool(len(values)) and unit != "fraction" and bool((values > 0).all())
    changes = _changes(counted, values)
    since = changes[-1].run if changes else None
    return Series(
        rule=rule,
        kind=str(newest["kind"]),
        what=str(newest["what"] or ""),
        unit=unit,
        ratio=bool(newest["ratio"]),
        upper=bool(newest["upper"]),
        logarithmic=logarithmic,
        points=points,
        trend=_trend(counted, values, since, logarithmic),
        changes=changes,
    )


def _point(row: dict[object, object], run: Run, figure: str) -> Point:
    low, high = _number(row["ci_low"]), _number(row["ci_high"])
    return Point(
        run=run,
        status=str(row["status"]),
        value=_number(row[figure]),
        interval=None if low is None or high is None else (low, high),
        limit=_number(row["limit"]),
        baseline_value=_number(row["baseline_value"]),
        candidate_value=_number(row["candidate_value"]),
    )


def _number(value: object) -> float | None:
    """None for what was not measured or is not finite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _changes(points: Sequence[Point], values: npt.NDArray[np.float64]) -> tuple[Change, ...]:
    found = change_points(values)
    bounds = [0, *(change.index for change in found), len(values)]
    return tuple(
        Change(
            run=points[change.index].run,
            before=float(np.median(values[bounds[place] : change.index])),
            after=float(np.median(values[change.index : bounds[place + 2]])),
            p_value=change.p_value,
            with_it=tuple(
                (point.run, version)
                for point in points[max(change.index - 1, 1) : change.index + 2]
                for version in point.run.changed
            ),
        )
        for place, change in enumerate(found)
    )


def _trend(
    points: Sequence[Point], values: npt.NDArray[np.float64], since: Run | None, logarithmic: bool
) -> Trend | None:
    kept = [place for place, point in enumerate(points) if since is None or point.run.created >= since.created]
    times = np.array([points[place].run.created.timestamp() for place in kept])
    if len(kept) < FEWEST_FOR_TREND or len(set(times)) < FEWEST_FOR_TREND:
        return None
    seen = np.log(values[kept]) if logarithmic else values[kept]
    fit = theilslopes(seen, times, alpha=CONFIDENCE)
    slopes = np.array([fit.slope, fit.low_slope, fit.high_slope]) * (times.max() - times.min())
    drift, low, high = map(float, np.exp(slopes) if logarithmic else slopes)
    return Trend(drift, (low, high), len(kept)) if math.isfinite(high) else None
