"""What one simulated round of one arm leaves behind: the tables of a recorded one, and the facts beside them."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from kvbench.judge.evidence import ArmRound, EngineEvent, ScrapeSummary

__all__ = ["SimulatedRound"]


@dataclass(frozen=True)
class SimulatedRound:
    """What one round of one arm left behind."""

    requests: pa.Table
    tokens: pa.Table
    ledger: pa.Table
    """Schema LEDGER, as the core knows it."""
    metrics: pa.Table
    """Schema METRICS, one set of canonical samples a second."""
    host: pa.Table
    events: tuple[EngineEvent, ...]
    scrapes: ScrapeSummary
    capacities: dict[str, float]
    expected_sources: dict[str, float]
    config_differences: tuple[str, ...]
    residue: tuple[str, ...]

    def arm_round(self, arm: str, index: int, *, launch: str | None = None) -> ArmRound:
        """The same as `kvbench.judge` takes it."""
        return ArmRound(
            arm=arm,
            index=index,
            launch=launch or f"{arm}-{index}",
            requests=_frame(self.requests),
            tokens=_frame(self.tokens),
            metrics=_frame(self.metrics),
            host=_frame(self.host),
            ledger=_frame(self.ledger),
            scrapes=self.scrapes,
            complete=not self.events,
            events=self.events,
            config_differences=self.config_differences,
            residue=self.residue,
            expected_sources=self.expected_sources,
            capacities=self.capacities,
            load={"timestamp_error_p99_s": 0.0, "send_lag_p99_s": 0.0},
        )


def _frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    return frame
