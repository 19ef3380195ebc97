"""run.json: what a run is made of and how far it got. Everything a report needs beside the tables."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvbench.spec.crew import Crew
from kvbench.spec.model import Name
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = [
    "ArmRecord",
    "EngineEventRecord",
    "Manifest",
    "PredictionRecord",
    "RoundRecord",
    "ScrapeRecord",
    "StartRecord",
]


class RecordModel(BaseModel):
    """Base of what run.json holds: keys added by a later version are kept out of the way, not refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class StartRecord(RecordModel):
    """A command with its environment and files."""

    argv: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)


class ArmRecord(RecordModel):
    """A profile as it took part, with the command it was rendered to."""

    name: Name
    """Also a directory of the run, hence the narrow alphabet."""
    role: Literal["baseline", "candidate"]
    profile: Profile
    argv: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    beside: dict[str, StartRecord] = Field(default_factory=dict)
    """Servers that are started before the engine, by name."""


class PredictionRecord(RecordModel):
    """What was predicted of an arm before the run; see `kvbench.judge.evidence.Prediction`."""

    arm: Name
    costs: str
    shares: dict[str, float | None]
    ttft_p50_s: dict[str, float | None]
    rounds: int = 1
    plan: str
    """The file beside run.json that holds the whole plan."""


class EngineEventRecord(RecordModel):
    """See `kvbench.judge.evidence.EngineEvent`."""

    kind: Literal["died", "frozen", "restarted", "refusing"]
    t_s: float
    detail: str


class ScrapeRecord(RecordModel):
    """See `kvbench.judge.evidence.ScrapeSummary`."""

    expected: int = 0
    succeeded: int = 0
    longest_gap_ours_s: float = 0.0
    engine_stalled: int = 0
    supported: bool = True
    vanished: bool = False


class RoundRecord(RecordModel):
    """One execution of a schedule against one arm, as far as it got."""

    arm: Name
    index: int
    state: Literal["done", "spoiled", "lost", "unpaired"]
    """Only what is done counts: a spoiled round was repeated, the tables of a lost one are gone or damaged, and an
    unpaired one is whole, but another arm cannot play its schedule any more."""
    launch: str
    started_utc: str
    order: int
    """Place in the sequence of rounds of this run, from 0."""
    engine_version: str | None = None
    effective: dict[str, object] = Field(default_factory=dict)
    config_differences: list[str] = Field(default_factory=list)
    config_unknown: list[str] = Field(default_factory=list)
    residue: list[str] = Field(default_factory=list)
    residue_unknown: list[str] = Field(default_factory=list)
    events: list[EngineEventRecord] = Field(default_factory=list)
    scrapes: ScrapeRecord = ScrapeRecord()
    spoiled_attempts: int = 0
    spoiled_because: list[str] = Field(default_factory=list)
    expected_sources: dict[str, float] | None = None
    capacities: dict[str, float] = Field(default_factory=dict)
    load: dict[str, float] = Field(default_factory=dict)
    token_id_range: tuple[int, int] | None = None
    """Of the ids that prompts were made of."""
    load_faults: list[str] = Field(default_factory=list)
    """See `kvbench.judge.evidence.ArmRound`."""
    stop_remarks: list[str] = Field(default_factory=list)
    """How its engine had to be stopped, where it did not end as it was asked to."""


class Manifest(RecordModel):
    """The content of run.json (schema 1)."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    kvbench: str
    name: str
    run_id: str
    kind: Literal["compare", "run"]
    state: Literal["running", "interrupted", "failed", "finished"]
    created_utc: str
    host: dict[str, str | int | float]
    seed: int
    unit: Literal["round", "launch"] = "round"
    arms: list[ArmRecord]
    workload: Workload
    rules: Rules
    arm_differences: list[str] = Field(default_factory=list)
    """Outside the tiers, and not allowed; a comparison is not begun with any."""
    allowed_differences: list[str] = Field(default_factory=list)
    """Outside the tiers, allowed by name."""
    rendered_differences: dict[str, list[str]] = Field(default_factory=dict)
    """For each candidate, what its rendered start differs in from the baseline's."""
    warnings: list[str] = Field(default_factory=list)
    rounds_planned: int
    predictions: list[PredictionRecord] = Field(default_factory=list)
    """Of the arms that a plan was given for, or made for with what a probe measured."""
    crew: Crew = Crew()
    """Who drives the load. Not part of what is compared: the same requests go out at the same times."""
    digests: dict[str, str] = Field(default_factory=dict)
    """sha256 of the resolved profiles, workload and rules as the run began with them."""
    rounds: list[RoundRecord] = Field(default_factory=list)

    def arm(self, name: str) -> ArmRecord:
        """The arm of that name; KeyError when there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)

    def done(self, arm: str, index: int) -> RoundRecord | None:
        """The usable recording of a round, if there is one."""
        for record in self.rounds:
            if record.arm == arm and record.index == index and record.state == "done":
                return record
        return None
