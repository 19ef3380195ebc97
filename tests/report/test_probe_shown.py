"""What a probe says of break-even lengths in words: no more than its intervals tell."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from kvbench.report.probe import show_probe

Ends = tuple[int | None, int | None]


def told(tokens: int | None, ci: Ends, *checks: dict[str, Any]) -> list[str]:
    """The sentences about the disk of a probe with this break-even."""
    found: dict[str, Any] = {
        "points": [],
        "cost_per_token_s": {},
        "break_even_tokens": {"disk": tokens},
        "break_even_ci": {"disk": ci},
        "smallest_hit_tokens": 128,
        "checks": checks,
        "not_reached": [],
        "thrown_away": {},
        "interval_reached": True,
        "under_load": None,
        "emulated": False,
    }
    console = Console(file=io.StringIO(), width=200)
    show_probe(console, found)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [line.removeprefix("disk: ") for line in lines if line.startswith("disk: ")]


@pytest.mark.parametrize(
    ("tokens", "ci", "words"),
    [
        (128, (128, 128), "even the smallest hit, 128 tokens, is faster than computing"),
        (256, (130, 400), "a hit is faster than computing from 256 tokens on (130 to 400)"),
        (256, (128, None), "a hit seems faster than computing from 256 tokens on, which is proven at no length"),
        (None, (None, None), "a hit is slower than computing at the longest prefix that was probed"),
        (None, (900, None), "hits and computing are not told apart at the longest prefix that was probed"),
    ],
)
def test_a_break_even_is_said_as_far_as_its_interval_tells(tokens: int | None, ci: Ends, words: str) -> None:
    assert told(tokens, ci) == [words]


@pytest.mark.parametrize(
    ("agrees", "moved", "words"),
    [
        (True, False, "confirmed"),
        (True, True, "found out, and the break-even moved past it"),
        (False, False, "NOT confirmed"),
        (None, False, "not told apart"),
    ],
)
def test_a_check_says_what_it_is_worth(agrees: bool | None, moved: bool, words: str) -> None:
    check = {"source": "disk", "side": "below", "prefix_tokens": 128, "agrees": agrees, "moved": moved}
    _, line = told(256, (130, 400), check)
    assert line == f"a hit of 128 tokens is slower than computing: {words}"
