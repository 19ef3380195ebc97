"""Verdicts of every outcome over seeded rounds, for the tests of reports."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from kvbench.judge.verdict import Action, CandidateVerdict, ClassChange, Instrument, Outcome, RoundCount, RuleResult
from kvbench.report.data import RoundTables
from tests.report.rounds import CLASSES


def windows(baseline: float, ratio: float) -> list[dict[str, float | str | None]]:
    wobble = (0.97, 1.02, 1.01)
    return [
        {"round": k, "baseline": baseline * w, "candidate": baseline * ratio * w * w, "ratio": ratio * w}
        for k, w in enumerate(wobble, 1)
    ]


def ratio_rule(
    rule: str, kind: str, status: str, metric: str, quantile: float | None, class_: str, values: tuple[float, ...]
) -> RuleResult:
    """`values`: baseline, effect, half-width of the decision interval (relative), limit."""
    baseline, effect, half, limit = values
    names = {"ttft": "TTFT", "itl": "ITL"}
    name = names.get(metric, metric) + (f" p{quantile * 100:g}" if quantile else "")
    verbs = {"pass": "is within", "fail": "is beyond", "unknown": "cannot be told from"}
    return RuleResult.model_validate(
        {
            "rule": rule,
            "kind": kind,
            "status": status,
            "metric": metric,
            "quantile": quantile,
            "class": class_,
            "baseline": baseline,
            "candidate": baseline * effect,
            "unit": "1/s" if metric == "goodput" else "s",
            "effect": effect,
            "ci": (effect / (1 + half * 0.8), effect * (1 + half * 0.8)),
            "decision_ci": (effect / (1 + half), effect * (1 + half)),
            "limit": limit,
            "windows": windows(baseline, effect),
            "text": f"{name} of {class_} requests {verbs[status]} the limit of ×{limit:g}.",
        }
    )


def plain_rule(rule: str, kind: str, status: str, text: str, **more: object) -> RuleResult:
    return RuleResult.model_validate({"rule": rule, "kind": kind, "status": status, "text": text, **more})


def rule_results(outcome: Outcome) -> list[RuleResult]:
    slow = outcome is Outcome.NO_GO
    lost = "unknown" if outcome is Outcome.INCONCLUSIVE else "pass"
    late = "fail" if outcome is Outcome.INVALID else "pass"
    effect = 2.31 if slow else 0.93
    return [
        plain_rule(
            "send-lag",
            "validity",
            late,
            "The client sent its requests on time.",
            metric="send_lag",
            quantile=0.99,
            candidate=0.0481 if late == "fail" else 0.0011,
            unit="s",
            limit=0.02,
        ),
        plain_rule("schedule-kept", "validity", "pass", "Planned prompt tokens match what the engine counted."),
        plain_rule("arms-differ", "validity", "pass", "The arms differ in their tiers alone."),
        plain_rule(
            "contention",
            "validity",
            "pass",
            "No other process took more than 0.5 cores.",
            unit="cores",
            candidate=0.08,
            limit=0.5,
        ),
        ratio_rule(
            "ttft-p90", "guardrail", "fail" if slow else "pass", "ttft", 0.9, "all", (1.19, effect, 0.16, 1.5)
        ),
        plain_rule(
            "short-ttft",
            "guardrail",
            "pass",
            "TTFT p90 of short requests stays below 2 s.",
            metric="ttft",
            quantile=0.9,
            baseline=0.19,
            candidate=0.16,
            effect=0.16,
            decision_ci=(0.13, 0.2),
            unit="s",
            limit=2.0,
            **{"class": "short"},
        ),
        ratio_rule(
            "itl-p90", "guardrail", lost, "itl", 0.9, "all", (0.0281, 1.04, 0.55 if lost != "pass" else 0.1, 1.5)
        ),
        plain_rule(
            "sustained",
            "guardrail",
            "pass",
            "TTFT of short requests never stayed over 2 s for 30 s.",
            metric="ttft",
            quantile=0.9,
            baseline=0.0,
            candidate=0.031,
            unit="fraction",
            limit=0.2,
            **{"class": "short"},
        ),
        plain_rule(
            "errors",
            "guardrail",
            "pass",
            "0.4 % of requests failed; at most 2 % may.",
            metric="error_rate",
            baseline=0.003,
            candidate=0.004,
            effect=0.004,
            ci=(0.0005, 0.0138),
            unit="fraction",
            limit=0.02,
        ),
        plain_rule(
            "parity",
            "guardrail",
            "pass",
            "Outputs are the same wherever prompts were.",
            metric="output_parity",
            baseline=0.0,
            candidate=0.0,
            unit="fraction",
            limit=0.005,
        ),
        plain_rule("stability", "guardrail", "pass", "No engine died, froze or answered short."),
        plain_rule(
            "promoted",
            "evidence",
            "pass",
            "74,656 tokens were promoted from the disk tier.",
            metric="promoted_tokens",
            candidate=74656,
            unit="tokens",
            limit=1,
        ),
        plain_rule(
            "hits-worth-it",
            "evidence",
            "pass",
            "A hit in the disk tier is faster than recompute.",
            metric="ttft",
            effect=0.11,
            ci=(0.09, 0.14),
            unit="ratio",
            limit=1.0,
        ),
        ratio_rule(
            "long-ttft",
            "benefit",
            "fail" if slow else "pass",
            "ttft",
            0.5,
            "long",
            (1.13, 1.9 if slow else 0.182, 0.12, 0.8),
        ),
        ratio_rule(
            "goodput", "benefit", "fail" if slow else "unknown", "goodput", None, "all", (2.61, 1.07, 0.08, 1.1)
        ),
    ]


REASONS = {
    Outcome.GO: [
        "TTFT p50 of long requests improved to ×0.182 [×0.162, ×0.204]; ×0.8 was asked for.",
        "Every guardrail holds.",
    ],
    Outcome.NO_GO: [
        "TTFT p90 of all requests grew to ×2.31 [×1.99, ×2.68]; at most ×1.5 is allowed.",
        "TTFT p50 of long requests did not improve.",
    ],
    Outcome.INCONCLUSIVE: ["ITL p90 of all requests may be within ×1.5 or beyond it: ×1.04 [×0.67, ×1.61]."],
    Outcome.INVALID: ["The client sent 1 % of its requests more than 48.1 ms late; 20 ms are allowed."],
}


def sources_of(rounds: list[RoundTables]) -> dict[str, float | None]:
    counts = dict.fromkeys(("device", "host", "disk", "computed"), 0.0)
    for tables in rounds:
        last = tables.metrics.groupby("labels")["value"].max()
        for labels, value in last.items():
            counts[json.loads(str(labels))["source"]] += float(value)
    return dict(counts)


def class_changes() -> list[ClassChange]:
    """Long requests gained; the tail of short ones pays for it."""
    rows: list[tuple[str, str, float, float, float, tuple[float, float] | None, str]] = [
        ("long", "ttft", 0.5, 1.13, 0.182, (0.162, 0.204), "gained"),
        ("long", "itl", 0.5, 0.0171, 1.01, (0.96, 1.06), "unclear"),
        ("short", "ttft", 0.5, 0.0812, 0.97, None, "unclear"),
        ("short", "ttft", 0.9, 0.19, 1.34, (1.12, 1.6), "lost"),
    ]
    return [
        ClassChange(
            class_=class_,
            metric=metric,
            quantile=quantile,
            baseline=baseline,
            candidate=baseline * effect,
            effect=effect,
            ci=ci,
            change=change,  # type: ignore[arg-type]
        )
        for class_, metric, quantile, baseline, effect, ci, change in rows
    ]


def latency_of(arm: str, rounds: list[RoundTables]) -> list[dict[str, float | str | int | None]]:
    rows: list[dict[str, float | str | int | None]] = []
    requests = pd.concat([tables.requests for tables in rounds])
    requests = requests[requests["measured"] & (requests["status"] == "ok")]
    for class_ in ("all", *CLASSES):
        part = requests if class_ == "all" else requests[requests["class"] == class_]
        values = (part["first_token_s"] - part["intended_s"]).to_numpy(dtype=float)
        quantiles = {f"p{q}": float(np.quantile(values, q / 100)) for q in (50, 90, 99)}
        rows.append({"arm": arm, "class": class_, "metric": "ttft", "count": len(values), **quantiles})
    rows.append(
        {
            "arm": arm,
            "class": "all",
            "metric": "itl",
            "count": len(requests),
            "p50": 0.017,
            "p90": 0.0283,
            "p99": 0.141,
        }
    )
    return rows


def candidate_verdict(outcome: Outcome, candidate: str, rounds: dict[str, list[RoundTables]]) -> CandidateVerdict:
    no_go = outcome is Outcome.NO_GO
    return CandidateVerdict(
        verdict=outcome,
        exit_code=outcome.exit_code,
        baseline="baseline",
        candidate=candidate,
        reasons=REASONS[outcome],
        not_tested=[
            "Restart of the engine with a filled tier.",
            "Loss of the tier while serving.",
            "Pressure on host memory.",
        ],
        action=Action(disable_tier="disk", why="it is the newest tier, and TTFT grew with it.") if no_go else None,
        rules=rule_results(outcome),
        sources={arm: sources_of(rounds[arm]) for arm in ("baseline", candidate)},
        rounds=RoundCount(
            done=3, planned=3, unit="round", needed=(9, 20) if outcome is Outcome.INCONCLUSIVE else None
        ),
        instrument=Instrument(
            send_lag_p99_s=0.00113,
            timestamp_error_p99_s=0.00021,
            scrape_coverage=0.993,
            multi_token_event_share=0.0,
            merged_events_share=0.0123,
            read_lag_p99_s=0.0031,
            loop_stall_max_s=0.0094,
            gc_pause_max_s=0.0042,
            client_cpu_cores=0.187,
            host_steal_cores=0.0,
            calibrated_capacity_events_per_s=31250.0,
            calibrated_timestamp_error_p99_s=0.00017,
            calibrated_send_lag_p99_s=0.00098,
        ),
        who_pays=class_changes(),
        latency=[row for arm in ("baseline", candidate) for row in latency_of(arm, rounds[arm])],
    )
