"""Rounds, arms and comparisons from plain numbers, so that a test says only what it is about.

Everything that a test does not name is sound: 400 requests a round in class `long`, sent on time, answered with the
tokens asked for, scraped without gaps, on an idle host. Pairs of rounds are made once and shared, so a test changes
copies (see `change`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from kvbench.judge.evidence import ArmRound, Comparison, RoundPair, ScrapeSummary
from kvbench.record.tables import HOST, METRICS, REQUESTS, TOKENS
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

WARM_S, MEASURED_S = 10.0, 100.0
PROMPT, OUTPUT = 1000, 5
SCRAPES = ScrapeSummary(expected=100, succeeded=100, longest_gap_ours_s=1.0, engine_stalled=0, supported=True)


BASELINE = Profile.model_validate(
    {"name": "base", "engine": {"kind": "vllm", "model": "tiny"}, "tiers": {"device": {"blocks": 64}}}
)


TIERED = Profile.model_validate(
    {
        "name": "tiered",
        "engine": {"kind": "vllm", "model": "tiny"},
        "tiers": {"device": {"blocks": 64}, "host": {"size": "64MiB"}, "disk": {"path": "/srv/kv"}},
    }
)


COPY = BASELINE.model_copy(update={"name": "copy"})


def workload(**changes: Any) -> Workload:
    """10 s of warm-up and 100 s measured, one class `long`."""
    spec: dict[str, Any] = {
        "name": "test",
        "arrivals": {"process": "poisson", "rate": "4/s"},
        "phases": [
            {"name": "warm", "for": WARM_S, "measured": False},
            {"name": "steady", "for": MEASURED_S},
        ],
        "classes": {"long": {"suffix_tokens": 64, "output_tokens": OUTPUT}},
        "request_timeout": 60.0,
    }
    return Workload.model_validate(spec | changes)


def rules(
    *,
    guardrails: Sequence[dict[str, Any]] = (
        {"id": "ttft-p90", "metric": "ttft", "quantile": 0.9, "max_ratio": 1.5},
    ),
    benefits: Sequence[dict[str, Any]] = ({"id": "ttft-p50", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.8},),
    evidence: Sequence[dict[str, Any]] = ({"id": "promoted", "metric": "promoted_tokens", "min": 1},),
    rounds: tuple[int, int] = (3, 3),
    **more: Any,
) -> Rules:
    return Rules.model_validate(
        {
            "guardrails": list(guardrails),
            "benefits": list(benefits),
            "evidence": list(evidence),
            "rounds": {"min": rounds[0], "max": rounds[1]},
            **more,
        }
    )


def ttfts(n: int = 400, median: float = 1.0, seed: int = 0, spread: float = 0.3) -> np.ndarray:
    """Lognormal latencies; the same seed gives the same draw, so that arms can be paired."""
    return median * np.exp(np.random.default_rng(seed).normal(0, spread, n))


def request_rows(
    ttft: Iterable[float],
    *,
    gaps: Iterable[float] | float = 0.02,
    classes: str | Sequence[str] = "long",
    cached: Iterable[float] | float | None = 0,
    output: int = OUTPUT,
    start_s: float = WARM_S,
    span_s: float = MEASURED_S,
    first_id: int = 0,
    **columns: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Requests at even steps over the measured part, and their tokens with even gaps within each request."""
    ttft_s = np.asarray(list(ttft), dtype=float)
    n = len(ttft_s)
    gap_s = np.broadcast_to(np.asarray(gaps, dtype=float), (n,))
    intended = start_s + span_s * (np.arange(n) + 0.5) / max(n, 1)
    ids = first_id + np.arange(n)
    first = intended + ttft_s
    last = first + gap_s * (output - 1)
    names = [classes] * n if isinstance(classes, str) else list(classes)
    frame = pd.DataFrame(
        {
            "id": ids,
            "arm": "arm",
            "round": 1,
            "phase": "steady",
            "measured": True,
            "class": names,
            "session": None,
            "turn": 0,
            "intended_s": intended,
            "intended_basis": "schedule",
            "sent_s": intended + 0.001,
            "first_token_s": first,
            "last_token_s": last,
            "prompt_tokens_planned": PROMPT,
            "prompt_tokens_engine": PROMPT,
            "cached_tokens": np.nan if cached is None else np.broadcast_to(np.asarray(cached, dtype=float), (n,)),
            "output_tokens_asked": output,
            "output_tokens_received": output,
            "status": "ok",
            "error": None,
            "prompt_digest": [f"p{i}" for i in ids],
            "output_digest": [f"o{i}" for i in ids],
            "worker": 0,
            "prefix": None,
            "repeat_of": None,
            "finish_reason": "length",
            "http_status": 200,
            "ended_s": last,
            "multi_token_events": 0,
            "branch": None,
        }
    )
    for name, values in columns.items():
        frame[name] = values
    tokens = pd.DataFrame(
        {
            "id": np.repeat(ids, output),
            "index": np.tile(np.arange(output), n),
            "t_s": np.repeat(first, output) + np.repeat(gap_s, output) * np.tile(np.arange(output), n),
        }
    )
    return as_table(frame, REQUESTS), as_table(tokens, TOKENS)


def as_table(frame: pd.DataFrame, schema: pa.Schema) -> pd.DataFrame:
    """Through Arrow and back, as the rounds of a stored run come; a column that is not given is null."""
    whole = frame.assign(**{name: None for name in schema.names if name not in frame})
    return pa.Table.from_pandas(whole, schema=schema, preserve_index=False).to_pandas()


def metric_rows(series: dict[tuple[str, str | None], Sequence[float]], times: Sequence[float]) -> pd.DataFrame:
    """Canonical metrics: (name, source) → value at each scrape."""
    rows = [
        {"t_s": t, "name": name, "labels": json.dumps({} if source is None else {"source": source}), "value": value}
        for (name, source), values in series.items()
        for t, value in zip(times, values, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=METRICS.names)
    return as_table(frame, METRICS)


@lru_cache
def source_metrics(device: float, host: float, disk: float, computed: float) -> pd.DataFrame:
    """Counters that grow by these tokens in the measured part and by a tenth of it before."""
    grown = {"device": device, "host": host, "disk": disk, "computed": computed}
    times = [5.0, WARM_S, WARM_S + MEASURED_S + 20]
    sources = metric_rows(
        {("prompt_tokens_by_source", source): [0.1 * n, 0.1 * n, 1.1 * n] for source, n in grown.items()}, times
    )
    return pd.concat([sources, identity_rows(*((t_s, "load", "prompt-tokens", 0.0) for t_s in times))])


def identity_rows(*told: tuple[float, str, str, float]) -> pd.DataFrame:
    """Rows of (seconds, where, identity, share that is missed)."""
    rows = [
        {"t_s": t_s, "name": "identity_gap", "labels": json.dumps({"at": at, "identity": which}), "value": share}
        for t_s, at, which, share in told
    ]
    return as_table(pd.DataFrame(rows, columns=METRICS.names), METRICS)


@lru_cache
def host_rows(steal: float = 0.0, foreign: float = 0.05, swapped: float = 0.0) -> pd.DataFrame:
    """Every ten seconds of the measured part; `swapped` bytes go out half-way."""
    rows = [
        {"t_s": float(t), "name": name, "value": value}
        for t in range(int(WARM_S), int(WARM_S + MEASURED_S), 10)
        for name, value in (
            ("steal_cores", steal),
            ("cpu_foreign_cores", foreign),
            ("swap_used_bytes", 2.0**30 + (swapped if t > WARM_S + MEASURED_S / 2 else 0)),
        )
    ]
    return as_table(pd.DataFrame(rows), HOST)


def arm_round(
    arm: str,
    index: int,
    requests: pd.DataFrame,
    tokens: pd.DataFrame,
    *,
    sources: Sequence[float] = (0, 0, 0, 1),
    **more: Any,
) -> ArmRound:
    facts: dict[str, Any] = {
        "launch": f"{arm}-{index}",
        "metrics": source_metrics(*sources),
        "host": host_rows(),
        "scrapes": SCRAPES,
        "complete": True,
    }
    return ArmRound(arm=arm, index=index, requests=requests, tokens=tokens, **facts | more)


@lru_cache(maxsize=256)
def pair(
    index: int,
    *,
    ratio: float = 1.0,
    n: int = 400,
    median: float = 1.0,
    noise: float = 0.02,
    hits: float = 0.0,
    sources: tuple[float, ...] = (1000, 2000, 3000, 4000),
    names: tuple[str, str] = ("base", "tiered"),
) -> RoundPair:
    """A pair whose candidate has `ratio` times the TTFT of the baseline, with a little noise of its own.

    `hits` of the candidate's requests had most of their prompt in a tier.
    """
    base = ttfts(n, median, seed=index)
    wobble = np.exp(np.random.default_rng(1000 + index).normal(0, noise, 2))
    cached = np.where(np.arange(n) < hits * n, 0.9 * PROMPT, 0)
    baseline = arm_round(names[0], index, *request_rows(base * wobble[0], gaps=0.02 * wobble[0]))
    candidate = arm_round(
        names[1],
        index,
        *request_rows(base * ratio * wobble[1], gaps=0.02 * wobble[1], cached=cached),
        sources=sources,
        expected_sources={"device": 1.0, "host": 1.0, "disk": 1.0, "computed": 1.0},
    )
    return RoundPair(index, baseline, candidate)


def comparison(pairs: Sequence[RoundPair], the_rules: Rules | None = None, **more: Any) -> Comparison:
    facts: dict[str, Any] = {
        "baseline": BASELINE,
        "candidate": TIERED,
        "workload": workload(),
        "rules": the_rules or rules(),
        "pairs": tuple(pairs),
        "rounds_planned": len(pairs),
    }
    return Comparison(**facts | more)


def good_pairs(k: int = 3, **more: Any) -> list[RoundPair]:
    """A tier that works: a third of the TTFT, half of the requests served by it."""
    return [pair(index, **{"ratio": 0.3, "hits": 0.5} | more) for index in range(1, k + 1)]


def same_pairs(k: int = 3, **more: Any) -> list[RoundPair]:
    """An arm against itself."""
    return [
        pair(index, **{"names": ("base", "copy"), "sources": (500, 0, 0, 500)} | more) for index in range(1, k + 1)
    ]


def against_itself(pairs: Sequence[RoundPair], the_rules: Rules | None = None, **more: Any) -> Comparison:
    return comparison(pairs, the_rules, candidate=COPY, **more)


BY_SOURCE = "prompt_tokens_by_source"


def counters(
    device: list[float],
    computed: list[float],
    *,
    prompts: list[float] | None = None,
    cached: list[float] | None = None,
) -> pd.DataFrame:
    """Scraped before the first request and after the last."""
    series: dict[tuple[str, str | None], list[float]] = {
        (BY_SOURCE, "device"): device,
        (BY_SOURCE, "computed"): computed,
    }
    if prompts is not None:
        series["prompt_tokens", None] = prompts
    if cached is not None:
        series["cached_tokens", None] = cached
    return metric_rows(series, [0.0, 500.0])
