"""A canary: which running servers are judged, against what, by which rules, and what happens on a breach.

Loading gives the file's values with paths and profiles read; nothing here reaches a server. Seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError, model_validator

from kvbench.errors import InputError, Where
from kvbench.spec.document import Document, KeyPath, read_document
from kvbench.spec.loading import load_profile, load_rules
from kvbench.spec.model import Misfit, Name, SpecFile, SpecModel
from kvbench.spec.paths import UserPath
from kvbench.spec.problems import input_error, problems_of
from kvbench.spec.profile import EnvName, Profile, check_address
from kvbench.spec.quantity import PositiveSeconds, Whole
from kvbench.spec.rules import Rules
from kvbench.spec.shipped import find

__all__ = [
    "Canary",
    "LoadedCanary",
    "OnBreach",
    "PrometheusServer",
    "Scrape",
    "Selection",
    "load_canary",
]

LABEL_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
"""Prometheus' own grammar of label names."""
HEADER_PATTERN = r"^[A-Za-z0-9-]+$"


def _url(value: str) -> str:
    check_address(value, "token_env")
    return value.rstrip("/")


Url = Annotated[str, AfterValidator(_url)]


class PrometheusServer(SpecModel):
    """Where the series are, and how to be let in. Secrets are named by environment variable, never written."""

    url: Url
    token_env: EnvName | None = None
    username_env: EnvName | None = None
    password_env: EnvName | None = None
    tenant: Annotated[str, Field(min_length=1, max_length=150)] | None = None
    """Sent as `tenant_header`; Mimir and Cortex read X-Scope-OrgID, Thanos THANOS-TENANT."""
    tenant_header: Annotated[str, Field(pattern=HEADER_PATTERN)] = "X-Scope-OrgID"
    ca_file: UserPath | None = None
    cert_file: UserPath | None = None
    key_file: UserPath | None = None
    timeout: PositiveSeconds = 10.0
    """Of one request; Prometheus answers a range of minutes in milliseconds."""
    retries: Annotated[Whole, Field(ge=0, le=10)] = 2
    """After the first try, half a second later and then twice as long each time."""

    @model_validator(mode="after")
    def _fits(self) -> PrometheusServer:
        if (self.username_env is None) != (self.password_env is None):
            given = "username_env" if self.username_env else "password_env"
            raise Misfit(((given,), "basic auth needs both username_env and password_env"))
        if self.token_env is not None and self.username_env is not None:
            raise Misfit((("token_env",), "either a bearer token or basic auth, not both"))
        if self.key_file is not None and self.cert_file is None:
            raise Misfit((("key_file",), "a client key needs its cert_file"))
        return self


class Scrape(SpecModel):
    """Servers asked directly, where there is no Prometheus: addresses of engines or of their `/metrics`."""

    baseline: list[Url] = Field(default_factory=list)
    candidate: Annotated[list[Url], Field(min_length=1)]
    token_env: EnvName | None = None
    timeout: PositiveSeconds = 5.0

    @model_validator(mode="after")
    def _fits(self) -> Scrape:
        both = [url.removesuffix("/metrics") for url in (*self.baseline, *self.candidate)]
        for url in both:
            if both.count(url) > 1:
                raise Misfit((("candidate",), f"{url} is given twice"))
        return self


class Selection(SpecModel):
    """A group of replicas: series that carry all of these labels; `profile` is what the servers run."""

    match: dict[
        Annotated[str, Field(pattern=LABEL_PATTERN)], Annotated[str, Field(min_length=1, max_length=500)]
    ] = Field(default_factory=dict)
    """Label → value; a value that begins with ~ is a regular expression, as in PromQL."""
    profile: str | None = None
    name: Name | None = None


class OnBreach(SpecModel):
    """Who is told of a proven breach. Nothing is run or sent before `armed: true`."""

    hook: Annotated[list[str], Field(min_length=1)] | None = None
    post: Url | None = None
    secret_env: EnvName | None = None
    armed: bool = False
    timeout: PositiveSeconds = 60.0
    retries: Annotated[Whole, Field(ge=0, le=10)] = 3
    """Of a POST. A command is run once: only its author knows whether it may run again."""
    within: PositiveSeconds = 600.0
    """After it, the tier must be off and TTFT back within this time; engines with large models start in minutes."""
    steady: PositiveSeconds = 60.0
    """TTFT is back when it was within its budget, or the baseline's, for so long."""
    servers: list[Url] = Field(default_factory=list)
    """The candidate's servers, asked for their configuration and for what their metrics declare."""

    @model_validator(mode="after")
    def _fits(self) -> OnBreach:
        if self.hook is not None and self.post is not None:
            raise Misfit((("post",), "either a hook or a post, not both"))
        if self.secret_env is not None and self.post is None:
            raise Misfit((("secret_env",), "signs a post; there is none"))
        if self.armed and self.hook is None and self.post is None:
            raise Misfit((("armed",), "there is nothing to arm; add hook: [argv...] or post: URL"))
        if self.steady >= self.within:
            raise Misfit((("steady",), f"cannot be reached within {self.within:g} s"))
        return self


class Canary(SpecFile):
    """One YAML file."""

    name: Name
    prometheus: PrometheusServer | None = None
    scrape: Scrape | None = None
    baseline: Selection | None = None
    candidate: Selection
    rules: Rules
    on_breach: OnBreach = OnBreach()
    replica: Annotated[str, Field(pattern=LABEL_PATTERN)] = "instance"
    """The label that tells replicas apart; Prometheus gives every target an instance."""
    warm_up: bool = True
    """Wait until the candidate's caches are filled before anything counts."""

    @property
    def has_baseline(self) -> bool:
        """Whether there is anything to compare with."""
        return bool(self.scrape.baseline) if self.scrape is not None else self.baseline is not None

    @model_validator(mode="after")
    def _fits(self) -> Canary:
        if problems := [*self._misfits_of_sources(), *self._misfits_of_rules()]:
            raise Misfit(*problems)
        return self

    def _misfits_of_sources(self) -> Iterator[tuple[KeyPath, str]]:
        if (self.prometheus is None) == (self.scrape is None):
            yield (), "needs either prometheus: {url} or scrape: {candidate: [url...]}"
            return
        for side, selection in (("baseline", self.baseline), ("candidate", self.candidate)):
            if selection is None:
                continue
            if self.prometheus is not None and not selection.match:
                yield (side,), "needs match: {label: value}, which says whose series these are"
            if self.scrape is not None and selection.match:
                yield (side, "match"), "servers that are scraped are named in scrape, not by labels"
        if self.scrape is not None and self.on_breach.servers:
            yield ("on_breach", "servers"), "servers that are scraped are asked anyway"
        if self.baseline is not None and self.baseline.match and self.baseline.match == self.candidate.match:
            yield ("candidate", "match"), "selects the same series as the baseline"

    def _misfits_of_rules(self) -> Iterator[tuple[KeyPath, str]]:
        if not self.rules.guardrails:
            yield ("rules",), "needs at least one guardrail"
        if self.has_baseline:
            return
        for part in ("guardrails", "benefits"):
            for i, rule in enumerate(getattr(self.rules, part)):
                for key in ("max_ratio", "min_ratio"):
                    if getattr(rule, key) is not None:
                        yield ("rules", part, i, key), "is against a baseline, and this canary names none"


@dataclass(frozen=True)
class LoadedCanary:
    """A canary file with the profiles that it names."""

    canary: Canary
    candidate: Profile | None
    baseline: Profile | None
    file: Path

    @property
    def names(self) -> tuple[str, str]:
        """Baseline and candidate, as a report names them."""
        canary = self.canary
        baseline = "baseline" if canary.has_baseline else "absolute budgets"
        return (
            _named(canary.baseline, baseline, [] if canary.scrape is None else canary.scrape.baseline),
            _named(canary.candidate, "candidate", [] if canary.scrape is None else canary.scrape.candidate),
        )


def _named(selection: Selection | None, fallback: str, urls: list[str]) -> str:
    if selection is not None and selection.name:
        return selection.name
    if selection is not None and selection.match:
        return ",".join(f"{label}={value}" for label, value in selection.match.items())
    return ",".join(urls) or fallback


def load_canary(source: str | Path) -> LoadedCanary:
    """From a file. `rules` and `profile` may be paths relative to it or shipped names.

    InputError names file, line and key of everything that is wrong.
    """
    document = read_document(_file(source))
    data = document.data
    if not isinstance(data, dict):
        raise InputError("expected a canary: keys with values beneath", where=Where(document.file, 1))
    for keys, other in (({"engine", "tiers"}, "a profile"), ({"guardrails"}, "rules"), ({"classes"}, "a workload")):
        if keys & data.keys() and "candidate" not in data:
            raise InputError(f"this looks like {other}; expected a canary", where=Where(document.file, 1))
    if isinstance(data.get("rules"), str):
        data = {**data, "rules": load_rules(_beside(document, ("rules",), "rules"))}
    try:
        canary = Canary.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        raise input_error(problems_of(error, Canary, document, ())) from None
    canary = _with_absolute_paths(canary, document.file.resolve().parent)
    canary._origin = document.origin()
    profiles = {side: _profile(document, side) for side in ("candidate", "baseline")}
    return LoadedCanary(canary, profiles["candidate"], profiles["baseline"], document.file)


def _file(source: str | Path) -> Path:
    try:
        path = Path(source).expanduser()
    except RuntimeError:
        raise InputError(f"{str(source)[:200]} cannot be read: there is no such home directory") from None
    if path.is_dir():
        raise InputError("is a directory; name a file in it", where=Where(path))
    return path


def _profile(document: Document, side: str) -> Profile | None:
    if (side, "profile") not in document.lines:
        return None
    return load_profile(_beside(document, (side, "profile"), "profile"))


def _beside(document: Document, path: KeyPath, kind: str) -> Path:
    """The file that a value of this file means; InputError stands at that value."""
    try:
        return find("rules" if kind == "rules" else "profile", str(document.value(path)), document.file.parent)
    except InputError as error:
        raise InputError(error.what, where=document.origin().where(path), do=error.do) from None


def _with_absolute_paths(canary: Canary, folder: Path) -> Canary:
    server = canary.prometheus
    if server is None:
        return canary
    files = {
        key: Path(os.path.normpath(folder / path.expanduser()))
        for key in ("ca_file", "cert_file", "key_file")
        if (path := getattr(server, key)) is not None
    }
    return canary.model_copy(update={"prometheus": server.model_copy(update=files)}) if files else canary
