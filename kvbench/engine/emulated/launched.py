"""The emulated engine as an arm of a comparison: launched, proven, reset and stopped as every other engine is."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import httpx

from kvbench.engine.base import Effective, Endpoint, EngineState, Launch, Progress, Rendered
from kvbench.engine.emulated.answers import FIRST_ID, LAST_ID
from kvbench.engine.emulated.sizes import sizes_of
from kvbench.engine.launch import EngineProcess, LaunchPlan, plan_launch
from kvbench.engine.ports import LOOPBACK, check_free, free_port
from kvbench.engine.proof import ask_server, check_version, compare
from kvbench.engine.ready import Readiness, StartFailed, wait_until_ready
from kvbench.engine.reset import reset_caches
from kvbench.engine.vllm import EXTRA_BODY
from kvbench.errors import EngineError
from kvbench.spec.profile import Profile

__all__ = ["DEFAULT_PORT", "EmulatedEngine", "render"]

DEFAULT_PORT = 8000
"""Stands in a rendered command for the free port that a launch takes."""

SERVER_MODULE = "kvbench.engine.emulated.server"
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL; the server has nothing to put in order."""


def render(profile: Profile, *, port: int, file: Path, label: str) -> Rendered:
    """The start of `profile`; `file` is where its settings are written."""
    settings = {"profile": profile.model_dump(mode="json", by_alias=True, exclude_none=True), "label": label}
    argv = (sys.executable, "-m", SERVER_MODULE, "--config", str(file), "--port", str(port))
    return Rendered(argv=argv, env={}, files={str(file): json.dumps(settings, indent=2) + "\n"})


class EmulatedEngine:
    """One start of an emulated engine."""

    kind: Literal["emulated"] = "emulated"

    def __init__(self, profile: Profile, launch: Launch) -> None:
        self._profile = profile
        self._launch = replace(launch, directory=launch.directory.absolute(), log=launch.log.absolute())
        self._process: EngineProcess | None = None
        self._plan: LaunchPlan | None = None
        self._endpoint: Endpoint | None = None

    def start(self, progress: Progress) -> Endpoint:
        """Start it and wait until it answers; one that loses a race for its port is started again once."""
        asked = self._profile.engine.args.get("port")
        if isinstance(asked, int):
            check_free(asked)
            return self._start_once(asked, progress)
        try:
            return self._start_once(free_port(), progress)
        except StartFailed as error:
            if error.cause.id != "port":
                raise
            return self._start_once(free_port(), progress)

    def _start_once(self, port: int, progress: Progress) -> Endpoint:
        self._plan = plan_launch(self._launch, port)
        file = self._launch.directory / "emulated.json"
        rendered = render(self._profile, port=port, file=file, label=self._launch.label)
        self._process = EngineProcess(self._plan, rendered, grace_s=GRACE_S)
        base_url = f"http://{LOOPBACK}:{port}"
        try:
            self._process.start()
            readiness = Readiness(
                label=self._launch.label,
                base_url=base_url,
                port=port,
                log=str(self._launch.log),
                timeout_s=self._profile.engine.ready_timeout,
            )
            wait_until_ready(self._process, readiness, progress)
            self._endpoint = Endpoint(
                base_url=base_url,
                metrics_url=f"{base_url}/metrics",
                model=self._profile.served_name,
                token_id_range=self._profile.engine.token_id_range or (FIRST_ID, LAST_ID),
                extra_body=dict(EXTRA_BODY),
            )
            with self._client() as client:
                check_version(self._profile, client.get("/version").json().get("version"))
        except BaseException:
            self.stop()
            raise
        return self._endpoint

    def _client(self) -> httpx.Client:
        if self._endpoint is None:
            raise EngineError(f"{self._launch.label}: the engine has not been started")
        return httpx.Client(base_url=self._endpoint.base_url, trust_env=False, timeout=10.0)

    def effective(self) -> Effective:
        """What the server says of itself. It holds no KV, so there is no memory that could prove the host tier."""
        with self._client() as client:
            seen = ask_server(client, "/metrics")
        transfer = seen.section("kv_transfer_config") or {}
        extra = transfer.get("kv_connector_extra_config") or {}
        said = extra.get("cpu_bytes_to_use")
        seen.host_mapped_bytes = said if isinstance(said, int) else 0
        seen.texts["emulated"] = sizes_of(self._profile).__dict__
        return compare(self._profile, seen)

    def state(self) -> EngineState:
        """Alive or how it ended; its process."""
        return EngineState(alive=False, detail="not started") if self._process is None else self._process.state()

    def reset(self) -> tuple[str, ...]:
        """Empty every tier, the disk included: it is in the server's memory."""
        with self._client() as client:
            return reset_caches(client)

    def stop(self) -> None:
        """End it and remove everything it left; also what was made for a start that never came."""
        if self._process is None:
            EngineProcess(plan_launch(self._launch, 0), Rendered(argv=(), env={})).stop()
        else:
            self._process.stop()
