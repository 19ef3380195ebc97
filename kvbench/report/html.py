"""`report.html`: one file that needs nothing else: no script, no network, no font.

The template is `page.html.j2`, the sheet `page.css`; every text is escaped, and the policy in the page's head
allows this one sheet and nothing more.
"""

from __future__ import annotations

from kvbench.judge.sources import SOURCES
from kvbench.report.charts import DOT_LIMIT
from kvbench.report.data import ReportData
from kvbench.report.gallery import gallery
from kvbench.report.page import fill
from kvbench.report.view import view
from kvbench.report.wording import MISSING

__all__ = ["render_html"]


def render_html(data: ReportData) -> str:
    """The page. The worst candidate comes first; charts are drawn anew from the tables in `data`."""
    report = view(data)
    verdicts = data.verdict.candidates or [data.verdict]
    ordered = sorted(verdicts, key=lambda candidate: -candidate.verdict.severity)
    return fill(
        "page.html.j2",
        report=report,
        galleries=[gallery(verdict, data, f"c{number}") for number, verdict in enumerate(ordered, 1)],
        sources=SOURCES,
        missing=MISSING,
        dot_limit=DOT_LIMIT,
    )
