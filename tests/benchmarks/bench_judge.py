"""Time and memory that judging takes: `python -m tests.benchmarks.bench_judge [REQUESTS] [ROUNDS]`.

The budget is 5 s and 1.5 GB for a million requests in each of two arms, tables included; beyond it the exit status
is 1. Every round has a ledger, as those of every run have.
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
from kvbench.record.tables import LEDGER, REQUESTS, TOKENS
from kvbench.spec.rules import Rules
from tests.judge import build

BUDGET_S, BUDGET_MB = 5.0, 1500.0
TOKENS_EACH = 4
CLASSES = np.array(["short", "long", "agent"])
PROMPT = 1000
CACHED = 900
SERVED_BY = {
    "base": {"device": 0.1, "computed": 0.9},
    "tiered": {"device": 0.1, "host": 0.4, "disk": 0.3, "computed": 0.2},
}
"""Share of the requests whose prompt comes mostly from there, which the ledger of every run tells."""
PER_TOKEN_S = {"device": 1e-5, "host": 1e-4, "disk": 2e-4, "computed": 1e-3}


def ledger(n: int, arm: str, seed: int) -> pd.DataFrame:
    """Where each prompt came from, as it comes from Parquet."""
    shares = SERVED_BY[arm]
    source = np.random.default_rng([seed, 1]).choice(list(shares), n, p=list(shares.values()))
    tokens = {name: np.where(source == name, CACHED, 0) for name in ("device", "host", "disk")}
    columns = {
        "id": np.arange(n),
        "prompt_tokens": np.full(n, PROMPT),
        "computed": PROMPT - sum(tokens.values()),
        **tokens,
        "unattributed": np.zeros(n, np.int64),
        "evidence": pa.repeat("kv events", n),
    }
    made: pd.DataFrame = pa.table({name: pa.array(columns[name]) for name in LEDGER.names}).cast(LEDGER).to_pandas()
    return made


def tables(n: int, arm: str, seed: int, told: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Requests and tokens of one round, as they come from Parquet."""
    rng = np.random.default_rng([seed, len(arm)])
    intended = build.WARM_S + build.MEASURED_S * np.arange(n) / n
    cost_s = sum((told[source].to_numpy() * each_s for source, each_s in PER_TOKEN_S.items()), np.full(n, 0.02))
    first = intended + cost_s * np.exp(rng.normal(0, 0.3, n)) * np.exp(rng.normal(0, 0.02))
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
        "prompt_tokens_planned": pa.repeat(PROMPT, n),
        "prompt_tokens_engine": pa.repeat(PROMPT, n),
        "cached_tokens": PROMPT - told["computed"].to_numpy(),
        "output_tokens_asked": pa.repeat(TOKENS_EACH, n),
        "output_tokens_received": pa.repeat(TOKENS_EACH, n),
        "status": pa.repeat("ok", n),
        "prompt_digest": digests,
        "output_digest": digests,
        "ended_s": last,
        "multi_token_events": pa.repeat(0, n),
        "leaves": pa.repeat(False, n),
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
            + np.tile(np.arange(TOKENS_EACH), n) * np.repeat(rng.normal(0.02, 0.002, n), TOKENS_EACH),
        }
    ).cast(TOKENS)
    return requests.to_pandas(), tokens.to_pandas()


def comparison(requests: int, rounds: int) -> Comparison:
    """Two arms of `requests` each, spread over `rounds`."""

    def side(arm: str, index: int) -> ArmRound:
        told = ledger(requests // rounds, arm, index)
        made = tables(requests // rounds, arm, index, told)
        counted = [told[source].sum() for source in ("device", "host", "disk", "computed")]
        return build.arm_round(arm, index, *made, sources=counted, ledger=told)

    pairs = [RoundPair(index, side("base", index), side("tiered", index)) for index in range(1, rounds + 1)]
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
    """Build, judge once, and say what it took; exit with 1 when that is more than may be."""
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
    if took > BUDGET_S or peak_mb > BUDGET_MB:
        sys.exit(f"BEYOND THE BUDGET of {BUDGET_S:g} s and {BUDGET_MB:,.0f} MB")


if __name__ == "__main__":
    main()
