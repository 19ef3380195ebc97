"""Schedules in one line, and playing them in this process."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.load.client import Client
from kvbench.load.clock import Clock
from kvbench.load.plan import LoadPlan
from kvbench.load.player import Answered, Player
from kvbench.load.recorder import Recorder
from kvbench.load.target import Target
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment


def request(id_: int, at_s: float | None = 0.0, **changed: object) -> PlannedRequest:
    values: dict[str, object] = {
        "id": id_,
        "phase": "steady",
        "measured": True,
        "class_": "short",
        "session": None,
        "turn": 0,
        "intended_s": at_s,
        "think_s": 0.0,
        "continues": None,
        "segments": (Segment(id_ + 1, 20),),
        "output_tokens": 4,
        "prefix": None,
        "repeat_of": None,
    }
    return PlannedRequest(**(values | changed))


def schedule(
    *requests: PlannedRequest,
    for_s: float = 0.3,
    prime: tuple[PlannedRequest, ...] = (),
    concurrency: int | None = None,
    timeout_s: float = 30.0,
) -> Schedule:
    phases = (PhaseSpan("steady", 0.0, for_s, True),)
    return Schedule("test", 1, 1, phases, prime, requests, concurrency, timeout_s)


def plan_for(url: str, out: Path, **changed: object) -> LoadPlan:
    values: dict[str, object] = {
        "schedule": out / "schedule.parquet",
        "out": out,
        "arm": "baseline",
        "round": 1,
        "base_url": url,
        "model": "tiny",
        "token_id_range": (32, 255),
        "extra_body": {"ignore_eos": True, "min_tokens": "output"},
    }
    return LoadPlan.model_validate(values | changed)


@dataclass
class Played:
    complete: bool
    table: pa.Table
    requests: pd.DataFrame
    tokens: pd.DataFrame
    figures: dict[str, float | None]
    events: list[dict[str, object]]
    answered: list[Answered]

    def row(self, id_: int) -> dict[str, Any]:
        """With None where the table has null."""
        return next(row for row in self.table.to_pylist() if row["id"] == id_)

    @property
    def zero(self) -> float:
        return next(float(str(event["monotonic"])) for event in self.events if event["event"] == "started")


def play(
    planned: Schedule,
    url: str,
    out: Path,
    *,
    api_key: str | None = None,
    tls: ssl.SSLContext | None = None,
    on_answered: Callable[[Answered], None] = lambda _: None,
    **changed,
) -> Played:
    plan = plan_for(url, out, **changed)
    events: list[dict[str, object]] = []
    answered: list[Answered] = []

    def take(one: Answered) -> None:
        answered.append(one)
        on_answered(one)

    clock = Clock()
    recorder = Recorder(out)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else None
    target = Target(url, api=plan.api, headers=headers, tls=tls)
    player = Player(
        planned,
        plan,
        lambda on_over: Client(target, clock, on_over, connect_timeout_s=plan.connect_timeout_s),
        clock,
        recorder,
        report=events.append,
        answered=take,
    )
    try:
        complete = player.play()
    finally:
        recorder.close()
    recorder.complete()
    return Played(
        complete,
        pq.read_table(out / "requests.parquet"),
        pd.read_parquet(out / "requests.parquet"),
        pd.read_parquet(out / "tokens.parquet"),
        player.summary(),
        events,
        answered,
    )
