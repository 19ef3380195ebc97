"""The gate over HTTP: `/verdict` (JSON), `/healthz`, `/metrics` of its own. Loopback unless told otherwise."""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

from kvbench.canary.verdict import CanaryVerdict
from kvbench.dashboards import gate_series as series
from kvbench.errors import InputError, RunError
from kvbench.judge.verdict import Outcome

__all__ = ["GateServer", "Seen", "exposed", "finite", "parse_address", "verdict_document"]

LOOPBACK = "127.0.0.1"
POSTED_AT_MOST = 1 << 20
"""Bytes of a request's body that are read before it is answered."""
BLIND_LOOKS = 5
"""After so many looks without an answer the gate says that it is not healthy."""


@dataclass(frozen=True)
class Seen:
    """What is served: the latest verdict, and how reading goes."""

    gate: str
    verdict: CanaryVerdict | None = None
    armed: bool = False
    reads_done: int = 0
    reads_failed: int = 0
    last_read_s: float | None = None
    began_s: float = field(default_factory=time.time)
    every_s: float = 15.0
    ended: bool = False
    """The watch is over; the verdict stays."""

    @property
    def healthy(self) -> bool:
        """Whether it reads, or has done what it had to."""
        return self.ended or (
            self.last_read_s is not None and time.time() - self.last_read_s < BLIND_LOOKS * self.every_s
        )


def parse_address(text: str) -> tuple[str, int]:
    """`9109`, `HOST:PORT`, `[::1]:PORT`. InputError for anything else."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise InputError(f"--serve: expected PORT or HOST:PORT, got {text!r}")
    return host.strip("[]") or LOOPBACK, int(port)


def verdict_document(verdict: CanaryVerdict) -> dict[str, object]:
    """The verdict as JSON has it: what is not finite is null."""
    document = verdict.model_dump(mode="json", by_alias=True)
    document.pop("candidates", None)
    first = {key: document.pop(key) for key in ("schema", "verdict", "exit_code")}
    return finite({**first, **document})


def finite(document: dict[str, object]) -> dict[str, object]:
    """With null for what is not finite, which JSON cannot hold."""
    return {key: _finite(value) for key, value in document.items()}


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return finite(value)
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def exposed(seen: Seen) -> bytes:
    """Prometheus text about the gate itself."""
    # The registry is made anew for every answer, so times of creation would mean nothing.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, ["gate", *labels], registry=registry)

    def counter(name: str, text: str, *labels: str) -> Counter:
        return Counter(name.removesuffix("_total"), text, ["gate", *labels], registry=registry)

    scrapes = counter(series.SCRAPES, "Times that series were asked for.", "selection", "outcome")
    age = gauge(series.SCRAPE_AGE, "Seconds since series could last be read, or since the gate began.", "selection")
    action = gauge(series.ACTION, "1 for the state of what is done on a breach.", "state")
    for selection in _selections(seen):
        scrapes.labels(seen.gate, selection, "ok").inc(seen.reads_done)
        scrapes.labels(seen.gate, selection, "failed").inc(seen.reads_failed)
        # Of one that never read anything as well: an alert on its age would not fire for what is not there.
        since_s = seen.began_s if seen.last_read_s is None else seen.last_read_s
        age.labels(seen.gate, selection).set(0.0 if seen.ended else time.time() - since_s)
    state = _action_state(seen)
    for each in ("idle", "armed", "dry-run", "fired", "failed"):
        action.labels(seen.gate, each).set(int(each == state))
    verdict = gauge(series.VERDICT, "1 for the verdict so far.", "verdict")
    for outcome in Outcome:
        now = seen.verdict.verdict if seen.verdict is not None else Outcome.INCONCLUSIVE
        verdict.labels(seen.gate, outcome.value).set(int(outcome is now))
    _rollback(seen, gauge)
    if seen.verdict is not None:
        _rules(seen.gate, seen.verdict, gauge)
        _traffic(seen.gate, seen.verdict, gauge, counter)
    return generate_latest(registry)


def _selections(seen: Seen) -> list[str]:
    sides = {row.side for row in seen.verdict.replicas} if seen.verdict is not None else set()
    return sorted(sides | {"candidate"})


def _action_state(seen: Seen) -> str:
    hook = seen.verdict.hook if seen.verdict is not None else None
    if hook is not None:
        return {"done": "fired", "begun": "fired"}.get(hook.state, hook.state)
    return "armed" if seen.armed else "idle"


def _rollback(seen: Seen, gauge) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - see exposed
    """Before a hook nothing is waited for, and nothing is exposed."""
    rollback = seen.verdict.rollback if seen.verdict is not None else None
    status = gauge(series.ROLLBACK, "1 for how it stands with a part of the rollback.", "part", "status")
    after = gauge(series.ROLLBACK_AFTER, "Seconds from the hook until a part was so.", "part")
    if rollback is None:
        return
    for name, part in (("tier_off", rollback.tier_off), ("baseline_back", rollback.baseline_back)):
        for each in ("waiting", "proven", "failed", "unknown"):
            status.labels(seen.gate, name, each).set(int(each == part.status))
        if part.after_s is not None:
            after.labels(seen.gate, name).set(part.after_s)


def _rules(gate: str, verdict: CanaryVerdict, gauge) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - see exposed
    rule = gauge(series.RULE, "1 for the status of a rule.", "rule", "kind", "status")
    figures = {
        "effect": gauge(series.EFFECT, "What a rule found.", "rule"),
        "limit": gauge(series.LIMIT, "What it allows.", "rule"),
        "low": gauge(series.CI_LOW, "The lower end of its interval.", "rule"),
        "high": gauge(series.CI_HIGH, "The upper end of its interval.", "rule"),
    }
    share = gauge(series.SHARE_OVER, "Share over budget, for sustained rules.", "rule", "stretch")
    firing = gauge(series.FIRING_SHARE, "The share at which a sustained rule fires.", "rule")
    for result in verdict.rules:
        for status in ("pass", "fail", "unknown"):
            rule.labels(gate, result.rule, result.kind, status).set(int(status == result.status))
        low, high = result.decision_ci or (None, None)
        effect = result.effect if result.effect is not None else result.candidate
        for name, value in (("effect", effect), ("limit", result.limit), ("low", low), ("high", high)):
            if value is not None and math.isfinite(value):
                figures[name].labels(gate, result.rule).set(value)
        latest = next((row for row in result.windows if row.get("at") == "latest"), None)
        if latest is not None and result.limit is not None:
            firing.labels(gate, result.rule).set(result.limit)
            for stretch in ("for", "window"):
                if (seen := latest[f"{stretch}_share"]) is not None:  # without requests there is none, not zero
                    share.labels(gate, result.rule, stretch).set(float(seen))


def _traffic(gate: str, verdict: CanaryVerdict, gauge, counter) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - see exposed
    windows = counter(series.WINDOWS, "Segments of time so far.", "state")
    windows.labels(gate, "evaluable").inc(verdict.watch.segments_seen)
    windows.labels(gate, "unknown").inc(verdict.watch.segments - verdict.watch.segments_seen)
    requests = counter(series.REQUESTS, "Requests that were judged.", "selection")
    replicas = gauge(series.REPLICAS, "Replicas by how they are.", "selection", "state")
    for side in sorted({row.side for row in verdict.replicas}):
        rows = [row for row in verdict.replicas if row.side == side]
        requests.labels(gate, side).inc(sum(row.requests or 0.0 for row in rows))
        counts = {
            "warm": sum(row.warm and not row.odd for row in rows),
            "cold": sum(not row.warm for row in rows),
            "odd": sum(row.odd for row in rows),
        }
        for state, count in counts.items():
            replicas.labels(gate, side, state).set(count)


class GateServer:
    """Serves what it was last shown, on a thread of its own. Use as a context."""

    def __init__(self, host: str, port: int, gate: str, *, every_s: float, armed: bool) -> None:
        """RunError when the address cannot be had."""
        self.seen = Seen(gate, armed=armed, every_s=every_s)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            server_version = "kvbench"
            sys_version = ""
            timeout = 10

            def do_GET(self) -> None:
                status, kind, body = outer.answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                """The same: Flagger's webhooks post. What they send is not looked at."""
                length = self.headers.get("Content-Length") or ""
                self.rfile.read(min(int(length), POSTED_AT_MOST) if length.isdecimal() else 0)
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the gate's own lines say what matters."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, request: object, client_address: object) -> None:
                """Somebody who hangs up in the middle is no news on the gate's terminal."""
                if not isinstance(sys.exception(), ConnectionError):
                    super().handle_error(request, client_address)  # type: ignore[arg-type]

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise RunError(f"cannot serve on {host}:{port}: {error.strerror or error}") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="kvbench-gate-http", daemon=True)

    @property
    def address(self) -> str:
        host, port = str(self._server.server_address[0]), self._server.server_address[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def show(self, seen: Seen) -> None:
        """Serve this from now on."""
        self.seen = seen

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        seen = self.seen
        match path:
            case "/" | "/verdict":
                if seen.verdict is None:
                    return 503, "application/json", b'{"error": "nothing was judged yet"}\n'
                text = json.dumps(verdict_document(seen.verdict), allow_nan=False) + "\n"
                return 200, "application/json", text.encode()
            case "/verdict/GO" | "/verdict/NO_GO" | "/verdict/INCONCLUSIVE" | "/verdict/INVALID":
                now = seen.verdict.verdict if seen.verdict is not None else Outcome.INCONCLUSIVE
                return 200 if path.endswith(f"/{now.value}") else 409, "text/plain", f"{now.value}\n".encode()
            case "/healthz":
                return (
                    (200, "text/plain", b"ok\n") if seen.healthy else (503, "text/plain", b"cannot read series\n")
                )
            case "/metrics":
                return 200, "text/plain; version=0.0.4; charset=utf-8", exposed(seen)
            case _:
                return 404, "text/plain", b"/verdict, /verdict/GO, /healthz or /metrics\n"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
