"""Where the tokens of a request came from, by what the engine's counters did meanwhile. Tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping

import httpx

from kvbench.engine.base import Endpoint
from kvbench.errors import EngineError
from kvbench.observe.canonical import SOURCES, parse_engine, source_counters
from kvbench.observe.fetch import client, fetch

__all__ = ["Counters", "came_from", "hotter"]

TIMEOUT_S = 5.0
SETTLED_S = 2.0
"""Counters of a request are there when its answer is; a busy machine may need a moment longer."""
_AGAIN_S = 0.02
_COLDER = ("device", "host", "disk", "computed")


class Counters:
    """Reads prompt tokens by source. `close` it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.metrics_url
        self._http: httpx.Client = client(TIMEOUT_S, endpoint.access)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def read(self) -> dict[str, float]:
        """Tokens so far by source. EngineError when the server does not tell them."""
        fetched = fetch(self._http, self._url, TIMEOUT_S)
        try:
            found = source_counters(parse_engine(fetched.text, buckets=False)) if fetched.text else {}
        except ValueError:
            found = {}
        if "computed" not in found or "device" not in found:
            raise EngineError(
                f"{self._url} does not tell where prompt tokens came from, so no probe can be verified",
                do="probe a server with `vllm:prompt_tokens_by_source` (vLLM 0.16 or later) in its metrics",
            )
        return found

    def increase(
        self, before: Mapping[str, float], prompt_tokens: int, cached_tokens: int | None = None
    ) -> dict[str, float]:
        """By how much each source rose since `before`, once the request of so many tokens has been counted.

        `cached_tokens`: how many of them were cached, where its answer says so. EngineError when it never is, or
        when the counters were reset.
        """
        until = time.monotonic() + SETTLED_S
        while True:
            after = self.read()
            rise = {source: after.get(source, 0.0) - before.get(source, 0.0) for source in (*SOURCES, "elsewhere")}
            if min(rise.values()) < 0:
                raise EngineError("the server's counters were reset in the middle of a probe")
            total = sum(rise.values())
            if total >= prompt_tokens and total - rise["computed"] >= (cached_tokens or 0):
                return rise
            if time.monotonic() > until:
                raise EngineError(
                    f"a prompt of {prompt_tokens} tokens was answered, but the server's counters rose by "
                    f"{total:.0f}, {total - rise['computed']:.0f} of them cached"
                )
            time.sleep(_AGAIN_S)


def came_from(
    source: str, rise: Mapping[str, float], prefix_tokens: int, prompt_tokens: int, *, alone: bool
) -> bool:
    """Whether a request came wholly from `source`, all but its suffix.

    Beside a background load, which hits nothing, the computed tokens are not the request's alone.
    """
    for cached in ("device", "host", "disk", "elsewhere"):
        if rise.get(cached, 0.0) != (prefix_tokens if cached == source else 0.0):
            return False
    computed = prompt_tokens if source == "computed" else prompt_tokens - prefix_tokens
    return rise["computed"] == computed if alone else rise["computed"] >= computed


def hotter(source: str, rise: Mapping[str, float]) -> bool:
    """Whether any token came from a hotter tier than `source`."""
    return any(rise.get(tier, 0.0) > 0 for tier in _COLDER[: _COLDER.index(source)])
