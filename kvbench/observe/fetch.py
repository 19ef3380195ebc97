"""One GET of a metrics page with a deadline for the whole of it. No retries, no proxies, no parsing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import httpx

from kvbench.access import request_headers, trust
from kvbench.observe.attempts import Attempt, Result
from kvbench.observe.exposition import looks_like_exposition
from kvbench.observe.iteration_stats import looks_like_iteration_stats
from kvbench.spec.access import NO_ACCESS, Access

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


def client(timeout_s: float, access: Access = NO_ACCESS) -> httpx.Client:
    """A client that keeps its connection, for one thread; the caller closes it. InputError as `kvbench.access`."""
    headers = {"Accept": "text/plain;version=0.0.4;q=1, */*;q=0.1"} | request_headers(access)
    return httpx.Client(
        timeout=timeout_s,
        headers=headers,
        verify=trust(access),
        trust_env=False,
        follow_redirects=True,
        event_hooks={"request": [partial(_stay_at_home, [*access.headers])]},
    )


def _stay_at_home(names: Sequence[str], request: httpx.Request) -> None:
    """Headers of these names are for the server that was asked, not for one that it redirects to.

    httpx itself holds back `Authorization` alone. Extensions go along from a request to those that follow it.
    """
    where = (request.url.scheme, request.url.host, request.url.port)
    if request.extensions.setdefault("kvbench.asked", where) != where:
        for name in names:
            request.headers.pop(name, None)


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
