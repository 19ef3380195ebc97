"""Rounds as the recorder leaves them, seeded, for the tests of reports."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from kvbench.record.tables import HOST, METRICS, REQUESTS, TOKENS
from kvbench.report.data import RoundTables

CLASSES = {"short": (256, 0.65), "long": (3072, 0.35)}
TTFT_S = {"device": 0.052, "host": 0.085, "disk": 0.115, "computed": None}
SHARES = {
    "baseline": {"device": 0.14, "host": 0.0, "disk": 0.0, "computed": 0.86},
    "host-and-disk": {"device": 0.44, "host": 0.12, "disk": 0.32, "computed": 0.12},
}


def frame(rows: list[dict[str, object]], schema: object) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[field.name for field in schema])  # type: ignore[attr-defined]


def one_round(arm: str, index: int, requests_a_round: int = 130, duration_s: float = 45.0) -> RoundTables:
    """A round as the recorder leaves it: priming before time zero, a warm phase, then the measured one."""
    random = np.random.default_rng([index, len(arm), requests_a_round])
    shares = SHARES.get(arm, SHARES["host-and-disk"])
    times = np.sort(random.uniform(0, duration_s, requests_a_round))
    times = np.concatenate([np.linspace(-8, -1, 12), times])
    requests: list[dict[str, object]] = []
    tokens: list[dict[str, object]] = []
    totals = dict.fromkeys(shares, 0.0)
    served: list[tuple[float, str, float]] = []
    for number, intended in enumerate(times):
        prime = intended < 0
        class_ = "long" if prime or random.random() < CLASSES["long"][1] else "short"
        prompt = CLASSES[class_][0] + 64
        source = "computed" if prime else str(random.choice(list(shares), p=list(shares.values())))
        base = TTFT_S[source] or prompt * 0.00036
        ttft = base * random.lognormal(0, 0.18) + random.exponential(0.03)
        failed = not prime and random.random() < 0.004
        first, steps = intended + ttft, random.lognormal(np.log(0.017), 0.35, 15)
        steps[random.random(15) < 0.04] += random.exponential(0.12)
        arrivals = first + np.concatenate([[0], np.cumsum(steps)])
        cached = 0 if source == "computed" else CLASSES[class_][0]
        served.append((first, source, cached))
        served.append((first, "computed", prompt - cached))
        requests.append(
            {
                "id": number,
                "arm": arm,
                "round": index,
                "phase": "prime" if prime else ("warm" if intended < 5 else "steady"),
                "measured": intended >= 5,
                "class": class_,
                "turn": 0,
                "intended_s": intended,
                "intended_basis": "schedule",
                "sent_s": intended + 0.0008,
                "first_token_s": None if failed else first,
                "last_token_s": None if failed else float(arrivals[-1]),
                "prompt_tokens_planned": prompt,
                "prompt_tokens_engine": None if failed else prompt,
                "cached_tokens": None if failed else cached,
                "output_tokens_asked": 16,
                "output_tokens_received": 0 if failed else 16,
                "status": "error" if failed else "ok",
                "error": "timeout: no token within 120 s" if failed else None,
                "worker": 0,
            }
        )
        if not failed:
            tokens += [{"id": number, "index": k, "t_s": float(t)} for k, t in enumerate(arrivals)]
    metrics: list[dict[str, object]] = []
    for t in np.arange(-10.0, duration_s + 4):
        for source in totals:
            value = sum(count for at, name, count in served if name == source and at <= t)
            labels = json.dumps({"source": source})
            metrics.append({"t_s": t, "name": "prompt_tokens_by_source", "labels": labels, "value": value})
    host = [{"t_s": float(t), "name": "cpu_busy_cores", "value": 1.4} for t in range(int(duration_s))]
    return RoundTables(
        index, frame(requests, REQUESTS), frame(tokens, TOKENS), frame(metrics, METRICS), frame(host, HOST)
    )
