"""What an engine that has just started must not have counted yet."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["MUST_BE_ZERO", "counted_before"]

MUST_BE_ZERO = ("prompt_tokens", "cached_tokens", "kv_cache_usage")


def counted_before(values: Mapping[str, float]) -> tuple[str, ...]:
    """A sentence for each of these canonical metrics that is not zero before the first request."""
    return tuple(
        f"{name} is {values[name]:g} before the first request" for name in MUST_BE_ZERO if values.get(name)
    )
