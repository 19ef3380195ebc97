"""What a probe says of break-even lengths in words: no more than its intervals tell."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from kvbench.report.probe import show_probe

Ends = tuple[int | None, int | None]


def told(tokens: int | None, ci: Ends) -> str:
    """The sentence about the disk of a probe with this break-even."""
    found: dict[str, Any] = {
        "points": [],
        "cost_per_token_s": {},
        "break_even_tokens": {"disk": tokens},
        "break_even_ci": {"disk": ci},
        "smallest_hit_tokens": 128,
        "checks": [],
        "not_reached": [],
        "thrown_away": {},
        "interval_reached": True,
        "under_load": None,
        "emulated": False,
    }
    console = Console(file=io.StringIO(), width=200)
    show_probe(console, found)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    (line,) = [line for line in lines if line.startswith("disk: ")]
    return line.removeprefix("disk: ")


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
    assert told(tokens, ci) == words
