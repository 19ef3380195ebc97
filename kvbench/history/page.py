"""The history as one HTML file that needs nothing else; the sheet and its policy are those of a run's report."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.history import changes, nights
from kvbench.history.charts import course_chart
from kvbench.history.nights import Night
from kvbench.history.trend import Comparison, Series
from kvbench.history.words import change_sentence, drift, figure, headline, limit, night_of
from kvbench.report.page import fill
from kvbench.report.plain import plain
from kvbench.report.wording import OUTCOMES, STATUSES

__all__ = ["history_page"]


def history_page(comparisons: Sequence[Comparison], night: Night | None) -> str:
    """The page; every text is escaped."""
    return fill(
        "page.html.j2",
        "kvbench.history",
        sections=[_section(each, f"c{number}") for number, each in enumerate(comparisons, 1)],
        night=None if night is None else _night(night),
        method=f"Changes of level: {changes.METHOD}, at {changes.LEVEL:.0%}. Nights: {nights.METHOD}.",
    )


def _section(each: Comparison, prefix: str) -> dict[str, object]:
    newest = each.runs[-1].name
    return {
        "id": prefix,
        "headline": headline(each),
        "candidate": plain(each.candidate),
        "rules": [_rule(series, newest, f"{prefix}-{place}") for place, series in enumerate(each.series)],
        "runs": [
            {
                "name": plain(run.name),
                "created": night_of(run.created),
                "verdict": run.verdict.value,
                "changed": [f"{plain(v.what)}: {plain(v.before)} → {plain(v.after)}" for v in run.changed],
            }
            for run in reversed(each.runs)
        ],
    }


def _rule(series: Series, newest: str, name: str) -> dict[str, object]:
    point = series.points[-1]
    value, interval = figure(series, point)
    return {
        "rule": plain(series.rule),
        "what": plain(series.what or series.kind),
        "status": point.status if point.run.name == newest else "unknown",
        "symbol": STATUSES[point.status if point.run.name == newest else "unknown"],
        "value": value,
        "interval": interval,
        "limit": limit(series, point),
        "drift": drift(series),
        "changes": [change_sentence(series, change) for change in series.changes],
        "chart": course_chart(name, series),
    }


def _night(night: Night) -> dict[str, object]:
    return {
        "verdict": night.verdict.value,
        "symbol": OUTCOMES[night.verdict][0],
        "run": plain(night.run),
        "asked": night.asked,
        "own": night.own.value,
        "text": plain(night.text),
        "rules": [(STATUSES[rule.status], rule.status, plain(rule.text)) for rule in night.rules],
    }
