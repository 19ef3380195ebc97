"""Time and memory that judging takes: `python -m tests.benchmarks.bench_judge [REQUESTS] [ROUNDS]`.

The budget is 5 s and 1.5 GB for a million requests in each of two arms, tables included.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from kvbench.judge.evidence import ArmRound, Comparison, RoundPair
from kvbench.judge.judge import judge
from kvbench.record.tables import REQUESTS, TOKENS
from kvbench.spec.rules import Rules
from tests.judge import build

TOKENS_EACH = 4
CLASSES = np.array(["short", "long", "agent"])


def tables(n: int, ratio: float, seed: int, cached: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Requests and tokens of one round, as they come from Parquet."""
    rng = np.random.default_rng(seed)
    intended = build.WARM_S + build.MEASURED_S * np.arange(n) / n
    first = intended + ratio * np.exp(rng.normal(0, 0.3, n)) * np.exp(
        np.random.default_rng(int(cached)).normal(0, 0.02)
    )
    last = first + 0.02 * (TOKENS_EACH - 1)
    ids = pa.array(np.arange(n))
    digests = pa.array([f"i{number:031x}" for number in range(n)])
    columns: dict[str, Any] = {
        "id": ids,
        "phase": pa.repeat("steady", n),
        "measured": pa.repeat(True, n),
        "class": pa.array(CLASSES[np.arange(n) % 3]),
        "turn": pa.repeat(0, n),
        "intended_s": intended,
        "intended_basis": pa.repeat("schedule", n),
        "sent_s": intended + 0.001,
        "first_token_s": first,
        "last_token_s": last,
        "prompt_tokens_planned": pa.repeat(1000, n),
        "prompt_tokens_engine": pa.repeat(1000, n),
        "cached_tokens": np.full(n, int(cached)),
        "output_tokens_asked": pa.repeat(TOKENS_EACH, n),
        "output_tokens_received": pa.repeat(TOKENS_EACH, n),
        "status": pa.repeat("ok", n),
        "prompt_digest": digests,
        "output_digest": digests,
        "ended_s": last,
        "multi_token_events": pa.repeat(0, n),
    }
    requests = pa.table(
        {field.name: pa.array(columns[field.name], field.type) if isinstance(columns.get(field.name), np.ndarray)
         else columns[field.name].cast(field.type) if field.name in columns else pa.nulls(n, field.type)
         for field in REQUESTS}
    )  # fmt: skip
    tokens = pa.table(
        {
            "id": np.repeat(np.arange(n), TOKENS_EACH),
            "index": np.tile(np.arange(TOKENS_EACH), n),
            "t_s": np.repeat(first, TOKENS_EACH)
            + np.tile(np.arange(TOKENS_EACH), n)
            * np.repeat(np.random.default_rng(seed).normal(0.02, 0.002, n), TOKENS_EACH),
        }
    ).cast(TOKENS)
    return requests.to_pandas(), tokens.to_pandas()


def comparison(requests: int, rounds: int) -> Comparison:
    """Two arms of `requests` each, spread over `rounds`."""

    def side(arm: str, index: int, ratio: float, cached: float) -> ArmRound:
        made = tables(requests // rounds, ratio, index, cached + index)
        return build.arm_round(arm, index, *made, sources=(1, 2, 3, 4))

    pairs = [
        RoundPair(index, side("base", index, 1.0, 0), side("tiered", index, 0.3, 900))
        for index in range(1, rounds + 1)
    ]
    return build.comparison(pairs, rules(rounds))


def rules(rounds: int) -> Rules:
    """The rules of the documentation, all kinds of them."""
    return build.rules(
        guardrails=[
            {"id": "ttft-p99", "metric": "ttft", "quantile": 0.99, "max_ratio": 1.1},
            {"id": "short-ttft", "metric": "ttft", "class": "short", "quantile": 0.99, "max": "2s"},
            {
                "id": "sustained",
                "metric": "ttft",
                "class": "short",
                "quantile": 0.99,
                "max": "2s",
                "sustained": {"window": "30s", "for": "90s"},
            },
            {"id": "itl-p99", "metric": "itl", "quantile": 0.99, "max_ratio": 1.1},
            {"id": "errors", "metric": "error_rate", "max": "0.1%"},
            {"id": "parity", "metric": "output_parity"},
        ],
        benefits=[
            {"id": "long-ttft", "metric": "ttft", "class": "long", "quantile": 0.5, "max_ratio": 0.8},
            {"id": "goodput", "metric": "goodput", "min_ratio": 1.1},
        ],
        rounds=(rounds, rounds),
    )


def main() -> None:
    """Build, judge once, and say what it took."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    made = comparison(requests, rounds)
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began, cpu = time.perf_counter(), time.process_time()
    verdict = judge(made)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{requests:,} requests x 2 arms in {rounds} rounds: {verdict.verdict} in {took:.2f} s ({cpu:.2f} s CPU)")
    print(f"peak {peak_mb:,.0f} MB, of which {before_mb:,.0f} MB before judging")


if __name__ == "__main__":
    main()
