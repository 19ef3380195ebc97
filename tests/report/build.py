"""Realistic, seeded `ReportData` for the tests of reports. Run as a script it writes every format to a folder."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from kvbench.judge.verdict import (
    Action,
    CandidateVerdict,
    ClassChange,
    Instrument,
    Outcome,
    RoundCount,
    RuleResult,
    Verdict,
)
from kvbench.record.tables import HOST, METRICS, REQUESTS, TOKENS
from kvbench.report.data import ArmFacts, HostFacts, ReportData, RoundTables
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

CLASSES = {"short": (256, 0.65), "long": (3072, 0.35)}
TTFT_S = {"device": 0.052, "host": 0.085, "disk": 0.115, "computed": None}
SHARES = {
    "baseline": {"device": 0.14, "host": 0.0, "disk": 0.0, "computed": 0.86},
    "host-and-disk": {"device": 0.44, "host": 0.12, "disk": 0.32, "computed": 0.12},
}
RULES = Rules.model_validate(
    {
        "name": "demo",
        "confidence": 0.95,
        "guardrails": [
            {"id": "ttft-p90", "metric": "ttft", "quantile": 0.9, "max_ratio": 1.5},
            {"id": "short-ttft", "metric": "ttft", "class": "short", "quantile": 0.9, "max": 2.0},
            {"id": "itl-p90", "metric": "itl", "quantile": 0.9, "max_ratio": 1.5},
            {
                "id": "sustained",
                "metric": "ttft",
                "class": "short",
                "quantile": 0.9,
                "max": 2.0,
                "sustained": {"window": 10.0, "for": 30.0},
            },
            {"id": "errors", "metric": "error_rate", "max": 0.02},
            {"id": "parity", "metric": "output_parity"},
        ],
        "benefits": [
            {"id": "long-ttft", "metric": "ttft", "class": "long", "quantile": 0.5, "max_ratio": 0.8},
            {"id": "goodput", "metric": "goodput", "min_ratio": 1.1},
        ],
        "evidence": [{"id": "promoted", "metric": "promoted_tokens", "min": 1}],
        "rounds": {"min": 3, "max": 3},
    }
)
WORKLOAD = Workload.model_validate(
    {
        "name": "demo",
        "seed": 7,
        "arrivals": {"process": "poisson", "rate": 3.0},
        "phases": [{"name": "warm", "for": 5.0, "measured": False}, {"name": "steady", "for": 40.0}],
        "classes": {
            "short": {
                "weight": 0.65,
                "prefix": {"tokens": 256, "pool": 3},
                "suffix_tokens": 64,
                "output_tokens": 16,
            },
            "long": {
                "weight": 0.35,
                "prefix": {"tokens": 3072, "pool": 12},
                "suffix_tokens": 64,
                "output_tokens": 16,
            },
        },
        "prime": "each_prefix_once",
        "repeat": 0.05,
    }
)


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


def arm_facts(name: str) -> ArmFacts:
    tiered = name != "baseline"
    argv = [
        "python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "tiny",
        "--port",
        "41873",
        "--num-gpu-blocks-override",
        "130",
        "--block-size",
        "128",
        "--enable-prompt-tokens-details",
    ]
    if tiered:
        argv += ["--kv-transfer-config", json.dumps({"kv_connector": "OffloadingConnector", "kv_role": "kv_both"})]
    return ArmFacts(
        name=name,
        role="candidate" if tiered else "baseline",
        engine="vllm",
        engine_version="0.32.0",
        model="tiny",
        tiers=("device: 130 blocks", "host: 48 MiB, lru, via native", "disk: files under cache/kv, at most 2 GiB")
        if tiered
        else ("device: 130 blocks",),
        argv=tuple(argv),
        effective=(
            ("engine version", "0.32.0"),
            ("model", "tiny"),
            ("tokens per block", "128"),
            ("device blocks", "130"),
            ("host tier", "48 MiB" if tiered else "none"),
            ("disk tier", "on" if tiered else "off"),
            ("KV data type", "bfloat16"),
        ),
        unproven=("fill level of the host tier",) if tiered else (),
    )


def build(
    outcome: Outcome = Outcome.GO,
    *,
    others: dict[str, Outcome] | None = None,
    rounds: int = 3,
    requests_a_round: int = 130,
) -> ReportData:
    """A finished comparison of `baseline` with `host-and-disk` and, where given, other candidates."""
    outcomes = {"host-and-disk": outcome, **(others or {})}
    tables = {
        arm: [one_round(arm, k, requests_a_round) for k in range(1, rounds + 1)] for arm in ("baseline", *outcomes)
    }
    verdicts = [candidate_verdict(each, name, tables) for name, each in outcomes.items()]
    worst = max(verdicts, key=lambda each: each.verdict.severity)
    verdict = Verdict(**worst.model_dump(by_alias=True), candidates=verdicts if len(verdicts) > 1 else None)
    return ReportData(
        verdict=verdict,
        name="demo",
        run_id="20260314T150926Z-demo",
        directory="results/20260314T150926Z-demo",
        started_utc=datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC),
        kvbench_version="0.1.0",
        host=HostFacts("AMD EPYC 7B13", 2, 8_330_000_000, "Linux 6.1.0"),
        arms=tuple(arm_facts(name) for name in tables),
        workload=WORKLOAD,
        rules=RULES,
        warnings=("Round 2 was repeated once: another process used 0.9 cores.",),
        rounds=tables,
    )


def hostile(data: ReportData, text: str) -> ReportData:
    """The same report with `text` wherever an engine, a server, a trace or a file could have put it."""

    def everywhere(value: object) -> object:
        if isinstance(value, str):
            return value + text
        if isinstance(value, tuple | list):
            return type(value)(everywhere(each) for each in value)
        return value

    verdict = data.verdict
    rules = [
        rule.model_copy(
            update={
                "rule": rule.rule + text,
                "class_": text,
                "text": text,
                "metric": text,
                "unit": text,
                "windows": [{text: text, "round": 1.0}],
            }
        )
        for rule in verdict.rules
    ]
    renamed: Callable[[str], str] = lambda name: name + text  # noqa: E731
    arms = tuple(
        dataclasses.replace(
            arm, **{f.name: everywhere(getattr(arm, f.name)) for f in dataclasses.fields(arm) if f.name != "role"}
        )
        for arm in data.arms
    )
    storable = text.encode("utf-8", "ignore").decode()  # a table cannot hold a lone surrogate
    spoiled = {
        renamed(arm): [
            dataclasses.replace(each, requests=each.requests.assign(**{"class": each.requests["class"] + storable}))
            for each in tables
        ]
        for arm, tables in data.rounds.items()
    }
    return dataclasses.replace(
        data,
        verdict=verdict.model_copy(
            update={
                "rules": rules,
                "baseline": renamed(verdict.baseline),
                "candidate": renamed(verdict.candidate),
                "reasons": [text],
                "not_tested": [text],
                "action": Action(disable_tier="disk", why=text),
                "sources": {renamed(arm): {**parts, text: 1.0} for arm, parts in verdict.sources.items()},
                "who_pays": [
                    change.model_copy(update={"class_": text, "metric": text}) for change in verdict.who_pays
                ],
                "latency": [{**row, "arm": renamed(str(row["arm"])), "class": text} for row in verdict.latency],
            }
        ),
        name=data.name + text,
        run_id=data.run_id + text,
        directory=data.directory + text,
        host=dataclasses.replace(data.host, cpu_model=text, kernel=text),
        arms=arms,
        warnings=(text,),
        rounds=spoiled,
    )


def main(folder: Path) -> None:
    """Write every format of every outcome, to be looked at."""
    from kvbench.report.html import render_html
    from kvbench.report.junit import render_junit
    from kvbench.report.markdown import render_markdown

    for outcome in Outcome:
        data = build(outcome)
        (folder / f"{outcome}.html").write_text(render_html(data), encoding="utf-8")
        (folder / f"{outcome}.md").write_text(render_markdown(data), encoding="utf-8")
        (folder / f"{outcome}.xml").write_text(render_junit(data), encoding="utf-8")
    several = build(Outcome.GO, others={"small-host": Outcome.NO_GO})
    (folder / "several.html").write_text(render_html(several), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
