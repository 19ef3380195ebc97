"""What all engines that kvbench starts itself have in common: a port, a start with one retry, state and stop.

A kind of engine adds how it is found and checked, its command, its endpoint and its proof.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import httpx

from kvbench.engine.base import Effective, Endpoint, EngineState, Launch, Progress, Rendered
from kvbench.engine.container_remains import Container
from kvbench.engine.failures import explain
from kvbench.engine.flags import flag_name
from kvbench.engine.launch import GRACE_S, EngineProcess, LaunchPlan, plan_launch
from kvbench.engine.ports import LOOPBACK, check_free, free_port
from kvbench.engine.proof import check_version, version_of
from kvbench.engine.ready import Readiness, StartFailed, silent_since_ready, wait_until_ready
from kvbench.errors import EngineError, InputError
from kvbench.spec.places import placed
from kvbench.spec.profile import Profile

__all__ = ["LaunchedEngine", "asked_port"]

ANSWER_S = 10.0


def asked_port(profile: Profile) -> int | None:
    """The port that a profile asks for; None: any free one. InputError when it is no port."""
    port = next((value for key, value in profile.engine.args.items() if flag_name(key) == "port"), None)
    if port is None:
        return None
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise InputError(f"{port!r} is no port", key=("engine", "args", "port"), do="use a number from 1 to 65535")
    return port


class LaunchedEngine(ABC):
    """One start of one engine under a keeper."""

    grace_s = GRACE_S
    """Between SIGTERM and SIGKILL."""

    def __init__(self, profile: Profile, launch: Launch) -> None:
        self._profile = profile
        self._launch = replace(launch, directory=launch.directory.absolute(), log=launch.log.absolute())
        self._process: EngineProcess | None = None
        self._plan: LaunchPlan | None = None
        self._endpoint: Endpoint | None = None

    @abstractmethod
    def _prepare(self, progress: Progress) -> None:
        """Find the engine and check what can be wrong before anything is started."""

    @abstractmethod
    def _rendered(self, plan: LaunchPlan, port: int) -> Rendered:
        """The command of this start."""

    @abstractmethod
    def _endpoint_at(self, base_url: str, served: list[str]) -> Endpoint:
        """Where requests go, once the server at `base_url` answers and lists the models `served`."""

    @abstractmethod
    def effective(self) -> Effective:
        """Ask the running server what it is and compare that with the profile."""

    @abstractmethod
    def reset(self) -> tuple[str, ...]:
        """Empty every tier that can be emptied without a restart; returns what could not be."""

    def _container(self) -> Container | None:
        """What the engine runs in; known once `_prepare` has returned."""
        return None

    def _start_beside(self, progress: Progress) -> None:  # noqa: B027 - most kinds are alone
        """Start what has to be there before the engine. `stop` ends it, too."""

    def _answers(self, progress: Progress) -> None:  # noqa: B027 - most kinds have nothing left to do
        """What is left to do of the start once requests are answered."""

    def start(self, progress: Progress) -> Endpoint:
        """Start it and wait until it answers; one that loses a race for its port is started again once."""
        with placed(self._profile):
            return self._started(progress)

    def _started(self, progress: Progress) -> Endpoint:
        self._prepare(progress)
        asked = asked_port(self._profile)
        if asked is not None:
            check_free(asked)
        try:
            return self._start_once(asked or free_port(), progress)
        except StartFailed as error:
            if error.cause.id != "port" or asked is not None:
                raise
            progress(f"{self._launch.label}: the port was taken meanwhile; starting again on another one")
            return self._start_once(free_port(), progress)

    def _start_once(self, port: int, progress: Progress) -> Endpoint:
        base_url = f"http://{LOOPBACK}:{port}"
        try:
            self._start_beside(progress)
            self._plan = plan_launch(self._launch, port, self._container())
            process = EngineProcess(self._plan, self._rendered(self._plan, port), grace_s=self.grace_s)
            self._process = process
            process.start()
            readiness = Readiness(
                label=self._launch.label,
                base_url=base_url,
                port=port,
                log=str(self._launch.log),
                timeout_s=self._profile.engine.ready_timeout,
            )
            served = wait_until_ready(process, readiness, progress)
            self._endpoint = self._endpoint_at(base_url, served)
            self._check_version(process, readiness)
            self._answers(progress)
        except BaseException:
            self.stop()
            raise
        return self._endpoint

    def _check_version(self, process: EngineProcess, readiness: Readiness) -> None:
        """What cannot be understood leaves the version unknown; no answer at all is a failed start."""
        try:
            with self._client() as client:
                version = version_of(client.get("/version"))
        except httpx.HTTPError as error:
            raise silent_since_ready(process, readiness, f"/version: {error or type(error).__name__}") from None
        check_version(self._profile, version)

    def _client(self) -> httpx.Client:
        if self._endpoint is None:
            raise EngineError(f"{self._launch.label}: the engine has not been started")
        return httpx.Client(base_url=self._endpoint.base_url, trust_env=False, timeout=ANSWER_S)

    def state(self) -> EngineState:
        """Alive or how it ended, with the cause where its log tells a known one; its process tree."""
        if self._process is None:
            return EngineState(alive=False, detail="not started")
        state = self._process.state()
        if state.alive:
            return state
        cause = explain(self._process.log_tail())
        return state if cause.id is None else replace(state, detail=f"{state.detail}: {cause.says}")

    def stop(self) -> None:
        """End it and remove everything it left."""
        if self._process is not None:
            self._process.stop()

    def remarks(self) -> tuple[str, ...]:
        """How it had to be stopped, where it did not end as it was asked to."""
        remark = None if self._process is None else self._process.remark
        return () if remark is None else (remark,)
