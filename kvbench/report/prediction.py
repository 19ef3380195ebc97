"""What a report says about a plan: predicted beside measured, and the error. The same in every format."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.judge.quality import SourcePrediction
from kvbench.report.parts import TableView
from kvbench.report.plain import plain
from kvbench.report.wording import MISSING, show_share, show_value

__all__ = ["prediction_tables"]


HEADER = ("Arm", "Source", "Share predicted", "Measured", "Error", "n", "TTFT p50 predicted", "Measured", "Error")


def prediction_tables(each: Sequence[SourcePrediction]) -> tuple[TableView, ...]:
    """One table, or none where nothing was predicted."""
    if not each:
        return ()
    plans = dict.fromkeys(f"{plain(row.arm)}: {plain(row.costs)}, {_rounds(row.rounds)}" for row in each)
    return (
        TableView(
            "Predicted and measured",
            "Shares of prompt tokens by the engine's counters, and median TTFT of requests by the source of most "
            "of their prompt; all rounds together. Rounds draw requests of their own, so a plan of fewer rounds "
            f"is not quite of these. Errors are predicted less measured. Plans: {'; '.join(plans)}.",
            HEADER,
            tuple(map(_cells, each)),
            right=2,
            brief=True,
        ),
    )


def _rounds(count: int) -> str:
    return "the first round alone" if count == 1 else f"{count} rounds"


def _cells(row: SourcePrediction) -> tuple[str, ...]:
    points, error = row.share_error_points, row.ttft_error
    return (
        plain(row.arm),
        row.source,
        MISSING if row.predicted_share is None else show_share(row.predicted_share),
        MISSING if row.measured_share is None else show_share(row.measured_share),
        MISSING if points is None else f"{points:+.1f} points",
        f"{row.n:,}",
        show_value(row.predicted_ttft_p50_s, "s"),
        show_value(row.measured_ttft_p50_s, "s"),
        MISSING if error is None else f"{error:+.0%}",
    )
