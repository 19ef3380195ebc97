"""From the words of a command line to a `Question` about a trace. Sizes in blocks, times in seconds."""

from __future__ import annotations

from typing import TypeVar, get_args

from kvbench.errors import InputError
from kvbench.plan.analysis import Policy, Question
from kvbench.plan.hierarchy import INCLUSIONS, Inclusion
from kvbench.plan.lru import TTLS_S
from kvbench.plan.references import Tail
from kvbench.plan.setting import Setting
from kvbench.spec.quantity import parse_quantity
from kvbench.spec.spelling import did_you_mean

__all__ = ["make_question"]

T = TypeVar("T")

_TIERS = ("device", "host", "disk")
_LARGEST = 2**40


def make_question(
    *,
    tail: str,
    capacities: str | None,
    hierarchy: str | None,
    inclusion: str | None,
    ttl: str | None,
    policy: str = "lru",
    setting: Setting | None = None,
) -> Question:
    """The question; None: not asked for. InputError names the option at fault."""
    tails: dict[str, Tail] = {name: name for name in get_args(Tail)}
    inclusions: dict[str, Inclusion] = {name: name for name in INCLUSIONS}
    chosen = None if inclusion is None else (_choice("--inclusion", inclusion, inclusions),)
    policies: dict[str, Policy] = {name: name for name in get_args(Policy)}
    by = _choice("--policy", policy, policies)
    tiers = None if hierarchy is None else _tiers(hierarchy)
    if by == "arc" and inclusion == "exclusive":
        raise InputError(
            "--policy: an exclusive host tier takes in what the device evicts, and vLLM's ARC what is used",
            do="choose --inclusion inclusive_touch_all, which is vLLM's own, or inclusive_filtered",
        )
    if by == "arc" and tiers is not None and "host" not in tiers:
        raise InputError("--policy: arc is the host tier's, and --hierarchy has none", do="add host=BLOCKS")
    return Question(
        tail=_choice("--tail", tail, tails),
        capacities=None
        if capacities is None
        else tuple(_blocks("--capacities", part) for part in _parts(capacities)),
        hierarchies=None if tiers is None else (tuple(tiers.values()),),
        inclusions=chosen,
        policy=by,
        host_place=list(tiers).index("host") if tiers is not None and "host" in tiers else 1,
        ttls_s=TTLS_S if ttl is None else tuple(_seconds(part) for part in _parts(ttl)),
        setting=setting,
    )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _choice(option: str, value: str, choices: dict[str, T]) -> T:
    if value not in choices:
        guess = did_you_mean(value, list(choices), "choices")
        raise InputError(f"{option}: {value!r} is none of {', '.join(choices)}{guess}")
    return choices[value]


def _blocks(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and 0 < int(text) <= _LARGEST):
        raise InputError(f"{option}: expected a number of blocks, got {text[:40]!r}", do="for example 1024")
    return int(text)


def _seconds(text: str) -> float | int:
    try:
        seconds = parse_quantity(text, "seconds")
    except ValueError as error:
        raise InputError(f"--ttl: {error}") from None
    if seconds < 0:
        raise InputError(f"--ttl: a time cannot be negative, got {text}")
    return int(seconds) if seconds == int(seconds) else seconds


def _tiers(text: str) -> dict[str, int]:
    """`device=..,host=..,disk=..`, hot to cold; leaving one out is leaving the tier out."""
    given: dict[str, int] = {}
    for part in _parts(text):
        name, equals, size = part.partition("=")
        if name not in _TIERS or not equals or name in given:
            raise InputError(
                f"--hierarchy: expected each tier once as NAME=BLOCKS, got {part[:40]!r}",
                do="for example --hierarchy device=1000,host=4000,disk=30000",
            )
        given[name] = _blocks("--hierarchy", size)
    return {name: given[name] for name in _TIERS if name in given}
