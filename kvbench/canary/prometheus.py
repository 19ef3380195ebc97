"""Series from a Prometheus server (or what speaks its query API: Thanos, Mimir). Raw samples with their own times:
nothing is interpolated, so gaps, resets and restarts stay visible.
"""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvbench.canary.naming import canonical_samples
from kvbench.canary.reading import Read, ReadFailed
from kvbench.canary.series import Floats, Key, Samples, key_of
from kvbench.errors import InputError, Where
from kvbench.report.plain import plain
from kvbench.spec.canary import Canary, PrometheusServer, Selection
from kvbench.spec.loading import where

if TYPE_CHECKING:
    from prometheus_api_client import PrometheusConnect
    from requests import Response, Session

__all__ = ["PrometheusReader", "secret", "selector"]

CHUNK_S = 900.0
"""One answer holds so much: 15 minutes of 50 replicas are some ten megabytes."""
BACKOFF_S = 0.5
SHOWN = 200
"""Characters of what a server says."""
RETRIED = (408, 429, 500, 502, 503, 504)
"""Statuses by which a server or a proxy says: later."""
_Pieces = dict[Key, list[tuple[Floats, Floats]]]
"""Times and values of each series of one replica, answer by answer."""
_STATUS = re.compile(r"HTTP Status Code (\d+)")
_IN_PART = re.compile(rb'"warnings":\s*\[\s*"|"isPartial":\s*true')
"""How Prometheus, Thanos and Mimir, and VictoriaMetrics say that a store or a remote did not answer them."""
_REFUSED = {
    400: "does not understand the query",
    401: "wants other credentials",
    403: "does not let these credentials read",
    404: "has no query API at this address",
}


def selector(names: tuple[str, ...], match: Mapping[str, str]) -> str:
    """PromQL: series of any of these names whose labels are as asked; `~` begins a regular expression."""
    parts = [f'__name__=~"{"|".join(names)}"']
    for label, value in match.items():
        operator, text = ("=~", value[1:]) if value.startswith("~") else ("=", value)
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        parts.append(f'{label}{operator}"{escaped}"')
    return "{" + ",".join(parts) + "}"


def secret(name: str | None, at: Where | None) -> str | None:
    """The content of an environment variable. InputError when it is named and not set."""
    if name is None:
        return None
    value = os.environ.get(name, "")
    if not value:
        raise InputError(f"the environment variable {name} is not set", where=at)
    return value


class PrometheusReader:
    """Asks for both selections; `replica` is the label that tells replicas apart."""

    looks_back = True

    def __init__(self, canary: Canary, server: PrometheusServer, names: tuple[str, ...]) -> None:
        """InputError without the extra `prometheus`, or without a secret that the file names."""
        self._connection = _connect(canary, server)
        self._replica = canary.replica
        self._url = server.url
        self._queries = {
            side: selector(names, selection.match)
            for side, selection in (("candidate", canary.candidate), ("baseline", canary.baseline))
            if isinstance(selection, Selection)
        }

    def now(self) -> float:
        """The server's clock, which stamps the samples."""
        answer = self._ask("time()", {})
        try:
            return float(answer[0])
        except (IndexError, KeyError, TypeError, ValueError):
            raise ReadFailed(f"{self._url} does not tell its time; is it a Prometheus?") from None

    def read(self, since_s: float, until_s: float, stop: Callable[[], None]) -> Read:
        """Both sides, in pieces of at most `CHUNK_S`."""
        found: dict[str, dict[str, Samples]] = {side: {} for side in self._queries}
        # Samples have whole milliseconds and a piece begins behind its first: rounded by themselves, two neighbours
        # could leave one out between them.
        since, until = math.floor(1000 * since_s), round(1000 * until_s)
        ends = [*range(since + round(1000 * CHUNK_S), until, round(1000 * CHUNK_S)), until]
        for side, query in self._queries.items():
            pieces: dict[str, _Pieces] = {}
            times: dict[bytes, Floats] = {}
            begin = since
            for end in ends:
                stop()
                length_ms = max(1, end - begin)
                for series in self._ask(f"{query}[{length_ms}ms]", {"time": f"{end / 1000:.3f}"}):
                    self._take(series, pieces, times)
                begin = end
            for name in [*pieces]:
                found[side][name] = canonical_samples(_joined(pieces.pop(name)))
        return Read(found)

    def not_before(self, t_s: float) -> None:
        """Nothing: the server's clock is its own."""

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _take(self, series: Any, pieces: dict[str, _Pieces], times: dict[bytes, Floats]) -> None:  # noqa: ANN401 - JSON
        try:
            labels = dict(series["metric"])
            name, replica = labels.pop("__name__"), labels.pop(self._replica, "")
            t_s = np.array([float(t) for t, _ in series["values"]])
            values = np.array([float(v) for _, v in series["values"]])
        except (KeyError, TypeError, ValueError):
            raise ReadFailed(f"{self._url} answered with something else than samples") from None
        known = np.isfinite(values)
        t_s = times.setdefault(t_s[known].tobytes(), t_s[known])  # series of one scrape share them
        parts = pieces.setdefault(replica or "(no such label)", {})
        parts.setdefault(key_of(name, labels), []).append((t_s, values[known]))

    def _ask(self, query: str, params: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
        from prometheus_api_client.exceptions import PrometheusApiClientException
        from requests import RequestException

        try:
            return self._connection.custom_query(query, params=params)
        except PrometheusApiClientException as error:
            raise _refused(self._url, str(error)) from None
        except (ValueError, KeyError, TypeError):  # before the next: what cannot be read as JSON is both
            raise ReadFailed(f"{self._url} answered with something else than JSON of Prometheus") from None
        except RequestException as error:
            raise ReadFailed(f"{self._url} cannot be reached: {_cause(error)}") from None


def _joined(pieces: _Pieces) -> Samples:
    """In order of time; a sample on the edge of two pieces comes once."""
    found: Samples = {}
    orders: dict[tuple[int, ...], tuple[Floats, npt.NDArray[np.intp]]] = {}
    for key, parts in pieces.items():
        place = tuple(id(t_s) for t_s, _ in parts)
        if place not in orders:
            orders[place] = np.unique(np.concatenate([t_s for t_s, _ in parts]), return_index=True)
        t_s, order = orders[place]
        found[key] = t_s, np.concatenate([values for _, values in parts])[order]
    return found


def _connect(canary: Canary, server: PrometheusServer) -> PrometheusConnect:
    try:
        from prometheus_api_client import PrometheusConnect
        from requests import Session
        from urllib3.util.retry import Retry
    except ImportError:
        raise InputError(
            "reading from Prometheus needs a package that is not installed",
            where=where(canary, "prometheus"),
            do="pip install 'kvbench[prometheus]', or scrape the engines themselves: scrape: {candidate: [url...]}",
        ) from None
    headers: dict[str, str] = {}
    token = secret(server.token_env, where(canary, "prometheus", "token_env"))
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if server.tenant is not None:
        headers[server.tenant_header] = server.tenant
    user = secret(server.username_env, where(canary, "prometheus", "username_env"))
    password = secret(server.password_env, where(canary, "prometheus", "password_env"))
    # It warns of every retry on stderr; what came of them is told here.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    session = Session()
    session.trust_env = False
    session.hooks["response"].append(partial(_heed_warnings, server.url))
    _show_and_trust(session, canary, server)
    retry = Retry(
        total=server.retries,
        backoff_factor=BACKOFF_S,
        status_forcelist=RETRIED,
        raise_on_status=False,
        allowed_methods=None,
        respect_retry_after_header=False,  # which may say hours; the gate looks again soon
    )
    return PrometheusConnect(
        url=server.url,
        headers=headers,
        auth=(user, password) if user is not None and password is not None else None,
        retry=retry,
        session=session,
        timeout=server.timeout,
    )


def _show_and_trust(session: Session, canary: Canary, server: PrometheusServer) -> None:
    """Certificates of ours and of the authority; InputError for files that cannot be used, which requests would
    tell at every query, as if the server could not be reached."""
    trusted = _file(canary, "ca_file", server)
    certificate, key = _file(canary, "cert_file", server), _file(canary, "key_file", server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if trusted is not None:
        try:
            context.load_verify_locations(trusted)
        except (ssl.SSLError, OSError) as error:
            raise InputError(
                f"{trusted} holds no certificate that can be read: {error}",
                where=where(canary, "prometheus", "ca_file"),
                do="name the PEM file of the authority that signed the server's certificate",
            ) from None
        session.verify = trusted
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password=lambda: "")  # asks nobody for a passphrase
        except (ssl.SSLError, OSError) as error:
            raise InputError(
                f"{certificate} and its key cannot be used: {error}",
                where=where(canary, "prometheus", "cert_file"),
                do="name PEM files, the key without a passphrase (key_file, or both in cert_file)",
            ) from None
        session.cert = certificate if key is None else (certificate, key)


def _file(canary: Canary, key: str, server: PrometheusServer) -> str | None:
    path = getattr(server, key)
    if path is not None and not path.is_file():
        raise InputError(f"there is no file {path}", where=where(canary, "prometheus", key))
    return None if path is None else str(path)


def _heed_warnings(url: str, response: Response, **_: object) -> None:
    """ReadFailed for an answer without everything: what it lacks would look as if it had never been there."""
    if response.status_code != HTTPStatus.OK or not _IN_PART.search(response.content):
        return
    try:
        answer = response.json()
    except ValueError:
        return
    warnings = answer.get("warnings") if isinstance(answer, dict) else None
    if warnings or (isinstance(answer, dict) and answer.get("isPartial") is True):
        why = plain(warnings[0])[:SHOWN] if isinstance(warnings, list) and warnings else "it says isPartial"
        raise ReadFailed(f"{url} answered in part only: {why}")


def _refused(url: str, text: str) -> InputError | ReadFailed:
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    said = re.search(rf'"error":"((?:[^"\\]|\\.){{1,{SHOWN}}})', text)
    detail = f": {plain(said[1])}" if said else ""
    if status in _REFUSED:
        return InputError(f"{url} {_REFUSED[status]} (status {status}){detail}")
    return ReadFailed(f"{url} answered with status {status}{detail}")


def _cause(error: Exception) -> str:
    """The innermost reason, without addresses of objects."""
    inner: BaseException = error
    while (below := getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)) is not None:
        if not isinstance(below, BaseException):
            break
        inner = below
    return re.sub(r"<[^>]*>(: )?|HTTPS?Connection\([^)]*\): ", "", str(inner)) or type(inner).__name__
