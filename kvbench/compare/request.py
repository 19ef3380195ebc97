"""What a user asked `compare` or `run` for, read and checked. Imports little: mistakes are told at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.console import Console

from kvbench.errors import InputError
from kvbench.record.manifest import Manifest
from kvbench.report.streams import say
from kvbench.spec.crosscheck import check_experiment, check_holdout
from kvbench.spec.loading import Experiment, load_experiment, load_profile, load_rules, load_workload
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rounds, Rules
from kvbench.spec.shipped import DEFAULT_RULES, DEFAULT_WORKLOAD
from kvbench.spec.support import check_supported
from kvbench.spec.workload import Workload

__all__ = ["Request", "check_same", "prepared", "read_arm"]


@dataclass(frozen=True)
class Request:
    """What the user asked `compare` for. None: not said."""

    profiles: list[str]
    workload: str | None = None
    rules: str | None = None
    rounds: int | None = None
    allow: tuple[str, ...] = ()
    """Keys outside the tiers in which arms may differ."""


def prepared(request: Request, console: Console) -> tuple[Experiment, list[str]]:
    """A request that can be carried out, and warnings, which are shown. InputError names file and line."""
    experiment = _read(request)
    check_supported(experiment.workload)
    check_supported(experiment.rules)
    warnings = check_experiment(experiment)
    for warning in warnings:
        say(console, f"note: {warning}")
    return experiment, warnings


def read_arm(profile: str, workload: str) -> tuple[Profile, Workload]:
    """What `run` records. InputError names file and line."""
    arm, load = load_profile(profile), load_workload(workload)
    check_holdout(load, [arm])
    check_supported(load)
    return arm, load


def check_same(request: Request, manifest: Manifest) -> None:
    """InputError when what is said beside `--resume` is not what the run began with; nothing need be said."""
    said: dict[str, tuple[object, object]] = {}
    if request.profiles:
        experiment = _read(request)
        said["profiles"] = (list(experiment.arms), [arm.profile for arm in manifest.arms])
        if len(request.profiles) == 1:
            said["workload"] = (experiment.workload, manifest.workload)
            said["rules"] = (_with_rounds(experiment.rules, manifest), manifest.rules)
    if request.allow:
        from kvbench.compare.difference import allowed_differences  # brings every engine along

        asked = _read(request) if request.profiles else _recorded(manifest, request.allow)
        said["allowed differences"] = (allowed_differences(asked), manifest.allowed_differences)
    if request.workload is not None:
        said["workload"] = (load_workload(request.workload), manifest.workload)
    if request.rules is not None:
        said["rules"] = (_with_rounds(load_rules(request.rules), manifest), manifest.rules)
    if request.rounds is not None:
        said["rounds"] = (request.rounds, manifest.rounds_planned)
    changed = [name for name, (now, then) in said.items() if now != then]
    if changed:
        raise InputError(
            f"the run began with other {' and other '.join(changed)} than are given now",
            do="leave them out: a run knows its own; or begin a new run",
        )


def _recorded(manifest: Manifest, allowed: tuple[str, ...]) -> Experiment:
    """What the run is about, with these differences allowed."""
    baseline, *candidates = [arm.profile for arm in manifest.arms]
    return Experiment(baseline, tuple(candidates), manifest.workload, manifest.rules, allowed)


def _with_rounds(rules: Rules, manifest: Manifest) -> Rules:
    """How many rounds there are may have been said beside the file."""
    return rules.model_copy(update={"rounds": manifest.rules.rounds})


def _read(request: Request) -> Experiment:
    """The files of a request. What is said on the command line takes the place of an experiment's own."""
    if not request.profiles:
        raise InputError(
            "nothing to compare",
            do="kvbench compare BASELINE.yaml CANDIDATE.yaml, or kvbench compare EXPERIMENT.yaml",
        )
    if len(request.profiles) == 1:
        experiment = load_experiment(request.profiles[0])
        if request.workload is not None:
            experiment = replace(experiment, workload=load_workload(request.workload))
        if request.rules is not None:
            experiment = experiment.with_rules(load_rules(request.rules))
    else:
        baseline, *candidates = [load_profile(path) for path in request.profiles]
        experiment = Experiment(
            baseline=baseline,
            candidates=tuple(candidates),
            workload=load_workload(request.workload or DEFAULT_WORKLOAD),
            rules=load_rules(request.rules or DEFAULT_RULES),
        )
    experiment = replace(experiment, allowed=tuple(dict.fromkeys((*experiment.allowed, *request.allow))))
    if request.rounds is not None:
        rounds = Rounds(min=request.rounds, max=request.rounds)
        experiment = experiment.with_rules(experiment.rules.model_copy(update={"rounds": rounds}))
    return experiment
