"""vLLM as a launched engine: environment, image or command; flags, proof and reset."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kvbench.engine import environment, host_copy, models, recipe
from kvbench.engine.base import Effective, Endpoint, KvEventTarget, Launch, Progress, Rendered
from kvbench.engine.container_remains import Container
from kvbench.engine.containers import (
    Bind,
    ImageFacts,
    Setting,
    by_client,
    container_of,
    find_image,
    in_container,
    short_command,
)
from kvbench.engine.flags import Flags, check_flags, known_flags, shipped_flags
from kvbench.engine.launch import LaunchPlan
from kvbench.engine.launched import LaunchedEngine, asked_port
from kvbench.engine.lmcache import BESIDE, LmcacheServer, via_lmcache
from kvbench.engine.lmcache_container import ipc_of, server_container, server_in_container
from kvbench.engine.ports import LOOPBACK
from kvbench.engine.proof import Seen, ask_server, compare, mapped_host_bytes, same_version
from kvbench.engine.reset import empty_disk, reset_caches
from kvbench.engine.vllm import EMBEDDED_ENVIRONMENT, EXTRA_BODY, PAST_SECONDARY, Place, check_args, render
from kvbench.engine.vllm_flags import check_written_flags
from kvbench.errors import EngineError, InputError
from kvbench.spec.places import about, placed
from kvbench.spec.profile import Profile

__all__ = ["DEFAULT_PORT", "DEFAULT_TOKEN_IDS", "VllmEngine", "check_startable", "render_without_start"]

DEFAULT_PORT = 8000
"""vLLM's own; stands in a rendered command for the free port that a launch takes."""

DEFAULT_EVENTS_PORT = 5557
"""vLLM's own, too; stands for the port at which kvbench listens for KV events."""

DEFAULT_TOKEN_IDS = (32, 255)
"""Printable in byte-level vocabularies and present in all others."""

SERVER_MODULE = "vllm.entrypoints.openai.api_server"


LMCACHE_FILE = "lmcache.yaml"

IMAGE_COMMAND = ("python3", "-m", SERVER_MODULE)
"""In an image, whatever its own entry point is."""


@dataclass(frozen=True)
class _Installed:
    """The command of a profile's engine, and what is known about it before it runs."""

    command: tuple[str, ...]
    version: str | None
    environment: environment.EngineEnvironment | None = None
    container: Container | None = None
    image: ImageFacts | None = None


class VllmEngine(LaunchedEngine):
    """One start of vLLM."""

    kind: Literal["vllm"] = "vllm"

    def __init__(self, profile: Profile, launch: Launch) -> None:
        super().__init__(profile, launch)
        self._installed: _Installed | None = None
        self._model = ""

    def _prepare(self, progress: Progress) -> None:
        self._installed = check_startable(self._profile, progress)
        self._model = _model(self._profile, self._installed, progress)

    def _container(self) -> Container | None:
        return self._installed.container if self._installed is not None else None

    def _rendered(self, plan: LaunchPlan, port: int) -> Rendered:
        if self._installed is None:
            raise EngineError(f"{self._launch.label}: the engine has not been looked for")
        place = _place(
            self._profile,
            self._installed.command,
            self._model,
            port=port,
            engine_id=plan.lease.engine_id,
            disk_directory=self._launch.disk_directory,
            kv_events=self._launch.kv_events,
        )
        place = replace(place, lmcache=self._lmcache_at(), lmcache_file=self._launch.directory / LMCACHE_FILE)
        rendered = render(self._profile, place)
        if plan.lease.container is None:
            return rendered
        setting = _setting(place, plan.lease.container, lease_id=plan.lease.id, home=plan.home, ipc=self._ipc())
        return in_container(self._profile, rendered, setting)

    def _lmcache_at(self) -> LmcacheServer:
        """Where its LMCache server is, if it has one."""
        return LmcacheServer()

    def _ipc(self) -> str | None:
        """Whose IPC namespace its container is to share, if anybody's."""
        return None

    def _endpoint_at(self, base_url: str, served: list[str]) -> Endpoint:
        return _endpoint(self._profile, base_url)

    def effective(self) -> Effective:
        """What the server and its processes' memory prove."""
        seen = self._ask()
        engine_id = self._plan.lease.engine_id if self._plan is not None else ""
        mapped = mapped_host_bytes(self.state().pids, engine_id)
        embedded = self._profile.engine.environment == EMBEDDED_ENVIRONMENT
        # Its absence is a fact where kvbench's plugin makes the region; elsewhere host memory may be had otherwise.
        seen.host_mapped_bytes = mapped if mapped or embedded else None
        return compare(self._profile, seen)

    def _ask(self) -> Seen:
        """What the server tells, and what was found out about its image."""
        with self._client() as client:
            seen = ask_server(client, "/metrics")
        if self._installed is not None and self._installed.image is not None:
            seen.texts["container"] = self._installed.image.as_dict()
        return seen

    def reset(self) -> tuple[str, ...]:
        """Empty device and host through the development routes, and the disk tier's directory."""
        with self._client() as client:
            remains = reset_caches(client)
        if self._launch.disk_directory is not None:
            remains += empty_disk(self._launch.disk_directory)
        return remains


def check_startable(profile: Profile, progress: Progress) -> _Installed:
    """What is known of a start before anything is started. InputError when command, version or flags are wrong."""
    with placed(profile):
        check_args(profile.engine)
        asked_port(profile)
        installed = _find(profile, progress)
        with about("engine", "command"):
            _check_args(profile, installed, progress)
    return installed


def _find(profile: Profile, progress: Progress) -> _Installed:
    """The engine's command; InputError when there is none or it is of another version than pinned."""
    spec = profile.engine
    with about("engine", "image"):
        container = container_of(profile)
    if container is not None:
        image = find_image(profile, container, progress)
        return _Installed(_image_command(profile), spec.version, container=container, image=image)
    if spec.command:
        return _Installed(tuple(spec.command), spec.version)
    if spec.environment is None:
        raise InputError(
            f"profile {profile.name} does not say how vLLM is started",
            key=("engine",),
            do="give engine.environment (see `kvbench engine list`) or engine.command",
        )
    with about("engine", "environment"):
        found = environment.find(spec.environment)
    _check_pin(profile, found.name, found.vllm_version)
    if via_lmcache(profile) and "lmcache" not in found.extras:
        raise InputError(
            f"profile {profile.name} has a host tier via lmcache, and LMCache is not in environment {found.name}",
            key=("tiers", "host", "via"),
            do=f"run `kvbench engine install {found.name} --with lmcache`",
        )
    return _Installed(_environment_command(spec.environment, found.python), found.vllm_version, found)


def _check_pin(profile: Profile, name: str, version: str) -> None:
    pinned = profile.engine.version
    if pinned is not None and not same_version(pinned, version):
        raise InputError(
            f"profile {profile.name} pins version {pinned}, and environment {name} has {version}",
            key=("engine", "version"),
            do=f"pin version: {version}, or use another environment",
        )


def _image_command(profile: Profile) -> tuple[str, ...]:
    """What the container runs, up to the first flag."""
    container = profile.engine.container
    return tuple(container.entrypoint) if container is not None and container.entrypoint else IMAGE_COMMAND


def _environment_command(name: str, python: Path) -> tuple[str, ...]:
    return (str(python), "-m", host_copy.SERVER_MODULE if name == EMBEDDED_ENVIRONMENT else SERVER_MODULE)


def _check_args(profile: Profile, installed: _Installed, progress: Progress) -> None:
    flags = shipped_flags(installed.version) if installed.environment is not None else None
    if flags is None:
        command = _help_command(profile, installed)
        home, container = environment.kvbench_home(), installed.container
        env = profile.engine.env if container is None else by_client(profile)
        flags = known_flags(command, installed.version, home, progress, container=container, env=env)
    if flags is None:
        progress(
            f"{profile.name}: the engine's command has no --help=all; its flags are not checked before the start"
        )
        return
    _check_all_flags(profile, installed.command, installed.version, flags)


def _check_all_flags(profile: Profile, command: tuple[str, ...], version: str | None, flags: Flags) -> None:
    """Those of the profile's `args`, and those that kvbench writes."""
    engine = f"vLLM {version or ''}".strip()
    check_flags(profile.engine.args, flags, engine=engine)
    argv = render(profile, _stand_in_place(profile, command)).argv
    check_written_flags(profile, argv[len(command) :], flags, engine=engine)


def _help_command(profile: Profile, installed: _Installed) -> tuple[str, ...]:
    if installed.container is not None:
        return short_command(profile, installed.container, installed.command)
    if installed.environment is not None:
        return (str(installed.environment.python), "-m", SERVER_MODULE)
    return installed.command


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
    kv_events: KvEventTarget | None,
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
        kv_events=kv_events,
    )


def _setting(place: Place, container: Container, *, lease_id: str, home: Path, ipc: str | None) -> Setting:
    """The directories that the engine in the container needs of the host."""
    binds = [Bind(Path(place.model), Path(place.model), read_only=True)] if place.local_model else []
    if place.disk_directory is not None:
        binds.append(Bind(place.disk_directory, place.disk_directory, read_only=False))
    return Setting(container, lease_id, home, tuple(binds), needs_hub=not place.local_model, ipc=ipc)


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
        past_secondary=dict(PAST_SECONDARY),
    )


def render_without_start(profile: Profile) -> Rendered:
    """The command as a launch would give it, with stand-ins for ports, engine id and directories."""
    check_args(profile.engine)
    spec = profile.engine
    command, version = _command_without_start(profile)
    flags = shipped_flags(version)
    if flags is not None:
        _check_all_flags(profile, command, version, flags)
    name = f"kvbench-{profile.name}"
    place = _stand_in_place(profile, command)
    rendered = render(profile, place)
    if spec.image is None:
        return rendered
    container = Container((spec.container and spec.container.runtime) or "docker", name)
    return _shown_in_containers(profile, rendered, place, container)


def _shown_in_containers(profile: Profile, rendered: Rendered, place: Place, container: Container) -> Rendered:
    """The engine's, and what is started beside it in its own; what a launch would name is named after them."""
    server, ipc, beside = rendered.beside.get(BESIDE), None, {}
    if server is not None:
        its = server_container(container)
        home, disk = _stand_in_home(its), place.disk_directory
        contained = server_in_container(profile, server, its, lease_id=its.name, home=home, disk_root=disk)
        ipc, beside, place = ipc_of(its), {BESIDE: contained}, replace(place, disk_directory=None)
    setting = _setting(place, container, lease_id=container.name, home=_stand_in_home(container), ipc=ipc)
    return replace(in_container(profile, rendered, setting), beside=beside)


def _stand_in_home(container: Container) -> Path:
    return Path(tempfile.gettempdir()).absolute() / container.name


def _stand_in_place(profile: Profile, command: tuple[str, ...]) -> Place:
    """As a launch would give it, with stand-ins for ports, engine id and directories."""
    name, disk = f"kvbench-{profile.name}", profile.tiers.disk
    place = _place(
        profile,
        command,
        str(models.model_directory(profile.engine.model)),
        port=asked_port(profile) or DEFAULT_PORT,
        engine_id=name,
        disk_directory=None if disk is None else disk.path.expanduser() / name,
        kv_events=KvEventTarget(f"tcp://{LOOPBACK}:{DEFAULT_EVENTS_PORT}", name),
    )
    return replace(place, lmcache_file=Path(f"{name}-{LMCACHE_FILE}").absolute())


def _command_without_start(profile: Profile) -> tuple[tuple[str, ...], str | None]:
    """Command and version; nothing has to be installed."""
    spec = profile.engine
    if spec.image is not None:
        return _image_command(profile), spec.version
    if spec.environment is None:
        return _find(profile, lambda _: None).command, spec.version
    with about("engine", "environment"):
        command = _environment_command(spec.environment, environment.environment_python(spec.environment))
    if spec.environment != EMBEDDED_ENVIRONMENT:
        return command, spec.version
    _check_pin(profile, spec.environment, recipe.VLLM_VERSION)
    return command, recipe.VLLM_VERSION
