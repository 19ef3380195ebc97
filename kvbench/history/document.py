"""The history as one JSON document. Keys may be added, never renamed; null is what was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from kvbench.history import changes, nights, trend
from kvbench.history.nights import Night
from kvbench.history.trend import Change, Comparison, Point, Series, Trend, VersionChange

__all__ = ["history_document", "moment"]


def history_document(folder: str, comparisons: Sequence[Comparison], night: Night | None) -> dict[str, object]:
    """Everything that `kvbench history` knows."""
    return {
        "schema": 1,
        "history": folder,
        "methods": {
            "changes": {"name": changes.METHOD, "level": changes.LEVEL},
            "drift": {"name": "Theil-Sen (Sen, 1968)", "confidence": trend.CONFIDENCE},
            "nights": {"name": nights.METHOD, "fewest": nights.FEWEST_NIGHTS},
        },
        "comparisons": [_comparison(each) for each in comparisons],
        "nights": None if night is None else _night(night),
        "exit_code": 0 if night is None else night.verdict.exit_code,
    }


def moment(time: datetime) -> str:
    """`2026-01-31T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _comparison(each: Comparison) -> dict[str, object]:
    return {
        "baseline": each.baseline,
        "candidate": each.candidate,
        "runs": [
            {
                "run": run.name,
                "created_utc": moment(run.created),
                "verdict": run.verdict.value,
                "changed": [_version(version) for version in run.changed],
            }
            for run in each.runs
        ],
        "rules": [_series(series) for series in each.series],
    }


def _version(version: VersionChange) -> dict[str, str]:
    return {"what": version.what, "before": version.before, "after": version.after}


def _series(series: Series) -> dict[str, object]:
    return {
        "rule": series.rule,
        "kind": series.kind,
        "what": series.what,
        "unit": "ratio" if series.ratio else series.unit,
        "points": [_point(point) for point in series.points],
        "trend": _trend(series.trend, series.logarithmic),
        "changes": [_change(change) for change in series.changes],
    }


def _point(point: Point) -> dict[str, object]:
    return {
        "run": point.run.name,
        "created_utc": moment(point.run.created),
        "verdict": point.run.verdict.value,
        "status": point.status,
        "value": point.value,
        "ci": point.interval,
        "limit": point.limit,
        "baseline": point.baseline_value,
        "candidate": point.candidate_value,
    }


def _trend(found: Trend | None, logarithmic: bool) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "drift": found.drift,
        "ci": found.interval,
        "scale": "factor" if logarithmic else "difference",
        "runs": found.runs,
    }


def _change(change: Change) -> dict[str, object]:
    return {
        "run": change.run.name,
        "created_utc": moment(change.run.created),
        "before": change.before,
        "after": change.after,
        "p_value": change.p_value,
        "with": [
            {"run": run.name, "created_utc": moment(run.created), **_version(version)}
            for run, version in change.with_it
        ],
    }


def _night(night: Night) -> dict[str, object]:
    return {
        "run": night.run,
        "verdict": night.verdict.value,
        "exit_code": night.verdict.exit_code,
        "own_verdict": night.own.value,
        "asked": night.asked,
        "confidence": night.confidence,
        "text": night.text,
        "rules": [
            {
                "candidate": rule.candidate,
                "rule": rule.rule,
                "status": rule.status,
                "tonight": rule.tonight,
                "unit": rule.unit,
                "nights": rule.nights,
                "count": rule.count,
                "ratio": rule.ratio,
                "ci": rule.interval,
                "limit": rule.limit,
                "baseline_ratio": rule.baseline_ratio,
                "text": rule.text,
            }
            for rule in night.rules
        ],
    }
