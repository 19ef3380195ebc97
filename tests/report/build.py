"""Realistic, seeded `ReportData` for the tests of reports. Run as a script it writes every format to a folder."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from kvbench.judge.verdict import Action, Outcome, Verdict
from kvbench.report.data import ArmFacts, HostFacts, ReportData
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload
from tests.report.rounds import one_round
from tests.report.verdicts import candidate_verdict

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
