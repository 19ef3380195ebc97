"""Every known truth that can be injected, with the verdict that it must end in and the rule that must name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvbench.errors import InputError
from kvbench.judge.verdict import Outcome

__all__ = ["TRUTHS", "Truth", "chosen"]


@dataclass(frozen=True)
class Truth:
    """What the candidate (or the baseline) has, and what must come of it."""

    id: str
    text: str
    """One plain sentence without its full stop."""
    expected: tuple[Outcome, ...]
    """The verdicts that are right."""
    rules: tuple[str, ...]
    """Of these rules or findings at least one must have the status that the verdict stands for."""
    inject: Mapping[str, object] = field(default_factory=dict)
    """Keys of `engine.inject` of the candidate."""
    in_baseline: Mapping[str, object] = field(default_factory=dict)
    """Keys of `engine.inject` of the baseline."""
    tiers: tuple[str, ...] = ("host", "disk")
    """Behind the device of the candidate; the baseline has none."""
    rounds: int = 3
    """Pairs of rounds: the fewest that carry an interval, unless the truth is nearer to a limit than most are."""

    @property
    def injected(self) -> str:
        """In words: into which arm, and what."""
        arms = (("candidate", self.inject), ("baseline", self.in_baseline))
        parts = [f"{arm}: {key}{_settings(value)}" for arm, injections in arms for key, value in injections.items()]
        return "; ".join(parts) or "nothing"


def _settings(value: object) -> str:
    if not isinstance(value, Mapping):
        return ""
    return " " + ", ".join(f"{name} {amount:g}" for name, amount in value.items())


def chosen(ids: Sequence[str]) -> tuple[Truth, ...]:
    """The truths of these ids in the order of `TRUTHS`; all of them without any. InputError for an unknown id."""
    known = [truth.id for truth in TRUTHS]
    foreign = [id_ for id_ in ids if id_ not in known]
    if foreign:
        raise InputError(f"there is no truth {', '.join(foreign)}", do=f"choose from {', '.join(known)}")
    return tuple(truth for truth in TRUTHS if not ids or truth.id in ids)


_GO, _NO_GO = (Outcome.GO,), (Outcome.NO_GO,)
_INVALID, _INCONCLUSIVE = (Outcome.INVALID,), (Outcome.INCONCLUSIVE,)
_NOT_GO = (Outcome.NO_GO, Outcome.INCONCLUSIVE)
_PART = {"share": 0.1}
_MIDWAY = {"after": 60}

TRUTHS = (
    Truth(
        "win-through-host",
        "a host tier that holds all clearly wins",
        _GO,
        ("long-ttft",),
        tiers=("host",),
    ),
    Truth("win-through-disk", "a disk behind a host tier that is too small clearly wins", _GO, ("long-ttft",)),
    Truth("nothing-changed", "both arms are the same, which is never a GO", _NOT_GO, ("long-ttft",), tiers=()),
    Truth(
        "slower-tail",
        "three in ten requests wait 5 s longer for their first token",
        _NO_GO,
        ("ttft-p95",),
        {"slower_tail": {"share": 0.3, "by": 5.0}},
    ),
    Truth(
        "over-budget",
        "three in ten short requests wait 5 s longer for their first token, whatever the baseline does",
        _NO_GO,
        ("short-ttft",),
        {"slower_tail": {"share": 0.3, "by": 5.0}},
    ),
    Truth(
        "sustained",
        "three in ten requests wait 5 s longer for their first token, all the time",
        _NO_GO,
        ("rollback",),
        {"slower_tail": {"share": 0.3, "by": 5.0}},
    ),
    Truth(
        "given-up",
        "three in ten requests wait so long for their first token that their clients give up",
        _NO_GO,
        ("errors",),
        {"slower_tail": {"share": 0.3, "by": 40.0}},
    ),
    Truth(
        "stalls",
        "every so often all streams under way pause for half a second",
        _NO_GO,
        ("itl-p95",),
        {"stalls": {"every": 0.1, "by": 0.5}},
    ),
    Truth(
        "slow-steps",
        "every step takes four times as long",
        _NO_GO,
        ("ttft-p95", "itl-p95"),
        {"slow_steps": {"factor": 4.0}},
    ),
    Truth(
        "slow-promotions",
        "loading from a tier takes longer than computing anew",
        _NO_GO,
        ("hits-worth-it",),
        {"slow_promotions": {"factor": 300.0}},
    ),
    Truth(
        "useless-hits",
        "what a tier delivers is counted, and then computed all the same",
        _NOT_GO,
        ("long-ttft", "hits-worth-it"),
        {"useless_hits": True},
    ),
    Truth(
        "no-benefit",
        "hits save nothing, and six rounds are enough to refute the benefit",
        _NO_GO,
        ("long-ttft",),
        {"useless_hits": True},
        rounds=6,
    ),
    Truth(
        "no-promotions",
        "the tiers take blocks in and never give one back",
        _NO_GO,
        ("promoted",),
        {"no_promotions": True},
    ),
    Truth("errors", "one request in ten is answered with status 500", _NO_GO, ("errors",), {"errors": _PART}),
    Truth(
        "half-lost",
        "every other request is answered with status 500, so half as many are served",
        _NO_GO,
        ("goodput",),
        {"errors": {"share": 0.5}},
    ),
    Truth(
        "refusal",
        "every request is answered with status 500 while /health stays 200",
        _NO_GO,
        ("stability",),
        {"errors": {"share": 1.0}},
    ),
    Truth(
        "dropped-streams",
        "one answer in ten breaks off in the middle",
        _NO_GO,
        ("errors",),
        {"dropped_streams": _PART},
    ),
    Truth(
        "short-outputs",
        "one answer in ten stops after half its tokens",
        _NO_GO,
        ("stability",),
        {"short_outputs": _PART},
    ),
    Truth(
        "corrupt-outputs",
        "half the answers to prompts from a tier have other tokens",
        _NO_GO,
        ("parity",),
        {"corrupt_outputs": {"share": 0.5}},
    ),
    Truth(
        "leaked-outputs",
        "one answer in twenty to prompts from a tier is a passage of another prompt",
        _NO_GO,
        ("canaries",),
        {"leaked_outputs": {"share": 0.05}},
    ),
    Truth("restart", "the candidate's engine restarts", _NO_GO, ("stability",), {"restart": _MIDWAY}),
    Truth("death", "the candidate's engine dies", _NO_GO, ("stability",), {"death": _MIDWAY}),
    Truth(
        "freeze",
        "the candidate's engine makes no token any more while /health stays 200",
        _NO_GO,
        ("stability",),
        {"freeze": _MIDWAY},
    ),
    Truth(
        "baseline-restart",
        "the baseline's engine restarts",
        _INVALID,
        ("engine-restarted",),
        in_baseline={"restart": _MIDWAY},
    ),
    Truth(
        "baseline-freeze",
        "the baseline's engine makes no token any more",
        _INVALID,
        ("engine-frozen",),
        in_baseline={"freeze": _MIDWAY},
    ),
    Truth(
        "baseline-refusal",
        "the baseline's engine answers every request with status 500",
        _INVALID,
        ("engine-refusing",),
        in_baseline={"errors": {"share": 1.0}},
    ),
    Truth(
        "counter-reset",
        "counters begin anew although no process died",
        _INVALID,
        ("counter-reset",),
        {"counter_reset": _MIDWAY},
    ),
    Truth(
        "vanished-metrics",
        "/metrics is gone midway",
        _INVALID,
        ("metrics-vanished",),
        {"missing_metrics": _MIDWAY},
    ),
    Truth(
        "no-metrics",
        "/metrics was never there, so use of the tiers is not known",
        _INCONCLUSIVE,
        ("promoted",),
        {"missing_metrics": {"after": 0}},
    ),
    Truth(
        "miscounted-sources",
        "tokens by source do not add up",
        _INVALID,
        ("token-sources-broken",),
        {"miscounted_sources": _PART},
    ),
    Truth(
        "miscounted-prompts",
        "the engine counts longer prompts than were planned",
        _INVALID,
        ("prompt-tokens-differ",),
        {"miscounted_prompts": _PART},
    ),
    Truth(
        "other-configuration",
        "the engine runs with a device block less than asked",
        _INVALID,
        ("config-not-as-asked",),
        {"other_configuration": True},
    ),
    Truth("residue", "the tiers are not empty at the start", _INVALID, ("residue",), {"residue": True}),
)
