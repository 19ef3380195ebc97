"""What is predicted of a comparison's arms before it begins: from plans that the user names, or from a probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from kvbench.errors import InputError, Where
from kvbench.plan.made_for import arm_digest
from kvbench.plan.plan_file import PLAN_AGAIN, Foretold, PlanFile, parse_plan, read_plan
from kvbench.plan.planned_arm import PlannedArm, planned_arm
from kvbench.plan.planning import plan_arm
from kvbench.plan.probe_file import ProbeFile, read_probe
from kvbench.plan.setting import Wishes
from kvbench.record.atomic import write_document
from kvbench.record.content import digest
from kvbench.record.manifest import PredictionRecord
from kvbench.record.run_directory import RunDirectory
from kvbench.report.streams import say
from kvbench.report.wording import show_share
from kvbench.spec.loading import Experiment
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_seconds

__all__ = ["Predicted", "predicted", "show_predicted"]


@dataclass(frozen=True)
class Predicted:
    """Predictions by arm, and the plans that they are taken from."""

    records: tuple[PredictionRecord, ...] = ()
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """File beside run.json → document."""

    def store(self, run: RunDirectory) -> None:
        """Keep the plans in the run."""
        for name, document in self.plans.items():
            write_document(run.path / name, document)


def predicted(experiment: Experiment, plans: Sequence[Path], probe: Path | None) -> Predicted:
    """From plan files, or computed now with a probe's costs; nothing where neither is named.

    InputError when both are named, when a plan was made for another workload or for none of these arms, and when an
    arm cannot be planned.
    """
    if plans and probe is not None:
        raise InputError("--plan and --probe both say what to expect", do="leave one of them out")
    if probe is not None:
        return _planned_now(experiment, probe)
    read = [read_plan(path) for path in plans]
    for plan in read:
        _check(plan, experiment)
    names = {id(plan): f"plan-{number}.json" for number, plan in enumerate(read, 1)}
    records = [
        _record(arm, plan, foretold, names[id(plan)])
        for arm in experiment.arms
        if (found := next(_told(arm, read), None)) is not None
        for plan, foretold in [found]
    ]
    return Predicted(tuple(records), {names[id(plan)]: plan.document for plan in read})


def show_predicted(console: Console, told: Predicted) -> None:
    """For people: shares and medians of each arm."""
    for record in told.records:
        shares = _listed(record.shares, show_share)
        medians = _listed(record.ttft_p50_s, show_seconds)
        say(console, f"predicted of {record.arm} (costs: {record.costs}): {shares}; TTFT p50: {medians}")


def _listed(values: Mapping[str, float | None], show: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {show(value)}" for name, value in values.items() if value is not None)


def _check(file: PlanFile, experiment: Experiment) -> None:
    plan, place = file.plan, Where(file.path)
    if plan.made_for.workload is None:
        what = f"was made for a trace, not for the workload '{experiment.workload.name}'"
        raise InputError(what, where=place, do=PLAN_AGAIN)
    if plan.made_for.workload != digest(experiment.workload):
        raise InputError(
            f"was made for another workload ('{plan.workload}') than the one compared on now "
            f"('{experiment.workload.name}')",
            where=place,
            do=PLAN_AGAIN,
        )
    if not any(True for arm in experiment.arms for _ in _told(arm, [file])):
        names = ", ".join(arm.name for arm in experiment.arms)
        raise InputError(
            f"was made for another profile ('{plan.profile}') than any of the arms ({names})",
            where=place,
            do=PLAN_AGAIN,
        )


def _told(arm: Profile, files: Sequence[PlanFile]) -> Iterator[tuple[PlanFile, Foretold]]:
    """What plans say of an arm: the one made for it, else one made for tiers behind the same device."""
    own = arm_digest(arm)
    yield from ((file, file.plan.prediction) for file in files if file.plan.made_for.profile == own)
    for file in files:
        if file.plan.made_for.device_only == own and file.plan.device_only is not None:
            yield file, file.plan.device_only


def _record(arm: Profile, file: PlanFile, foretold: Foretold, name: str) -> PredictionRecord:
    return PredictionRecord(
        arm=arm.name,
        costs=file.plan.costs.source,
        shares=foretold.shares,
        ttft_p50_s={source: ttft.p50 for source, ttft in foretold.ttft_s.items()},
        rounds=foretold.rounds,
        plan=name,
    )


def _planned_now(experiment: Experiment, probe: Path) -> Predicted:
    """A plan of every arm. Pools are sized as the run sizes them: by the baseline's device and the largest host."""
    costs = read_probe(probe)
    arms = [_planned(profile, costs) for profile in experiment.arms]
    capacities = arms[0].capacities_tokens
    hosts = [arm.capacities_tokens["host"] for arm in arms if "host" in arm.capacities_tokens]
    if hosts:
        capacities["host"] = max(hosts)
    records: list[PredictionRecord] = []
    plans: dict[str, dict[str, object]] = {}
    for arm in arms:
        name = f"plan-{arm.asked.name}.json"
        plans[name] = plan_arm(experiment.workload, arm, capacities, experiment.rules.rounds.min)
        file = parse_plan(probe, plans[name])
        records.append(_record(arm.asked, file, file.plan.prediction, name))
    return Predicted(tuple(records), plans)


def _planned(profile: Profile, costs: ProbeFile) -> PlannedArm:
    try:
        return planned_arm(profile, Wishes(), costs)
    except InputError as error:
        if error.do and "--model" in error.do:
            error.do = f"{PLAN_AGAIN} --model MODEL, then give it with --plan"
        raise
