"""One start of an LMCache server beside an engine, under a keeper of its own: begin, wait, ask, end. In seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import httpx

from kvbench.engine.base import EngineState, Launch, Progress, Rendered
from kvbench.engine.container_remains import Container
from kvbench.engine.failures import Cause, explain
from kvbench.engine.launch import EngineProcess, LaunchPlan, plan_launch
from kvbench.engine.lmcache import BESIDE, LmcacheServer
from kvbench.engine.ports import LOOPBACK, free_port
from kvbench.engine.processes import listeners
from kvbench.engine.ready import Readiness, StartFailed

__all__ = ["LmcacheProcess"]

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""

POLL_S, ANSWER_S, PROGRESS_S = 0.2, 5.0, 5.0


class LmcacheProcess:
    """Owns the launch's directory of the disk tier; vLLM is told nothing of it."""

    def __init__(self, launch: Launch, timeout_s: float) -> None:
        """`launch` is the engine's; the server's log lies beside its log. `timeout_s`: for getting ready."""
        label, log = f"{launch.label}-{BESIDE}", launch.log.with_name(f"{BESIDE}-1.log")
        self._launch = replace(launch, label=label, log=log, kv_events=None)
        self._timeout_s = timeout_s
        self._process: EngineProcess | None = None
        self.server = LmcacheServer()
        """Where it listens, once it does."""
        self.container: Container | None = None
        """What it runs in, once it is started in one."""

    @property
    def url(self) -> str:
        """Of status, metrics and administration."""
        return f"http://{LOOPBACK}:{self.server.http_port}"

    def start(
        self,
        render: Callable[[LaunchPlan, LmcacheServer], Rendered],
        progress: Progress,
        container: Container | None = None,
    ) -> None:
        """Start it and wait until it answers. StartFailed with the cause when that does not happen.

        `container`: how the one that it is to run in is reached.
        """
        self.server = LmcacheServer(port=free_port(), http_port=free_port())
        plan = plan_launch(self._launch, self.server.http_port, container)
        self.container = plan.lease.container
        self._process = EngineProcess(plan, render(plan, self.server), grace_s=GRACE_S)
        self._process.start()
        self._wait(self._process, progress)

    def _wait(self, process: EngineProcess, progress: Progress) -> None:
        began = said_at = time.monotonic()
        while True:
            now = time.monotonic()
            if not process.alive():
                raise self._failed(explain(process.log_tail(), exit_code=process.exit_code))
            if self.ask("/healthcheck") is not None:
                found = listeners(self.server.http_port)
                if found and found.isdisjoint(stat.pid for stat in process.tree(fresh=True)):
                    raise self._failed(Cause("port", "its port is answered by another process", None, ()))
                return
            if now - began >= self._timeout_s:
                cause = f"it was not ready after {self._timeout_s:.0f} s"
                raise self._failed(Cause(None, cause, "raise engine.ready_timeout if it only needs longer", ()))
            if now - said_at >= PROGRESS_S:
                said_at = now
                progress(f"{self._launch.label}: starting … {now - began:.0f} s")
            time.sleep(POLL_S)

    def _failed(self, cause: Cause) -> StartFailed:
        where = Readiness(
            self._launch.label, self.url, self.server.http_port, str(self._launch.log), self._timeout_s
        )
        return StartFailed(where, cause)

    def ask(self, path: str, method: str = "GET") -> object:
        """The JSON of one of its routes; None when it does not answer with any."""
        try:
            answer = httpx.request(method, self.url + path, timeout=ANSWER_S, trust_env=False)
            return answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    def state(self) -> EngineState:
        """Alive or how it ended; its processes."""
        if self._process is None:
            return EngineState(alive=False, detail="its LMCache server was not started")
        state = self._process.state()
        if state.alive:
            return state
        cause = explain(self._process.log_tail())
        says = "" if cause.id is None else f": {cause.says}"
        return replace(state, detail=f"{_of_server(state.detail)}{says}")

    def stop(self) -> None:
        """End it and remove everything it left."""
        if self._process is not None:
            self._process.stop()

    def remarks(self) -> tuple[str, ...]:
        """How it had to be stopped, where it did not end as it was asked to."""
        remark = None if self._process is None else self._process.remark
        return () if remark is None else (_of_server(remark),)


def _of_server(text: str) -> str:
    return text.replace("the engine", "its LMCache server", 1)
