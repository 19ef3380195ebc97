"""What an answer says of its own size: the `usage` of vLLM and its like, whole answers and streams. Tokens."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Usage", "count_of", "read_usage", "usage_of_answer"]

_MOST_TOKENS = 1 << 24
"""No context is longer than 16 million tokens; a larger count is nonsense and would only fill the memory."""


class Usage(NamedTuple):
    """None: the server does not say, or says nonsense."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    """Of the prompt, from the device and every tier behind it together."""


def read_usage(usage: object) -> Usage:
    """JSON from outside, whatever it is."""
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return Usage(
        count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens"), count_of(details, "cached_tokens")
    )


def usage_of_answer(answer: object) -> Usage:
    """Of an answer that came whole."""
    return read_usage(answer.get("usage") if isinstance(answer, dict) else None)


def count_of(counts: object, name: str) -> int | None:
    """One of the numbers in `counts`."""
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and 0 <= value <= _MOST_TOKENS else None
