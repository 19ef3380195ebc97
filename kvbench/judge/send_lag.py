"""How late requests went out: actual minus intended send time, seconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from kvbench.judge.columns import Bools, flag, numbers

__all__ = ["SendLag", "followed_lag", "send_lag"]


class SendLag(NamedTuple):
    """Of so many requests that were sent; None when none was."""

    requests: int
    p99_s: float | None
    max_s: float | None


def send_lag(requests: pd.DataFrame) -> SendLag:
    """Of measured requests."""
    return _of(requests, flag(requests, "measured"))


def followed_lag(requests: pd.DataFrame) -> SendLag:
    """Of measured requests that were sent after an answer they had to wait for (later turns, side branches, closed
    loops): it counts from that answer's end plus think time, since to wait is not to be late."""
    after_an_answer = (requests["intended_basis"] == "previous turn").to_numpy(dtype=bool)
    return _of(requests, flag(requests, "measured") & after_an_answer)


def _of(requests: pd.DataFrame, chosen: Bools) -> SendLag:
    if not chosen.any():
        return SendLag(0, None, None)
    lags = (numbers(requests, "sent_s") - numbers(requests, "intended_s"))[chosen]
    lags = lags[~np.isnan(lags)]
    if not len(lags):
        return SendLag(0, None, None)
    return SendLag(len(lags), float(np.quantile(lags, 0.99)), float(lags.max()))
