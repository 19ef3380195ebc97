"""What an experiment's files say about each other: errors that no single file shows; how arms differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel

from kvbench.errors import InputError
from kvbench.spec.loading import Experiment, where
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_seconds
from kvbench.spec.rules import LATENCIES, Rules
from kvbench.spec.spelling import did_you_mean
from kvbench.spec.workload import Workload

__all__ = ["check_experiment", "check_holdout", "differences", "named_differences", "tier_differences"]

# They change when and where an engine is reached, not what it does; what is injected stands for faults of its own.
_MAY_DIFFER = (
    *("base_url", "metrics_url", "api_key_env", "headers", "ca_file", "served_name", "ready_timeout"),
    "inject",
)


def check_experiment(experiment: Experiment) -> list[str]:
    """Warnings, one sentence each. InputError, with file and line, for what can never give a verdict."""
    if not experiment.candidates:
        raise InputError("nothing to compare: there is no candidate")
    _check_names(experiment)
    _check_disk_paths(experiment)
    _check_classes(experiment.rules, experiment.workload)
    _check_limits(experiment.rules)
    check_holdout(experiment.workload, experiment.arms)
    return list(_warnings(experiment))


def differences(baseline: Profile, candidate: Profile) -> tuple[str, ...]:
    """What differs outside `name` and `tiers`: `engine.args.max-model-len: 8192 against 16384`.

    Names alone for environment variables, whose values may be private.
    """
    return tuple(named_differences(baseline, candidate).values())


def named_differences(baseline: Profile, candidate: Profile) -> dict[str, str]:
    """The same by key: `engine.args.max-model-len` → its sentence."""
    found: dict[str, str] = {}
    for key in type(baseline.engine).model_fields:
        here, there = getattr(baseline.engine, key), getattr(candidate.engine, key)
        if key in _MAY_DIFFER or here == there:
            continue
        if isinstance(here, dict) and isinstance(there, dict):
            names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
            for name in names:
                of = f"engine.{key}.{name}"
                found[of] = f"{of} differs" if key == "env" else _against(of, here.get(name), there.get(name))
        else:
            found[f"engine.{key}"] = _against(f"engine.{key}", here, there)
    return found


def _against(key: str, here: object, there: object) -> str:
    shown = ["nothing" if value is None else str(value) for value in (here, there)]
    return f"{key}: {shown[0]} against {shown[1]}"


def tier_differences(baseline: Profile, candidate: Profile) -> tuple[str, ...]:
    """Dimensions of the tiers that the comparison is about: `host`, `disk`, `device.kv_dtype`."""
    found: list[str] = []
    for tier in ("host", "disk"):
        here, there = getattr(baseline.tiers, tier), getattr(candidate.tiers, tier)
        if (here is None) != (there is None):
            found.append(tier)
        elif here is not None:
            ignored = {"path"} if tier == "disk" else set()
            found += [f"{tier}.{key}" for key in _unequal(here, there) if key not in ignored]
    if baseline.tiers.secondary != candidate.tiers.secondary:
        found.append("secondary")
    return (*(f"device.{key}" for key in _unequal(baseline.tiers.device, candidate.tiers.device)), *found)


def _unequal(here: BaseModel, there: BaseModel) -> list[str]:
    return [key for key in type(here).model_fields if getattr(here, key) != getattr(there, key)]


def _check_names(experiment: Experiment) -> None:
    seen: dict[str, Profile] = {}
    for arm in experiment.arms:
        if arm.name in seen:
            first = where(seen[arm.name], "name")
            raise InputError(
                f"two arms are called '{arm.name}'"
                + (f" (the other at {first.file}:{first.line})" if first else ""),
                where=where(arm, "name"),
                do="give each profile a name of its own; the name is the arm's name in every report",
            )
        seen[arm.name] = arm


def _check_disk_paths(experiment: Experiment) -> None:
    # Where a server that runs already keeps its blocks is its own matter, and its host's.
    started = [arm for arm in experiment.arms if arm.engine.kind != "attached"]
    places = [(arm, arm.tiers.disk.path) for arm in started if arm.tiers.disk is not None]
    for (first, here), (second, there) in combinations(places, 2):
        inner, outer = _real(there), _real(here)
        if inner == outer or outer in inner.parents or inner in outer.parents:
            relation = "the same directory as" if inner == outer else "inside or around"
            raise InputError(
                f"the disk tier of '{second.name}' is {relation} that of '{first.name}' ({here})",
                where=where(second, "tiers.disk.path"),
                do="give each arm a directory of its own, or one would be served the other's blocks",
            )


def _one_server(experiment: Experiment) -> Iterator[str]:
    """All arms play the same prompts in a round, so one server serves the later arms from its caches."""
    attached = [arm for arm in experiment.arms if arm.engine.base_url is not None]
    for first, second in combinations(attached, 2):
        if _reached(first) == _reached(second):
            yield (
                f"'{first.name}' and '{second.name}' are one server, {second.engine.base_url}: what one arm was "
                "served is in its caches for the other, so a difference between them means nothing; give each arm "
                "a server of its own"
            )


def _reached(arm: Profile) -> tuple[object, ...]:
    """A gateway may lead to different servers by headers, key or model."""
    spec, parts = arm.engine, urlsplit(arm.engine.base_url or "")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").replace("localhost", "127.0.0.1")
    return parts.scheme, host, port, parts.path.rstrip("/"), spec.headers, spec.api_key_env, arm.served_name


def _real(path: Path) -> Path:
    return path.expanduser().resolve()


def _check_classes(rules: Rules, workload: Workload) -> None:
    for part in ("guardrails", "benefits", "evidence"):
        for i, rule in enumerate(getattr(rules, part)):
            if rule.class_ != "all" and rule.class_ not in workload.classes:
                guess = did_you_mean(rule.class_, ["all", *workload.classes], "classes")
                raise InputError(
                    f"rule '{rule.id}': the workload '{workload.name}' has no class '{rule.class_}'{guess}",
                    where=where(rules, part, i, "class"),
                )


def _check_limits(rules: Rules) -> None:
    if not (rules.guardrails or rules.benefits or rules.evidence):
        raise InputError("the rules hold no rule, so there is nothing to decide", where=where(rules))


def _beyond_the_timeout(rules: Rules, workload: Workload) -> Iterator[str]:
    """A latency that was cut off at the time-out may be any from there on, so it tells of no budget beyond."""
    timeout_s = workload.request_timeout
    # A failure is over every sustained budget.
    plain = [rule for rule in rules.guardrails if rule.sustained is None]
    for rule in (*plain, *rules.evidence):
        if rule.metric in LATENCIES and rule.max is not None and rule.max >= timeout_s:
            yield (
                f"rule '{rule.id}': the workload '{workload.name}' waits {show_seconds(timeout_s)} for an answer "
                "(request_timeout), so where requests are given up it is not known whether "
                f"{show_seconds(rule.max)} are kept; use a lower max, or a longer request_timeout"
            )


def check_holdout(workload: Workload, arms: Sequence[Profile]) -> None:
    """InputError when requests are to be sent past a tier that no arm has."""
    if workload.tier_holdout and not any(arm.tiers.behind_host for arm in arms):
        raise InputError(
            "no arm has a tier behind the host that requests could be sent past",
            where=where(workload, "tier_holdout"),
            do="add `disk` to the tiers of an arm (of an attached server: declare the one it has), or leave it out",
        )


def _warnings(experiment: Experiment) -> Iterator[str]:
    rules = experiment.rules
    if not rules.benefits:
        yield "the rules declare no benefit, so the verdict cannot be GO"
    yield from _hardly_decided(rules)
    yield from _beyond_the_timeout(rules, experiment.workload)
    yield from _one_server(experiment)
    measures_goodput = any(rule.metric == "goodput" for rule in (*rules.guardrails, *rules.benefits))
    if measures_goodput and not any(_has_target(class_.targets) for class_ in experiment.workload.classes.values()):
        yield "a rule is on goodput, but no class has latency targets: every completed request will count"
    for candidate in experiment.candidates:
        outside = differences(experiment.baseline, candidate)
        if outside:
            yield f"'{candidate.name}' differs from the baseline outside its tiers: {'; '.join(outside)}"
        inside = tier_differences(experiment.baseline, candidate)
        if not inside and not outside:
            yield f"'{candidate.name}' is the baseline under another name"
        if len(inside) > 1:
            yield (
                f"'{candidate.name}' changes more than one tier dimension ({', '.join(inside)}): the verdict is "
                "about all of them together and cannot tell which one it was"
            )
        if experiment.workload.tier_holdout and not candidate.tiers.behind_host:
            yield f"'{candidate.name}' has no tier behind the host, so none of its requests is held out"
        unused = [key for key in experiment.allowed if key not in named_differences(experiment.baseline, candidate)]
        if unused:
            yield f"'{candidate.name}' was allowed to differ in {', '.join(unused)}, and does not"


def _hardly_decided(rules: Rules) -> Iterator[str]:
    """Rules that may stay open to the end, which a run is allowed to try all the same."""
    each = (*rules.guardrails, *rules.benefits, *rules.evidence)
    over_rounds = [rule.id for rule in each if rule.over_rounds]
    if rules.rounds.max == 1 and over_rounds:
        yield f"one round cannot decide {', '.join(over_rounds)}: an interval over rounds needs at least 2 of them"
    for rule in each:
        if rule.metric == "error_rate" and rule.max_ratio is not None:
            yield f"rule '{rule.id}' is a ratio of error rates: unknown where no request of the baseline fails"


def _has_target(targets: BaseModel) -> bool:
    return any(getattr(targets, key) is not None for key in type(targets).model_fields)
