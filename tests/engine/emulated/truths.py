"""Every known truth that can be injected, with the verdict that it must end in and the rule that must name it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvbench.engine.emulated.virtual import simulate
from kvbench.judge.evidence import Comparison, RoundPair
from kvbench.judge.judge import judge
from kvbench.judge.verdict import CandidateVerdict
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule

__all__ = ["TRUTHS", "Truth", "judged", "profile"]


@dataclass(frozen=True)
class Truth:
    """What the candidate (or the baseline) has, and what must come of it."""

    id: str
    verdict: str
    rules: tuple[str, ...] = ()
    """At least one of these must have failed, or be unknown where the verdict is INCONCLUSIVE."""
    inject: dict[str, object] = field(default_factory=dict)
    in_baseline: dict[str, object] = field(default_factory=dict)
    tiers: tuple[str, ...] = ("host", "disk")


_PART = {"share": 0.1}
TRUTHS = (
    Truth("a clear win through the host tier", "GO", tiers=("host",)),
    Truth("a clear win through the disk tier", "GO"),
    Truth("nothing changed", "NO_GO|INCONCLUSIVE", tiers=()),
    Truth("slower tail", "NO_GO", ("ttft-p95",), {"slower_tail": {"share": 0.3, "by": 5.0}}),
    Truth("stalls between tokens", "NO_GO", ("itl-p95",), {"stalls": {"every": 0.1, "by": 0.5}}),
    Truth("every step slower", "NO_GO", ("ttft-p95", "itl-p95"), {"slow_steps": {"factor": 4.0}}),
    Truth("slow promotions", "NO_GO", ("hits-worth-it",), {"slow_promotions": {"factor": 300.0}}),
    Truth("useless hits", "NO_GO|INCONCLUSIVE", ("long-ttft", "hits-worth-it"), {"useless_hits": True}),
    Truth("no promotions", "NO_GO", ("promoted",), {"no_promotions": True}),
    Truth("errors", "NO_GO", ("errors",), {"errors": _PART}),
    Truth("dropped streams", "NO_GO", ("errors", "stability"), {"dropped_streams": _PART}),
    Truth("short outputs", "NO_GO", ("stability",), {"short_outputs": _PART}),
    Truth("corrupt outputs", "NO_GO", ("parity",), {"corrupt_outputs": {"share": 0.5}}),
    Truth("a restart", "NO_GO", ("stability",), {"restart": {"after": 60}}),
    Truth("death", "NO_GO", ("stability",), {"death": {"after": 60}}),
    Truth("a frozen engine", "NO_GO", ("stability",), {"freeze": {"after": 60}}),
    Truth("a restart of the baseline", "INVALID", ("engine-restarted",), in_baseline={"restart": {"after": 60}}),
    Truth("a frozen baseline", "INVALID", ("engine-frozen",), in_baseline={"freeze": {"after": 60}}),
    Truth("a counter reset", "INVALID", ("counter-reset",), {"counter_reset": {"after": 60}}),
    Truth("metrics that vanish", "INVALID", ("metrics-vanished",), {"missing_metrics": {"after": 60}}),
    Truth("no metrics at all", "INCONCLUSIVE", ("promoted",), {"missing_metrics": {"after": 0}}),
    Truth("sources that do not add up", "INVALID", ("token-sources-broken",), {"miscounted_sources": _PART}),
    Truth("prompts counted otherwise", "INVALID", ("prompt-tokens-differ",), {"miscounted_prompts": _PART}),
    Truth("another configuration", "INVALID", ("config-not-as-asked",), {"other_configuration": True}),
    Truth("residue", "INVALID", ("residue",), {"residue": True}),
)

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
        "prime": "each_prefix_once",
        "request_timeout": 30.0,
    }
)
RULES = Rules.model_validate(
    {
        "name": "truths",
        "confidence": 0.95,
        "guardrails": [
            {"id": "ttft-p95", "metric": "ttft", "quantile": 0.95, "max_ratio": 1.5},
            {"id": "itl-p95", "metric": "itl", "quantile": 0.95, "max_ratio": 1.5},
            {"id": "errors", "metric": "error_rate", "max": 0.02},
            {"id": "parity", "metric": "output_parity", "max": 0.1},
        ],
        "benefits": [{"id": "long-ttft", "metric": "ttft", "class": "long", "quantile": 0.5, "max_ratio": 0.8}],
        "evidence": [{"id": "promoted", "metric": "promoted_tokens", "min": 1}],
        "rounds": {"min": 3, "max": 3},
    }
)


def profile(name: str, tiers: tuple[str, ...], inject: dict[str, object]) -> Profile:
    """A device for a sixth of the documents; the host alone holds them all, before a disk a third."""
    blocks: dict[str, object] = {"device": {"blocks": 66}}
    if "host" in tiers:
        blocks["host"] = {"size": (120 if "disk" in tiers else 400) * 262_144}
    if "disk" in tiers:
        blocks["disk"] = {"path": f"/nowhere/{name}"}
    engine: dict[str, object] = {"kind": "emulated", "model": "tiny", "args": {"max-model-len": 4096}}
    if inject:
        engine["inject"] = inject
    return Profile.model_validate({"name": name, "engine": engine, "tiers": blocks})


def judged(truth: Truth, rounds: int = 3) -> CandidateVerdict:
    """The verdict on a comparison in virtual time."""
    baseline, candidate = profile("base", (), truth.in_baseline), profile("tier", truth.tiers, truth.inject)
    pairs = []
    for index in range(1, rounds + 1):
        schedule = build_schedule(WORKLOAD, index, block_tokens=128, capacities_tokens=None, max_model_len=4096)
        sides = [
            simulate(schedule, arm, label=f"{arm.name}-{index}").arm_round(arm.name, index)
            for arm in (baseline, candidate)
        ]
        pairs.append(RoundPair(index, *sides))
    return judge(
        Comparison(
            baseline=baseline,
            candidate=candidate,
            workload=WORKLOAD,
            rules=RULES,
            pairs=tuple(pairs),
            rounds_planned=rounds,
        )
    )
