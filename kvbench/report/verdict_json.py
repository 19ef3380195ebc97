"""`verdict.json`: the verdict itself, as text. Schema 1; keys are those of `kvbench.judge.verdict`."""

from __future__ import annotations

import json
import math

from kvbench.report.data import ReportData

__all__ = ["render_verdict_json"]


def render_verdict_json(data: ReportData) -> str:
    """One JSON object, indented, ending in a newline. A bound that is not finite is null: JSON has no infinity."""
    verdict = data.verdict.model_dump(mode="json", by_alias=True)
    if verdict["candidates"] is None:
        del verdict["candidates"]
    first = {key: verdict.pop(key) for key in ("schema", "verdict", "exit_code")}
    return json.dumps(_finite({**first, **verdict}), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
