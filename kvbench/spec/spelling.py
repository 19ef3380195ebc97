"""The nearest valid name to what the user wrote."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean", "nearest"]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` most likely stands for, or None when nothing is close."""
    spellings = {choice.lower().replace("-", "_"): choice for choice in choices}
    # 0.6 is difflib's own threshold: two letters in five may differ.
    found = get_close_matches(word.lower().replace("-", "_"), spellings, n=1, cutoff=0.6)
    return spellings[found[0]] if found else None


def did_you_mean(word: str, choices: Iterable[str], noun: str) -> str:
    """`; did you mean 'size'? valid keys: policy, size` (without the question when nothing is close)."""
    known = sorted(choices)
    guess = nearest(word, known)
    question = f"; did you mean '{guess}'?" if guess else ";"
    return f"{question} valid {noun}: {', '.join(known)}"
