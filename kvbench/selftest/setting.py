"""What each truth is told in: one small workload, one set of rules, a baseline without tiers. Times in seconds."""

from __future__ import annotations

from collections.abc import Mapping

from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = ["BLOCK_TOKENS", "MAX_MODEL_LEN", "ROUNDS", "RULES", "WORKLOAD", "profile"]

ROUNDS = 3
"""Pairs of rounds: the fewest that carry an interval. Injected truths are far beyond every margin."""
BLOCK_TOKENS = 128
MAX_MODEL_LEN = 4096

WORKLOAD = Workload.model_validate(
    {
        "name": "truths",
        "seed": 5,
        "arrivals": {"process": "poisson", "rate": 2.5},
        "phases": [{"name": "steady", "for": 40.0}],
        "classes": {
            "long": {
                "weight": 0.6,
                "prefix": {"tokens": 1536, "pool": 24, "popularity": "uniform"},
                "suffix_tokens": 64,
                "output_tokens": 16,
            },
            "short": {
                "weight": 0.4,
                "prefix": {"tokens": 128, "pool": 3, "popularity": "uniform"},
                "suffix_tokens": 64,
                "output_tokens": 16,
            },
        },
        "repeat": 0.05,
        "canaries": {"tenants": 4},
        "prime": "each_prefix_once",
        "request_timeout": 30.0,
    }
)
# Every kind of guardrail: against the baseline and absolute, of all requests and of a class, sustained, a rate that
# must not fall, and those that are counted.
RULES = Rules.model_validate(
    {
        "name": "truths",
        "confidence": 0.95,
        "guardrails": [
            {"id": "ttft-p95", "metric": "ttft", "quantile": 0.95, "max_ratio": 1.5},
            {"id": "itl-p95", "metric": "itl", "quantile": 0.95, "max_ratio": 1.5},
            {"id": "short-ttft", "metric": "ttft", "class": "short", "quantile": 0.9, "max": 2.0},
            {
                "id": "rollback",
                "metric": "ttft",
                "quantile": 0.9,
                "max": 4.0,
                "sustained": {"window": 14.0, "for": 20.0},
            },
            {"id": "goodput", "metric": "goodput", "min_ratio": 0.8},
            {"id": "errors", "metric": "error_rate", "max": 0.02},
            {"id": "parity", "metric": "output_parity", "max": 0.1},
        ],
        "benefits": [{"id": "long-ttft", "metric": "ttft", "class": "long", "quantile": 0.5, "max_ratio": 0.8}],
        "evidence": [{"id": "promoted", "metric": "promoted_tokens", "min": 1}],
        "rounds": {"min": ROUNDS, "max": ROUNDS},
    }
)


def profile(name: str, tiers: tuple[str, ...], inject: Mapping[str, object]) -> Profile:
    """A device for a sixth of the documents; the host alone holds them all, before a disk a third."""
    blocks: dict[str, object] = {"device": {"blocks": 66}}
    if "host" in tiers:
        blocks["host"] = {"size": (120 if "disk" in tiers else 400) * 262_144}
    if "disk" in tiers:
        blocks["disk"] = {"path": f"/nowhere/{name}"}
    engine: dict[str, object] = {
        "kind": "emulated",
        "model": "tiny",
        "args": {"max-model-len": MAX_MODEL_LEN},
    }
    if inject:
        engine["inject"] = dict(inject)
    return Profile.model_validate({"name": name, "engine": engine, "tiers": blocks})
