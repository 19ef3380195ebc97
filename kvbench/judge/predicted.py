"""What plans said before the run, held against what was measured: shares of tokens and TTFT by source. Seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kvbench.judge.case import Case, JudgedRound
from kvbench.judge.columns import Floats
from kvbench.judge.evidence import Prediction
from kvbench.judge.latency import carries
from kvbench.judge.main_source import main_source
from kvbench.judge.quality import SourcePrediction
from kvbench.judge.sources import SOURCES, add_sources

__all__ = ["source_predictions"]

ALL = "all"


def source_predictions(case: Case) -> list[SourcePrediction]:
    """Of both arms, where there is a prediction; a source that neither was predicted nor came is left out."""
    arms = (
        (case.comparison.baseline.name, [pair.baseline for pair in case.pairs]),
        (case.comparison.candidate.name, [pair.candidate for pair in case.pairs]),
    )
    told = {prediction.arm: prediction for prediction in case.comparison.predictions}
    return [row for arm, rounds in arms if arm in told for row in _rows(told[arm], rounds)]


def _rows(told: Prediction, rounds: Sequence[JudgedRound]) -> Iterator[SourcePrediction]:
    shares = _shares(rounds)
    for source in (*SOURCES, ALL):
        ttft = np.concatenate([_ttft(judged, source) for judged in rounds]) if rounds else np.empty(0)
        predicted, measured = told.shares.get(source), shares.get(source)
        if source != ALL and not predicted and not measured and not len(ttft):
            continue
        foretold_s = told.ttft_p50_s.get(source)
        measured_s = float(np.median(ttft)) if carries(len(ttft), 0.5) else None
        yield SourcePrediction(
            arm=told.arm,
            source=source,
            costs=told.costs,
            rounds=told.rounds,
            predicted_share=predicted,
            measured_share=measured,
            share_error_points=None if predicted is None or measured is None else 100 * (predicted - measured),
            n=len(ttft),
            predicted_ttft_p50_s=foretold_s,
            measured_ttft_p50_s=measured_s,
            ttft_error=foretold_s / measured_s - 1 if foretold_s is not None and measured_s else None,
        )


def _shares(rounds: Sequence[JudgedRound]) -> dict[str, float]:
    """By the engine's counters; empty where one of them is not known."""
    tokens = add_sources(judged.sources for judged in rounds)
    known = {source: count for source, count in tokens.items() if count is not None}
    total = sum(known.values())
    return {source: count / total for source, count in known.items()} if total and len(known) == len(tokens) else {}


def _ttft(judged: JudgedRound, source: str) -> Floats:
    """Of answered requests most of whose prompt came from `source`."""
    latencies, ledger = judged.latencies, judged.ledger
    values = latencies.per_request("ttft")
    if source == ALL:
        return values[latencies.completed & ~latencies.leaves]
    tokens = np.column_stack([ledger.tokens(name) for name in SOURCES])
    main = main_source(tokens, latencies.column("prompt_tokens_planned"))
    return np.asarray(values[ledger.split & (main == source)])
