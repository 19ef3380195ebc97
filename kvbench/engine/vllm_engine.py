"""vLLM as a launched engine: environment, flags, port, start, proof, reset, stop."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import httpx

from kvbench.engine import environment, host_copy, models, recipe
from kvbench.engine.base import Effective, Endpoint, EngineState, Launch, Progress, Rendered
from kvbench.engine.flags import check_flags, flag_name, known_flags, shipped_flags
from kvbench.engine.launch import EngineProcess, LaunchPlan, plan_launch
from kvbench.engine.ports import LOOPBACK, check_free, free_port
from kvbench.engine.proof import ask_server, check_version, compare, mapped_host_bytes, same_version
from kvbench.engine.ready import Readiness, StartFailed, wait_until_ready
from kvbench.engine.remains import make_directory
from kvbench.engine.reset import empty_disk, reset_caches
from kvbench.engine.vllm import EMBEDDED_ENVIRONMENT, EXTRA_BODY, Place, check_args, render
from kvbench.errors import EngineError, InputError, NotSupportedYetError
from kvbench.spec.profile import Profile

__all__ = ["DEFAULT_PORT", "DEFAULT_TOKEN_IDS", "VllmEngine", "check_startable", "render_without_start"]

DEFAULT_PORT = 8000
"""vLLM's own; stands in a rendered command for the free port that a launch takes."""

DEFAULT_TOKEN_IDS = (32, 255)
"""Printable in byte-level vocabularies and present in all others."""

SERVER_MODULE = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True)
class _Installed:
    """The command of a profile's engine, and what is known about it before it runs."""

    command: tuple[str, ...]
    version: str | None
    environment: environment.EngineEnvironment | None


class VllmEngine:
    """One start of vLLM."""

    kind: Literal["vllm"] = "vllm"

    def __init__(self, profile: Profile, launch: Launch) -> None:
        self._profile = profile
        self._launch = replace(launch, directory=launch.directory.absolute(), log=launch.log.absolute())
        self._process: EngineProcess | None = None
        self._plan: LaunchPlan | None = None
        self._endpoint: Endpoint | None = None

    def start(self, progress: Progress) -> Endpoint:
        """Start it and wait until it answers; one that loses a race for its port is started again once."""
        installed = check_startable(self._profile, progress)
        model = _model(self._profile, installed, progress)
        asked = _asked_port(self._profile)
        if asked is not None:
            check_free(asked)
        try:
            return self._start_once(installed, model, asked or free_port(), progress)
        except StartFailed as error:
            if error.cause.id != "port" or asked is not None:
                raise
            progress(f"{self._launch.label}: the port was taken meanwhile; starting again on another one")
            if self._launch.disk_directory is not None:
                make_directory(self._launch.disk_directory)
            return self._start_once(installed, model, free_port(), progress)

    def _start_once(self, installed: _Installed, model: str, port: int, progress: Progress) -> Endpoint:
        self._plan = plan_launch(self._launch, port)
        place = _place(
            self._profile,
            installed.command,
            model,
            port=port,
            engine_id=self._plan.lease.engine_id,
            disk_directory=self._launch.disk_directory,
        )
        self._process = EngineProcess(self._plan, render(self._profile, place))
        try:
            self._process.start()
            base_url = f"http://{LOOPBACK}:{port}"
            readiness = Readiness(
                label=self._launch.label,
                base_url=base_url,
                port=port,
                log=str(self._launch.log),
                timeout_s=self._profile.engine.ready_timeout,
            )
            wait_until_ready(self._process, readiness, progress)
            self._endpoint = _endpoint(self._profile, base_url)
            self._check_version()
        except BaseException:
            self.stop()
            raise
        return self._endpoint

    def _check_version(self) -> None:
        with self._client() as client:
            answer = client.get("/version")
            check_version(self._profile, answer.json().get("version") if answer.status_code == 200 else None)

    def _client(self) -> httpx.Client:
        if self._endpoint is None:
            raise EngineError(f"{self._launch.label}: the engine has not been started")
        return httpx.Client(base_url=self._endpoint.base_url, trust_env=False, timeout=10.0)

    def effective(self) -> Effective:
        """What the server and its processes' memory prove."""
        with self._client() as client:
            seen = ask_server(client, "/metrics")
        engine_id = self._plan.lease.engine_id if self._plan is not None else ""
        mapped = mapped_host_bytes(self.state().pids, engine_id)
        embedded = self._profile.engine.environment == EMBEDDED_ENVIRONMENT
        # Its absence is a fact where kvbench's plugin makes the region; elsewhere host memory may be had otherwise.
        seen.host_mapped_bytes = mapped if mapped or embedded else None
        return compare(self._profile, seen)

    def state(self) -> EngineState:
        """Alive or how it ended; its process tree."""
        return EngineState(alive=False, detail="not started") if self._process is None else self._process.state()

    def reset(self) -> tuple[str, ...]:
        """Empty device and host through the development routes, and the disk tier's directory."""
        with self._client() as client:
            remains = reset_caches(client)
        if self._launch.disk_directory is not None:
            remains += empty_disk(self._launch.disk_directory)
        return remains

    def stop(self) -> None:
        """End it and remove everything it left; also what was made for a start that never came."""
        if self._process is None:
            plan = plan_launch(self._launch, 0)
            EngineProcess(plan, Rendered(argv=(), env={})).stop()
        else:
            self._process.stop()


def check_startable(profile: Profile, progress: Progress) -> _Installed:
    """What is known of a start before anything is started. InputError when command, version or flags are wrong."""
    check_args(profile.engine)
    installed = _find(profile)
    _check_args(profile, installed, progress)
    return installed


def _asked_port(profile: Profile) -> int | None:
    port = next((v for k, v in profile.engine.args.items() if flag_name(k) == "port"), None)
    if port is None:
        return None
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise InputError(f"engine.args.port: {port!r} is no port", do="use a number from 1 to 65535")
    return port


def _find(profile: Profile) -> _Installed:
    """The engine's command; InputError when there is none or it is of another version than pinned."""
    spec = profile.engine
    if spec.image is not None:
        raise NotSupportedYetError(
            "engine.image: starting an engine from an image",
            do="start the container yourself and use kind: attached",
        )
    if spec.command:
        return _Installed(tuple(spec.command), spec.version, None)
    if spec.environment is None:
        raise InputError(
            f"profile {profile.name} does not say how vLLM is started",
            do="give engine.environment (see `kvbench engine list`) or engine.command",
        )
    found = environment.find(spec.environment)
    if spec.version is not None and not same_version(spec.version, found.vllm_version):
        raise InputError(
            f"profile {profile.name} pins version {spec.version}, and environment {found.name} has"
            f" {found.vllm_version}",
            do=f"pin version: {found.vllm_version}, or use another environment",
        )
    return _Installed(_environment_command(spec.environment, found.python), found.vllm_version, found)


def _environment_command(name: str, python: Path) -> tuple[str, ...]:
    return (str(python), "-m", host_copy.SERVER_MODULE if name == EMBEDDED_ENVIRONMENT else SERVER_MODULE)


def _check_args(profile: Profile, installed: _Installed, progress: Progress) -> None:
    args = dict(profile.engine.args)
    if profile.tiers.device.kv_dtype != "auto":
        args["kv-cache-dtype"] = profile.tiers.device.kv_dtype
    if not args:
        return
    flags = shipped_flags(installed.version) if installed.environment is not None else None
    if flags is None:
        command = installed.command
        if installed.environment is not None:
            command = (str(installed.environment.python), "-m", SERVER_MODULE)
        flags = known_flags(command, installed.version, environment.kvbench_home(), progress)
    if flags is None:
        progress(
            f"{profile.name}: the engine's command has no --help=all; its flags are not checked before the start"
        )
        return
    check_flags(args, flags, engine=f"vLLM {installed.version or ''}".strip())


def _model(profile: Profile, installed: _Installed, progress: Progress) -> str:
    """A directory where the model is built in or given as one, else its hub id."""
    name = profile.engine.model
    maker = installed.environment
    if maker is None and name in models.BUILT_IN_MODELS:
        maker = environment.find_or_none(EMBEDDED_ENVIRONMENT)
    return str(models.model_directory(name) if maker is None else models.model_path(name, maker, progress))


def _place(
    profile: Profile,
    command: tuple[str, ...],
    model: str,
    *,
    port: int,
    engine_id: str,
    disk_directory: Path | None,
) -> Place:
    return Place(
        command=command,
        embedded=profile.engine.environment == EMBEDDED_ENVIRONMENT,
        port=port,
        engine_id=engine_id,
        model=model,
        local_model=Path(model).is_absolute(),
        disk_directory=disk_directory,
        cores=len(os.sched_getaffinity(0)),
    )


def _endpoint(profile: Profile, base_url: str) -> Endpoint:
    given = profile.engine.token_id_range
    if given is None:
        given = models.token_id_range(profile.engine.model)
    return Endpoint(
        base_url=base_url,
        metrics_url=f"{base_url}/metrics",
        model=profile.served_name,
        token_id_range=given or DEFAULT_TOKEN_IDS,
        extra_body=dict(EXTRA_BODY),
    )


def render_without_start(profile: Profile) -> Rendered:
    """The command as a launch would give it, with stand-ins for port, engine id and disk directory."""
    check_args(profile.engine)
    spec = profile.engine
    if spec.environment is None:
        command, version = _find(profile).command, spec.version
    else:
        command = _environment_command(spec.environment, environment.environment_python(spec.environment))
        version = recipe.VLLM_VERSION if spec.environment == EMBEDDED_ENVIRONMENT else spec.version
    flags = shipped_flags(version)
    if flags is not None:
        check_flags(spec.args, flags, engine=f"vLLM {version}")
    model = str(models.model_directory(spec.model))
    port = _asked_port(profile) or DEFAULT_PORT
    name = f"kvbench-{profile.name}"
    disk = profile.tiers.disk
    directory = None if disk is None else disk.path.expanduser() / name
    return render(profile, _place(profile, command, model, port=port, engine_id=name, disk_directory=directory))
