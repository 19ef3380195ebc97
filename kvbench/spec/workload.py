"""A workload: arrivals, phases and classes of requests, as the user writes it.

Lengths in tokens, times in seconds, rates per second after loading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from kvbench.spec.bounds import (
    FACTOR,
    GREATEST_CV,
    LARGEST_SEED,
    LEAST_CV,
    LONGEST_S,
    MOST_CONCURRENCY,
    MOST_TURNS,
    STEEPEST_ZIPF,
    WEIGHT,
    between,
    within,
)
from kvbench.spec.forms import form
from kvbench.spec.lengths import (
    Empirical,
    Geometric,
    Length,
    LogNormal,
    Think,
    ThinkLogNormal,
    Tokens,
    Uniform,
    usual_length,
)
from kvbench.spec.model import Misfit, Name, SpecFile, SpecModel
from kvbench.spec.paths import UserPath
from kvbench.spec.quantity import Fraction, Number, PositiveSeconds, Whole
from kvbench.spec.rates import ArrivalRate, Burst, OnOff, PhaseRate, RateTarget, Sinusoid
from kvbench.spec.session import Abort, Branch, Compact

__all__ = [
    "Abort",
    "Arrivals",
    "Branch",
    "Burst",
    "Canaries",
    "Class",
    "Compact",
    "Empirical",
    "Geometric",
    "Length",
    "LogNormal",
    "OnOff",
    "Phase",
    "Prefix",
    "RateTarget",
    "Sinusoid",
    "Targets",
    "Think",
    "ThinkLogNormal",
    "TraceSource",
    "Uniform",
    "WorkingSet",
    "Workload",
    "Zipf",
]


class Zipf(SpecModel):
    """Popularity of rank r is proportional to r ** -zipf; 0 is uniform."""

    zipf: Annotated[Number, Field(ge=0), between(0, STEEPEST_ZIPF)]


class WorkingSet(SpecModel):
    """The pool is sized so that its prefixes together are `times` the capacity of a tier."""

    of: Literal["device", "host", "disk"]
    times: Annotated[Number, Field(gt=0), within(FACTOR)]


Popularity = Annotated[
    Annotated[Literal["uniform"], Tag("bare")] | Annotated[Zipf, Tag("zipf")],
    Discriminator(
        form("zipf", bare=str),
        custom_error_type="form",
        custom_error_message="expected uniform, or {zipf: EXPONENT}",
    ),
]


class Prefix(SpecModel):
    """A pool of shared beginnings; exactly one of `pool` and `working_set`."""

    tokens: Length
    pool: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None
    """At most as many as a round may have requests."""
    working_set: WorkingSet | None = None
    popularity: Popularity = "uniform"

    @model_validator(mode="after")
    def _one_size(self) -> Prefix:
        if self.pool is None and self.working_set is None:
            raise Misfit(((), "needs a size: pool: N, or working_set: {of: device, times: 3}"))
        if self.pool is not None and self.working_set is not None:
            raise Misfit((("working_set",), "give pool or working_set, not both"))
        return self


class Targets(SpecModel):
    """Latency targets of a class, for goodput."""

    ttft: PositiveSeconds | None = None
    itl: PositiveSeconds | None = None
    tpot: PositiveSeconds | None = None
    e2e: PositiveSeconds | None = None


class Class(SpecModel):
    """A kind of request. With `turns` it is a session: each turn carries the turns before it, comes after the
    answer to the one before plus think time, and may start side branches or find its context rewritten.
    """

    weight: Annotated[Number, Field(gt=0), within(WEIGHT)] = 1.0
    prefix: Prefix | None = None
    suffix_tokens: Length
    output_tokens: Length
    turns: Length | None = None
    think: Think | None = None
    branch: Branch | None = None
    compact: Compact | None = None
    abort: Abort | None = None
    targets: Targets = Targets()

    @model_validator(mode="after")
    def _fits(self) -> Class:
        problems: list[tuple[tuple[str, ...], str]] = []
        if self.turns is None:
            for key, why in _BETWEEN_TURNS.items():
                if getattr(self, key) is not None:
                    problems.append(((key,), f"{why}; add turns"))
        problems += [
            (key, f"a session has at most {MOST_TURNS:,} turns and as many branches a turn")
            for key, length in self._counted_turns().items()
            if length is not None and usual_length(length) > MOST_TURNS
        ]
        prefix_tokens = self.prefix.tokens if self.prefix else None
        if self.compact and isinstance(prefix_tokens, int) and self.compact.to_tokens <= prefix_tokens:
            why = f"must hold the prefix, {prefix_tokens} tokens, and more"
            problems.append((("compact", "to_tokens"), why))
        if problems:
            raise Misfit(*problems)
        return self

    def _counted_turns(self) -> dict[tuple[str, ...], Length | None]:
        """Every length that counts requests of a session, by its key."""
        branch = self.branch
        return {
            ("turns",): self.turns,
            ("branch", "count"): branch.count if branch else None,
            ("branch", "turns"): branch.turns if branch else None,
        }


_BETWEEN_TURNS = {
    "think": "think time lies between turns",
    "branch": "side branches start between turns",
    "compact": "a context is rewritten between turns",
}


class Gamma(SpecModel):
    cv: Annotated[Number, Field(gt=0), between(LEAST_CV, GREATEST_CV)]


class Closed(SpecModel):
    concurrency: Annotated[Whole, Field(ge=1), between(1, MOST_CONCURRENCY)]


class TraceSource(SpecModel):
    """A recorded trace to be played: its times, sessions, lengths and block identity."""

    path: UserPath
    format: str | None = None
    """One of `kvbench.workload.traces.reading.FORMATS`; None: told from the content."""
    block_tokens: Tokens | None = None
    """Tokens that one id stands for; None: the file says, or it follows from the lengths."""
    speed: Annotated[Number, Field(gt=0), within(FACTOR)] = 1.0
    """Times and think times are divided by it."""
    scale: Annotated[Number, Field(gt=0), within(FACTOR)] = 1.0
    """Blocks become max(1, round(scale × block)) tokens, other lengths in proportion; which are equal stays."""
    limit: Tokens | None = None
    """Only so many requests, from the beginning."""
    spread: Literal["none", "batch"] = "none"
    """`batch` spreads requests of equal times over the time to the next batch."""
    sessions: Literal["wait", "times"] = "wait"
    """`wait`: a later turn waits for its predecessor plus the trace's think time, where the trace tells one."""
    tail: Literal["keep", "drop"] = "keep"
    """`drop` leaves out the tokens of a partial last block."""
    classes: Literal["one", "label"] = "one"
    """`label`: a request is of the class called like its `type` or `model` in the trace."""


_OWN_SETTINGS = ("gamma", "closed", "trace")


class Arrivals(SpecModel):
    """When requests (or sessions) begin.

    The settings of a process may also be written under it (`process: {gamma: {cv: 2}}`) or in its place
    (`closed: {concurrency: 4}`). `rate` is a number or one of the shapes in `spec.rates`.
    """

    process: Literal["poisson", "gamma", "constant", "closed", "trace"]
    rate: ArrivalRate | None = None
    gamma: Gamma | None = None
    closed: Closed | None = None
    trace: TraceSource | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        process = data.get("process")
        if isinstance(process, dict):
            if len(process) != 1 or (name := next(iter(process))) not in _OWN_SETTINGS:
                raise Misfit((("process",), "expected one process, such as poisson or {gamma: {cv: 2}}"))
            if name in data:
                raise Misfit(((name,), f"the settings of {name} are given twice"))
            return {**data, "process": name, name: process[name]}
        given = [name for name in _OWN_SETTINGS if name in data]
        return {**data, "process": given[0]} if process is None and len(given) == 1 else data

    @model_validator(mode="after")
    def _fits(self) -> Arrivals:
        problems: list[tuple[tuple[str, ...], str]] = []
        for name in _OWN_SETTINGS:
            if name == self.process and getattr(self, name) is None:
                example = {"gamma": "{cv: 2}", "closed": "{concurrency: 4}", "trace": "{path: FILE}"}[name]
                problems.append((("process",), f"process {name} needs {name}: {example}"))
            if name != self.process and getattr(self, name) is not None:
                problems.append(((name,), f"has no effect with process {self.process}"))
        open_loop = self.process in ("poisson", "gamma", "constant")
        if open_loop and self.rate is None:
            problems.append((("process",), f"process {self.process} needs rate, such as 4/s"))
        if not open_loop and self.rate is not None:
            reason = "a request follows another" if self.process == "closed" else "the trace says when (see speed)"
            problems.append((("rate",), f"has no effect with process {self.process}: {reason}"))
        if problems:
            raise Misfit(*problems)
        return self


class Phase(SpecModel):
    """A stretch of the round; in order."""

    name: Name
    for_s: PositiveSeconds = Field(alias="for")
    measured: bool = True
    rate: PhaseRate | None = None


_OF_NO_TRACE = {
    **dict.fromkeys(("prefix", "turns", "think", "branch", "compact", "abort")),
    **dict.fromkeys(("weight", "suffix_tokens", "output_tokens"), 1),
}
"""What a class of a replay has no use for, and what stands there when it was not written."""


def _plays_a_trace(arrivals: object) -> bool:
    """Of arrivals as written, in any of their spellings."""
    if isinstance(arrivals, Arrivals):
        return arrivals.trace is not None
    if not isinstance(arrivals, dict):
        return False
    process = arrivals.get("process")
    return arrivals.get("trace") is not None or (isinstance(process, dict) and "trace" in process)


class Canaries(SpecModel):
    """Requests belong to `tenants`: the members of every pool in turn, or the conversations of a class without a
    pool. Each tenant has a secret of twelve tokens, which stands once in every 64 tokens of all that it says;
    lengths, and what is shared, stay as they are. A secret that comes out in an answer to another tenant is a leak:
    NO_GO at once, however few there are.
    """

    tenants: Annotated[Whole, Field(ge=2, le=64)] = 4


class Workload(SpecFile):
    """One YAML file. `prime` says how the tiers are filled before the first phase."""

    name: Name
    seed: Annotated[Whole, Field(ge=0), between(0, LARGEST_SEED)] = 1
    arrivals: Arrivals
    phases: Annotated[list[Phase], Field(min_length=1)]
    classes: Annotated[dict[Name, Class], Field(min_length=1)]
    think_scale: Annotated[Number, Field(gt=0), within(FACTOR)] = 1.0
    repeat: Fraction = 0.0
    tier_holdout: Fraction = 0.0
    canaries: Canaries | None = None
    prime: Literal["none", "each_prefix_once"] = "none"
    """`each_prefix_once` sends every prefix of every pool once, one at a time, before the first phase."""
    request_timeout: PositiveSeconds = 120.0
    """A request that is not complete by then has failed; failures count at this value in every latency."""

    @model_validator(mode="before")
    @classmethod
    def _classes_of_a_trace(cls, data: object) -> object:
        """A replay has its lengths from the trace: classes have targets only; left out, there is one, `trace`."""
        if not isinstance(data, dict) or not _plays_a_trace(data.get("arrivals")):
            return data
        classes = data.get("classes", {"trace": {}})
        if not isinstance(classes, dict):
            return data
        lengths = {key: _OF_NO_TRACE[key] for key in ("suffix_tokens", "output_tokens")}
        filled = {name: {**lengths, **own} if isinstance(own, dict) else own for name, own in classes.items()}
        return {**data, "classes": filled}

    @model_validator(mode="after")
    def _fits(self) -> Workload:
        problems = list(self._misfits_of_phases())
        if self.arrivals.trace is not None:
            for name, class_ in self.classes.items():
                for key, absent in _OF_NO_TRACE.items():
                    if getattr(class_, key) != absent:
                        problems.append((("classes", name, key), "has no effect: the trace says it"))
            if self.canaries is not None:
                problems.append((("canaries",), "has no effect: what a trace shares belongs to no tenant"))
        if "all" in self.classes:
            problems.append((("classes", "all"), "rules use the word all for every class; choose another name"))
        if problems:
            raise Misfit(*problems)
        return self

    def _misfits_of_phases(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        seen: set[str] = set()
        for i, phase in enumerate(self.phases):
            if phase.name == "prime":
                yield ("phases", i, "name"), "prime is the name of the filling before the first phase"
            if phase.name in seen:
                yield ("phases", i, "name"), f"another phase is called {phase.name}"
            seen.add(phase.name)
            if phase.rate is not None and self.arrivals.rate is None:
                yield ("phases", i, "rate"), f"has no effect with process {self.arrivals.process}"
        if sum(phase.for_s for phase in self.phases) > LONGEST_S:
            yield ("phases",), "together they last longer than 365d"
        if not any(phase.measured for phase in self.phases):
            yield ("phases",), "no phase is measured, so nothing could be judged"
