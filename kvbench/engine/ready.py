"""Waiting until a launched engine answers, and telling why when it never does.

Times in seconds. Works for any engine with `/health` and `/v1/models`.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import httpx

from kvbench.engine.base import Progress
from kvbench.engine.failures import Cause, explain, plain, strip_timestamp
from kvbench.engine.launch import EngineProcess
from kvbench.engine.processes import listeners
from kvbench.errors import EngineError
from kvbench.spec.quantity import show_seconds

__all__ = ["HUNG_AFTER_S", "Readiness", "StartFailed", "silent_since_ready", "wait_until_ready"]

HUNG_AFTER_S = 60.0
"""No new log line and no work for this long is a hung start; the longest silent phases of a start (reading weights,
capturing graphs) use CPU or write progress."""

IDLE_SHARE = 0.01
"""Of one core. The event loops of an engine that waits use about a thousandth; loading anything uses far more."""

POLL_S, ANSWER_S, PROGRESS_S = 0.2, 0.5, 5.0

DEATH_S = 1.0
"""Between the last connection that a dying engine closes and the keeper's word that it has ended."""

PHASES: tuple[tuple[str, str], ...] = (
    (r"Application startup complete", "opening the API"),
    (r"Capturing CUDA graph", "capturing CUDA graphs"),
    (r"Compiling a graph|torch\.compile takes", "compiling"),
    (r"KV cache size:", "KV cache is allocated"),
    (r"Loading weights took|Model loading took", "weights are loaded"),
    (r"Starting to load model|Loading safetensors", "loading weights"),
    (r"Initializing a V1 LLM engine|Initializing a V\d LLM engine", "starting the workers"),
    (r"Resolved architecture", "starting the engine core"),
    (r"non-default args", "reading the model's configuration"),
)
"""What vLLM's log says, latest phase first, and what that means."""


@dataclass(frozen=True)
class Readiness:
    """How one start is waited for."""

    label: str
    base_url: str
    port: int
    log: str
    timeout_s: float
    hung_after_s: float = HUNG_AFTER_S


class _Activity:
    """Whether a process tree still does anything: log lines or CPU."""

    def __init__(self, process: EngineProcess, now: float) -> None:
        self._process = process
        self._log_size, self._cpu_s, self._since = process.log_size(), process.cpu_s(), now

    def idle_s(self, now: float) -> float:
        """For how long there has been no log line and next to no CPU."""
        size, cpu_s = self._process.log_size(), self._process.cpu_s()
        worked = abs(cpu_s - self._cpu_s) > max(IDLE_SHARE * (now - self._since), 0.05)
        if size != self._log_size or worked:
            self._log_size, self._cpu_s, self._since = size, cpu_s, now
        return now - self._since


def wait_until_ready(process: EngineProcess, readiness: Readiness, progress: Progress) -> list[str]:
    """Return the names of the served models once requests are answered; EngineError with the cause otherwise."""
    began = time.monotonic()
    activity = _Activity(process, began)
    said_phase, said_at, answer = "", began, "no answer"
    with httpx.Client(base_url=readiness.base_url, trust_env=False, timeout=ANSWER_S) as client:
        while True:
            now = time.monotonic()
            if not process.alive():
                raise _failed(readiness, explain(process.log_tail(), exit_code=process.exit_code))
            phase = _phase(process.log_tail())
            if phase != said_phase or now - said_at >= PROGRESS_S:
                said_phase, said_at = phase, now
                progress(f"{readiness.label}: {phase} … {now - began:.0f} s")
            answer = _ask(client, "/health")
            if answer == "200" and (names := _served(client)) is not None:
                _check_listener(process, readiness)
                return names
            if (idle_s := activity.idle_s(now)) >= readiness.hung_after_s:
                raise _failed(readiness, _hung(process, idle_s, answer))
            if now - began >= readiness.timeout_s:
                raise _failed(readiness, _too_slow(process, readiness.timeout_s, answer))
            time.sleep(POLL_S)


def _ask(client: httpx.Client, path: str) -> str:
    try:
        return str(client.get(path).status_code)
    except httpx.TimeoutException:
        return "no answer in time"
    except httpx.HTTPError:
        return "no answer"


def _served(client: httpx.Client) -> list[str] | None:
    try:
        answer = client.get("/v1/models", timeout=5.0)
        return [str(model["id"]) for model in answer.json()["data"]] if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def _check_listener(process: EngineProcess, readiness: Readiness) -> None:
    """Another process may have taken the port while the engine was still starting."""
    found = listeners(readiness.port)
    if found and found.isdisjoint(stat.pid for stat in process.tree(fresh=True)):
        who = ", ".join(str(pid) for pid in sorted(found))
        cause = Cause("port", f"port {readiness.port} is answered by another process (pid {who})", None, ())
        raise _failed(readiness, cause)


def _phase(log: str) -> str:
    return next((words for pattern, words in PHASES if re.search(pattern, log)), "loading the engine")


def _last_lines(process: EngineProcess) -> tuple[str, ...]:
    lines = [plain(line) for line in strip_timestamp(process.log_tail()).splitlines()]
    return tuple([line for line in lines if line][-2:])


def _hung(process: EngineProcess, idle_s: float, answer: str) -> Cause:
    says = f"it hangs: no log line and no CPU time for {idle_s:.0f} s (/health: {answer})"
    return Cause(
        None, says, "see its last log lines; a start that waits for something elsewhere", _last_lines(process)
    )


def _too_slow(process: EngineProcess, timeout_s: float, answer: str) -> Cause:
    says = f"it was not ready after {show_seconds(timeout_s)} (/health: {answer})"
    return Cause(None, says, "raise engine.ready_timeout if it only needs longer", _last_lines(process))


class StartFailed(EngineError):
    """An engine that did not get ready; `cause` says why."""

    def __init__(self, readiness: Readiness, cause: Cause) -> None:
        words = "".join(f"\n    {line}" for line in cause.lines)
        super().__init__(
            f"{readiness.label}: the engine did not start: {cause.says}"
            + (f"\n  its last words:{words}" if words else "")
            + f"\n  log: {readiness.log}",
            do=cause.do,
        )
        self.cause = cause


def silent_since_ready(process: EngineProcess, readiness: Readiness, asked: str) -> StartFailed:
    """Why a server that was ready a moment ago does not answer any more; `asked` says what, and how that ended."""
    deadline = time.monotonic() + DEATH_S
    while process.alive() and time.monotonic() < deadline:
        time.sleep(POLL_S / 4)
    if not process.alive():
        return _failed(readiness, explain(process.log_tail(), exit_code=process.exit_code))
    says = f"it was ready, and then gave no answer ({asked})"
    return _failed(readiness, Cause(None, says, "see its last log lines", _last_lines(process)))


def _failed(readiness: Readiness, cause: Cause) -> StartFailed:
    return StartFailed(readiness, cause)
