"""What `kvbench probe --json` found: seconds a token costs from each source. Reads the file, checks its form."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvbench.errors import InputError, Where

__all__ = ["ProbeCosts", "read_probe"]


@dataclass(frozen=True)
class ProbeCosts:
    """Seconds per token by source; the length from which on a tier beats computing, where there is one."""

    file: str
    cost_per_token_s: Mapping[str, float]
    break_even_tokens: Mapping[str, float]
    longest_tokens: float | None = None
    """The longest prefix that was probed; None: the file does not say."""


def read_probe(path: Path) -> ProbeCosts:
    """InputError for a file that is not the output of `kvbench probe --json`."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=Where(path)) from None
    try:
        raw = json.loads(text)
        costs, even = _numbers(raw["cost_per_token_s"]), _numbers(raw["break_even_tokens"])
        longest = max((float(point["prefix_tokens"]) for point in raw.get("points") or ()), default=None)
    except (ValueError, KeyError, TypeError, AttributeError):
        costs, even, longest = {}, {}, None
    if costs.get("computed", 0.0) <= 0:
        raise InputError(
            "is not what `kvbench probe PROFILE --json` prints, or holds no cost of computed tokens",
            where=Where(path),
            do="make one with `kvbench probe PROFILE --json > FILE`",
        )
    return ProbeCosts(str(path), costs, even, longest)


def _numbers(raw: Mapping[str, object]) -> dict[str, float]:
    """Those that are numbers; a source without a figure is null there."""
    return {
        str(source): float(value)
        for source, value in raw.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
