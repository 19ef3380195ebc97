"""One GET of a metrics page with a deadline for the whole of it. No retries, no proxies, no parsing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import httpx

from kvbench.observe.attempts import Attempt, Result
from kvbench.observe.exposition import looks_like_exposition
from kvbench.observe.iteration_stats import looks_like_iteration_stats

__all__ = ["Fetched", "client", "fetch"]

MAX_BYTES = 32 * 1024 * 1024
"""Four hundred times what one vLLM engine exposes; a body beyond it is not metrics."""


@dataclass(frozen=True)
class Fetched:
    """What one scrape brought."""

    attempt: Attempt
    status: int | None
    text: str
    """The exposition or the list of iteration records; empty unless the result is OK."""
    error: str = ""


def client(timeout_s: float, api_key_env: str | None) -> httpx.Client:
    """A client that keeps its connection, for one thread; the caller closes it."""
    key = os.environ.get(api_key_env) if api_key_env else None
    headers = {"Accept": "text/plain;version=0.0.4;q=1, */*;q=0.1"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return httpx.Client(timeout=timeout_s, headers=headers, trust_env=False, follow_redirects=True)


def fetch(http: httpx.Client, url: str, timeout_s: float) -> Fetched:
    """Never raises for what a server can do."""
    started = time.monotonic()
    status, text, error = None, "", ""
    try:
        with http.stream("GET", url) as response:
            status = response.status_code
            body = _read(response, started + timeout_s)
        text = body.decode("utf-8", "replace") if status == httpx.codes.OK else ""
        result = _result(status, text)
    except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL) as failure:
        result, error = Result.UNREACHABLE, _words(failure)
    except (httpx.HTTPError, httpx.StreamError, TimeoutError) as failure:
        result, error = Result.STALLED, _words(failure)
    except OverflowError as failure:
        result, error = Result.NO_METRICS, _words(failure)
    attempt = Attempt(started, time.monotonic(), result)
    return Fetched(attempt, status, text if result is Result.OK else "", error)


def _read(response: httpx.Response, deadline: float) -> bytes:
    """httpx times each read; a server that drips would never end."""
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise OverflowError("the answer does not end")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer took too long")
    return bytes(body)


def _result(status: int, text: str) -> Result:
    if status == httpx.codes.OK:
        known = looks_like_exposition(text) or looks_like_iteration_stats(text)
        return Result.OK if known else Result.NO_METRICS
    return Result.STALLED if status >= httpx.codes.INTERNAL_SERVER_ERROR else Result.NO_METRICS


def _words(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}".removesuffix(": ")
