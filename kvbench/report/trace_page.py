"""The page about a trace: one file, no script, no network, no font; every text is escaped."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from kvbench import __version__
from kvbench.errors import InputError, Where
from kvbench.judge.sources import SOURCES
from kvbench.record.atomic import write_text
from kvbench.report.page import fill
from kvbench.report.plain import plain
from kvbench.report.trace_charts import hit_curve_chart, reuse_time_chart
from kvbench.report.trace_view import Document, share, trace_view

__all__ = ["check_page", "render_trace_page", "write_trace_page"]

_TONES = {"yes": "go", "no": "no_go", "unknown": "inconclusive"}
_SYMBOLS = {"yes": "✓", "no": "✕", "unknown": "?"}


def render_trace_page(document: Document) -> str:
    """From the document that `analyze --json` prints; equal documents give equal pages."""
    view = trace_view(document)
    return fill(
        "trace_page.html.j2",
        view=view,
        tone=_TONES[view.pilot],
        symbol=_SYMBOLS[view.pilot],
        charts=_charts(document),
        parts=_parts(document),
        sources=SOURCES,
        version=plain(__version__),
    )


def check_page(path: Path, trace: Path) -> None:
    """InputError when there is no folder for a page, or when it would take the place of the trace."""
    if not path.parent.is_dir() or path.is_dir():
        raise InputError("no page can be written there", where=Where(path), do="name a file in an existing folder")
    if path.exists() and trace.exists() and path.samefile(trace):
        raise InputError("the page would replace the trace", where=Where(path), do="name another file with --html")


def write_trace_page(path: Path, document: Document) -> None:
    """Write the page where `check_page` allows it. RecordError when the disk refuses."""
    write_text(path, render_trace_page(document))


def _charts(document: Document) -> list[tuple[str, str]]:
    if document["ideal"] is None:
        return []
    curve, setting = document["lru_curve"], document["advice"]["setting"]
    tiers = {tier: setting[f"{tier}_bytes"] for tier in ("device", "host", "disk")}
    drawn = (
        (f"Prompt tokens served, KV of {plain(curve['model'])}", hit_curve_chart("curve", curve["points"], tiers)),
        ("Time until a block is used again", reuse_time_chart("reuse", document["reuse_time_s"])),
    )
    return [(heading, svg) for heading, svg in drawn if svg is not None]


def _parts(document: Document) -> list[tuple[str, float, str]]:
    """Of each source, the share of prompt tokens at the sizes of the setting."""
    shares = document["advice"]["shares"]
    if not shares:
        return []
    upto = [0.0, shares["device"], shares["host"], shares["disk"], 1.0]
    each = [after - before for before, after in pairwise(upto)]
    return [(source, value, share(value)) for source, value in zip(SOURCES, each, strict=True)]
