"""From files to models: profiles, workloads, rules, and experiments that hold all three.

Every error is an InputError that names file, line and key; all errors of a file come in one message. Paths inside a
file (`tiers.disk.path`, a model's `./directory`, lengths) are relative to that file; `~` is the home directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kvbench.errors import InputError, Where
from kvbench.spec.document import Document, KeyPath, Lines, dotted, read_document
from kvbench.spec.empirical import with_lengths
from kvbench.spec.model import SpecFile
from kvbench.spec.problems import Problem, input_error, problems_of
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.shipped import DEFAULT_RULES, DEFAULT_WORKLOAD, Kind, find
from kvbench.spec.spelling import did_you_mean
from kvbench.spec.workload import Workload

__all__ = ["Experiment", "load_experiment", "load_profile", "load_rules", "load_workload", "where"]

S = TypeVar("S", bound=SpecFile)


@dataclass(frozen=True)
class Experiment:
    """What `compare` compares, how it drives the arms, and what decides."""

    baseline: Profile
    candidates: tuple[Profile, ...]
    workload: Workload
    rules: Rules
    allowed: tuple[str, ...] = ()
    """Keys outside the tiers in which arms may differ, such as `engine.args.max-num-seqs`."""

    @property
    def arms(self) -> tuple[Profile, ...]:
        """The baseline, then the candidates."""
        return (self.baseline, *self.candidates)

    def with_rules(self, rules: Rules) -> Experiment:
        """The same comparison under other rules."""
        return replace(self, rules=rules)


def where(spec: SpecFile, *path: str | int) -> Where | None:
    """The place of a key in the file that `spec` came from; None when it came from no file.

    `where(profile, "tiers.disk.path")`, or part by part where a name may hold a dot.
    """
    first = path[0] if path else ""
    parts: KeyPath = tuple(first.split(".")) if len(path) == 1 and isinstance(first, str) and first else path
    return spec._origin.where(parts)


def load_profile(source: str | Path) -> Profile:
    """From a file, or a shipped name such as `cpu/baseline`."""
    return _load(Profile, "profile", source)


def load_workload(source: str | Path) -> Workload:
    """From a file, or a shipped name such as `mixed`."""
    return _load(Workload, "workload", source)


def load_rules(source: str | Path) -> Rules:
    """From a file, or a shipped name such as `default`."""
    return _load(Rules, "rules", source)


def load_experiment(source: str | Path) -> Experiment:
    """From a file with `experiment: {baseline, candidates, workload, rules, allow_differences}`.

    Each member is written inline, or is a path relative to the file, or a shipped name; workload and rules may be
    left out (`mixed`, `default`), and so may `allow_differences` (keys outside the tiers; none).
    """
    document = read_document(find("profile", source))
    top = document.data
    if not isinstance(top, dict) or "experiment" not in top:
        raise InputError(
            "is not an experiment: it has no key 'experiment'",
            where=Where(document.file),
            do="to compare profiles, name at least two: kvbench compare BASELINE.yaml CANDIDATE.yaml",
        )
    return _Members(document).experiment()


def _load(model: type[S], kind: Kind, source: str | Path) -> S:
    document = read_document(find(kind, source))
    spec, problems = _validated(model, document, ())
    if spec is None:
        raise input_error(problems)
    return spec


# What the top level of each kind of file may hold, to recognise one given in the place of another.
_KEYS: dict[str, set[str]] = {
    "an experiment": {"experiment"},
    "a profile": {"engine", "tiers"},
    "a workload": {"arrivals", "phases", "classes"},
    "rules": {"guardrails", "benefits", "evidence", "validity"},
}
_NOUNS: dict[type[SpecFile], str] = {Profile: "a profile", Workload: "a workload", Rules: "rules"}


def _validated(model: type[S], document: Document, prefix: KeyPath) -> tuple[S | None, list[Problem]]:
    data, noun = document.value(prefix), _NOUNS[model]
    place = Where(document.file, document.lines[prefix].key, dotted(prefix) or None)
    if not isinstance(data, dict):
        return None, [Problem(place, f"expected {noun}: keys with values beneath")]
    for other, keys in _KEYS.items():
        if other != noun and keys & data.keys() and not _KEYS[noun] & data.keys():
            return None, [Problem(place, f"this looks like {other}; expected {noun}")]
    try:
        spec = model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        return None, problems_of(error, model, document, prefix)
    return _resolved(spec, document, prefix), []


def _resolved(spec: S, document: Document, prefix: KeyPath) -> S:
    """Paths made absolute, lengths read, and the origin noted."""
    folder = document.file.resolve().parent
    if isinstance(spec, Profile):
        spec = _with_absolute_paths(spec, folder)  # type: ignore[assignment]
    elif isinstance(spec, Workload):
        spec = _with_absolute_trace(with_lengths(spec, folder), folder)  # type: ignore[assignment]
    spec._origin = document.origin(prefix)
    return spec


def _with_absolute_paths(profile: Profile, folder: Path) -> Profile:
    engine, tiers = profile.engine, profile.tiers
    if engine.kind != "attached" and engine.model.startswith(("./", "../", "~")):
        engine = engine.model_copy(update={"model": str(_absolute(Path(engine.model), folder))})
    named = {"ca_file": engine.ca_file, "tokenizer": engine.tokenizer}
    engine = engine.model_copy(update={k: _absolute(file, folder) for k, file in named.items() if file is not None})
    if tiers.disk is not None:
        disk = tiers.disk.model_copy(update={"path": _absolute(tiers.disk.path, folder)})
        tiers = tiers.model_copy(update={"disk": disk})
    return profile.model_copy(update={"engine": engine, "tiers": tiers})


def _with_absolute_trace(workload: Workload, folder: Path) -> Workload:
    if workload.arrivals.trace is None:
        return workload
    trace = workload.arrivals.trace
    trace = trace.model_copy(update={"path": _absolute(trace.path, folder)})
    return workload.model_copy(update={"arrivals": workload.arrivals.model_copy(update={"trace": trace})})


def _absolute(path: Path, folder: Path) -> Path:
    """Links are kept: engines hash the spelling of a path into their namespaces."""
    return Path(os.path.normpath(folder / path.expanduser()))


class _Members:
    """Reads the members of an experiment; problems of everything written inline come in one error."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._problems: list[Problem] = []

    def experiment(self) -> Experiment:
        self._check_keys()
        path: KeyPath = ("experiment",)
        baseline = self._member(Profile, "profile", (*path, "baseline"))
        candidates = [
            self._member(Profile, "profile", member) for member in self._candidate_paths((*path, "candidates"))
        ]
        workload = self._member(Workload, "workload", (*path, "workload"), DEFAULT_WORKLOAD)
        rules = self._member(Rules, "rules", (*path, "rules"), DEFAULT_RULES)
        found = [candidate for candidate in candidates if candidate is not None]
        allowed = self._allowed((*path, "allow_differences"))
        if self._problems or baseline is None or workload is None or rules is None:
            raise input_error(self._problems)
        return Experiment(baseline, tuple(found), workload, rules, allowed)

    def _allowed(self, path: KeyPath) -> tuple[str, ...]:
        written = self._document.value(path) if path in self._document.lines else []
        if isinstance(written, list) and all(isinstance(key, str) for key in written):
            return tuple(written)
        self._blame(path, "expected a list of keys such as [engine.args.max-num-seqs]")
        return ()

    def _check_keys(self) -> None:
        top = self._document.value(())
        inner = self._document.value(("experiment",))
        for key in top if isinstance(top, dict) else ():
            if key != "experiment":
                self._blame(
                    (key,), "unknown key beside experiment: put it inside, or in a file of its own", key=True
                )
        if not isinstance(inner, dict):
            self._blame(("experiment",), "expected the keys baseline, candidates, workload, rules")
            raise input_error(self._problems)
        valid = ("baseline", "candidates", "workload", "rules", "allow_differences")
        for key in inner:
            if key not in valid:
                self._blame(("experiment", key), f"unknown key{did_you_mean(key, valid, 'keys')}", key=True)
        for key in ("baseline", "candidates"):
            if key not in inner:
                self._blame(("experiment",), f"needs the key '{key}'", key=True)

    def _candidate_paths(self, path: KeyPath) -> list[KeyPath]:
        """One candidate may stand without a list."""
        if path not in self._document.lines:
            return []
        written = self._document.value(path)
        if not isinstance(written, list):
            return [path]
        if not written:
            self._blame(path, "needs at least one candidate")
        return [(*path, i) for i in range(len(written))]

    def _member(self, model: type[S], kind: Kind, path: KeyPath, default: str | None = None) -> S | None:
        if path not in self._document.lines:
            return _load(model, kind, default) if default is not None else None
        written = self._document.value(path)
        if isinstance(written, dict):
            spec, problems = _validated(model, self._document, path)
            self._problems += problems
            return spec
        if not isinstance(written, str):
            self._blame(path, f"expected {_NOUNS[model]}, a path to a file with it, or a shipped name")
            return None
        try:
            file = find(kind, written, beside=self._document.file.parent)
        except InputError as error:
            self._blame(path, str(error))
            return None
        return _load(model, kind, file)

    def _blame(self, path: KeyPath, text: str, *, key: bool = False) -> None:
        line = self._document.lines.get(path, Lines(1, 1))
        self._problems.append(
            Problem(Where(self._document.file, line.key if key else line.value, dotted(path)), text)
        )
