"""All generated files by their path under `dashboards/`; the same budgets give the same bytes."""

from __future__ import annotations

from kvbench.dashboards.alerting import alerting_rules
from kvbench.dashboards.budgets import Budgets
from kvbench.dashboards.recording import recording_rules

__all__ = ["BOARDS", "boards", "rules"]

BOARDS = ("overview", "sources", "transfer", "gate")


def rules(budgets: Budgets) -> dict[str, str]:
    """The Prometheus rules."""
    return {
        "prometheus/recording-rules.yaml": recording_rules(budgets),
        "prometheus/alerting-rules.yaml": alerting_rules(budgets),
    }


def boards() -> dict[str, str]:
    """The dashboards. ImportError without Grafana's SDK, which is needed to make them and for nothing else."""
    from kvbench.dashboards.boards.gate import gate
    from kvbench.dashboards.boards.overview import overview
    from kvbench.dashboards.boards.sources import sources
    from kvbench.dashboards.boards.transfer import transfer

    made = (overview(), sources(), transfer(), gate())
    return {f"grafana/{name}.json": text for name, text in zip(BOARDS, made, strict=True)}
