"""Workloads that several tests of this folder use, written as a user's file would be."""

from __future__ import annotations

from kvbench.spec.workload import Workload

MIXED = {
    "name": "mixed",
    "seed": 1,
    "arrivals": {"process": "poisson", "rate": "4/s"},
    "phases": [
        {"name": "warm", "for": "20s", "measured": False},
        {"name": "steady", "for": "2m"},
        {"name": "ramp", "for": "30s", "rate": {"to": "12/s"}},
    ],
    "classes": {
        "short": {
            "weight": 0.7,
            "prefix": {"tokens": 256, "pool": 4, "popularity": {"zipf": 1.0}},
            "suffix_tokens": {"lognormal": {"median": 64, "p95": 256}},
            "output_tokens": 32,
        },
        "long": {
            "weight": 0.2,
            "prefix": {"tokens": 8192, "pool": 24, "popularity": {"zipf": 0.6}},
            "suffix_tokens": 64,
            "output_tokens": 64,
        },
        "agent": {
            "weight": 0.1,
            "turns": {"geometric": {"mean": 5}},
            "think": {"lognormal": {"median": "3s", "p95": "30s"}},
            "prefix": {"tokens": {"uniform": [1000, 2000]}, "pool": 6},
            "suffix_tokens": {"uniform": [50, 150]},
            "output_tokens": {"geometric": {"mean": 40}},
        },
    },
    "repeat": "5%",
    "prime": "each_prefix_once",
}


def workload(**changes: object) -> Workload:
    """The workload of the documentation with some keys replaced."""
    return Workload.model_validate({**MIXED, **changes})
