"""What one arm would do with a schedule, by the emulated core in virtual time. Tokens, bytes, seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvbench.engine.emulated.virtual import simulate
from kvbench.judge.latency import carries
from kvbench.judge.main_source import main_source
from kvbench.judge.sources import SOURCES
from kvbench.plan.references import ratio
from kvbench.spec.emulation import Emulation
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import Schedule

__all__ = ["Prediction", "predict"]

_QUANTILES = (0.5, 0.9, 0.99)
WINDOW_S = 10.0
"""Over which the busiest stretch of promotions is looked for."""


@dataclass(frozen=True)
class Prediction:
    """Of measured requests."""

    tokens: dict[str, int]
    """Prompt tokens by source."""
    ttft: dict[str, dict[str, float | int | None]]
    """By the source of most of the prompt; `all` for every request."""
    itl: dict[str, dict[str, float | int | None]]
    failed: int
    requests: int
    promoted_bytes_per_s: float
    """Mean over the measured time."""
    promoted_peak_bytes_per_s: float
    """In the busiest ten seconds."""
    rounds: int = 1
    """Schedules that were played, each from an empty start."""

    @property
    def shares(self) -> dict[str, float | None]:
        """Of the prompt tokens."""
        total = sum(self.tokens.values())
        return {source: ratio(count, total) for source, count in self.tokens.items()}

    def document(self) -> dict[str, object]:
        """For machines."""
        return {
            "tokens": self.tokens,
            "shares": self.shares,
            "ttft_s": self.ttft,
            "itl_s": self.itl,
            "rounds": self.rounds,
            "requests": self.requests,
            "failed": self.failed,
            "promotion_bytes_per_s": {"mean": self.promoted_bytes_per_s, "peak": self.promoted_peak_bytes_per_s},
        }


class _Played(NamedTuple):
    """Measured requests of one schedule."""

    split: NDArray[np.float64]
    """Tokens of each answered one by source."""
    source: NDArray[np.str_]
    ttft: NDArray[np.float64]
    gaps: NDArray[np.float64]
    gap_source: NDArray[np.str_]
    requests: int
    measured_s: float
    peak_tokens_per_s: float


def predict(schedules: Sequence[Schedule], profile: Profile, emulation: Emulation, token_bytes: int) -> Prediction:
    """Play each schedule once, from an empty start, as the rounds of a comparison are; all requests together."""
    rounds = [_play(schedule, profile, emulation) for schedule in schedules]
    split = np.concatenate([each.split for each in rounds])
    source = np.concatenate([each.source for each in rounds])
    ttft = np.concatenate([each.ttft for each in rounds])
    gaps = np.concatenate([each.gaps for each in rounds])
    gap_source = np.concatenate([each.gap_source for each in rounds])
    requests = sum(each.requests for each in rounds)
    promoted_per_s = float(split[:, 1:3].sum()) / sum(each.measured_s for each in rounds)
    return Prediction(
        tokens={name: int(split[:, place].sum()) for place, name in enumerate(SOURCES)},
        ttft=_by_source(ttft, source),
        itl=_by_source(gaps, gap_source),
        failed=requests - len(ttft),
        requests=requests,
        promoted_bytes_per_s=promoted_per_s * token_bytes,
        promoted_peak_bytes_per_s=max(each.peak_tokens_per_s for each in rounds) * token_bytes,
        rounds=len(rounds),
    )


def _play(schedule: Schedule, profile: Profile, emulation: Emulation) -> _Played:
    played = simulate(schedule, profile, emulation=emulation, label="plan", scrape_every_s=60.0)
    requests: pd.DataFrame = played.requests.to_pandas()
    ledger: pd.DataFrame = played.ledger.to_pandas()
    rows = requests.merge(ledger, on="id", how="left", suffixes=("", "_ledger"))
    rows = rows[rows["measured"]]
    answered = rows[(rows["status"] != "error") & rows["first_token_s"].notna()]
    split = answered[list(SOURCES)].fillna(0).to_numpy(np.float64)
    source = main_source(split, answered["prompt_tokens_planned"].to_numpy(np.float64))
    first_s = answered["first_token_s"].to_numpy(np.float64)
    gaps, gap_source = _gaps(played.tokens.to_pandas(), dict(zip(answered["id"], source, strict=True)))
    return _Played(
        split=split,
        source=source,
        ttft=first_s - answered["intended_s"].to_numpy(np.float64),
        gaps=gaps,
        gap_source=gap_source,
        requests=len(rows),
        measured_s=sum(phase.end_s - phase.start_s for phase in schedule.phases if phase.measured),
        peak_tokens_per_s=_peak(first_s, split[:, 1] + split[:, 2]),
    )


def _gaps(tokens: pd.DataFrame, source_of: dict[int, str]) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Every gap between tokens of a request, and the source of its prompt."""
    ids, times = tokens["id"].to_numpy(), tokens["t_s"].to_numpy(np.float64)
    same = ids[1:] == ids[:-1]
    gaps, owners = np.diff(times)[same], ids[1:][same]
    sources = pd.Series(owners).map(source_of)
    known = sources.notna().to_numpy()
    return gaps[known], sources[known].to_numpy(str)


def _by_source(values: NDArray[np.float64], sources: NDArray[np.str_]) -> dict[str, dict[str, float | int | None]]:
    found = {"all": _quantiles(values)}
    for name in SOURCES:
        chosen = values[sources == name]
        if len(chosen):
            found[name] = _quantiles(chosen)
    return found


def _quantiles(values: NDArray[np.float64]) -> dict[str, float | int | None]:
    """None where fewer than three values lie beyond."""
    shown = {
        f"p{round(q * 100)}": float(np.quantile(values, q)) if carries(len(values), q) else None for q in _QUANTILES
    }
    return {"n": len(values), **shown}


def _peak(times: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    """Tokens per second in the busiest window."""
    if not len(times):
        return 0.0
    places = np.maximum(times // WINDOW_S, 0).astype(np.int64)
    return float(np.bincount(places, weights=tokens).max()) / WINDOW_S
