"""An engine's command inside a container: the exact call of docker or podman, the runtime and the image it needs.

The container shares the host's network, so that the engine listens on loopback as everywhere else, and has its own
`/dev/shm`, so that nothing can stay in the host's. Removing it is `container_remains`. Sizes in bytes.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvbench.engine.base import Progress, Rendered
from kvbench.engine.container_processes import reached_by
from kvbench.engine.container_remains import LABEL, Container, ask_runtime
from kvbench.engine.leases import MARKER
from kvbench.errors import EngineError, InputError
from kvbench.spec.container import ContainerSpec
from kvbench.spec.profile import Profile

__all__ = [
    "Bind",
    "ImageFacts",
    "Setting",
    "container_of",
    "find_image",
    "hub_cache",
    "in_container",
    "short_command",
]

ULIMITS = {"memlock": -1, "stack": 64 * 2**20, "nofile": 65536}
"""Pinned host memory must not be limited, and NVIDIA's images ask for that stack; files: connections and blocks."""

ENGINE_SHM_BYTES = 8 * 2**30
"""Queues between the engine's processes (vLLM: up to 250 MB each) and NCCL's; taken only when used."""

PULL_QUIET_S = 5.0


@dataclass(frozen=True)
class Bind:
    """Something of the host that the container sees under the same or another path."""

    source: Path
    target: Path
    read_only: bool


@dataclass(frozen=True)
class Setting:
    """What a profile does not say about one container: its name, its launch and the launch's directories."""

    container: Container
    lease_id: str
    home: Path
    """Of this launch alone: HOME and temporary files of the engine."""
    binds: tuple[Bind, ...]
    needs_hub: bool
    """Whether the engine may fetch its model."""


@dataclass(frozen=True)
class ImageFacts:
    """What the runtime says about itself and about the image."""

    runtime: str
    image_id: str
    digests: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """For the manifest."""
        return {"runtime": self.runtime, "image_id": self.image_id, "digests": list(self.digests)}


def container_of(profile: Profile) -> Container | None:
    """The runtime that a profile's image is run with; None without an image. InputError when there is none."""
    if profile.engine.image is None:
        return None
    wanted = _spec(profile).runtime
    for name in (wanted,) if wanted is not None else ("docker", "podman"):
        found = shutil.which(name)
        if found is not None:
            return Container(str(Path(found).absolute()), f"kvbench-{profile.name}", reached_by())
    raise InputError(
        f"profile {profile.name} runs in a container, and there is no {wanted or 'docker or podman'} on the PATH",
        do="install it, or start the engine yourself and use kind: attached",
    )


def _spec(profile: Profile) -> ContainerSpec:
    return profile.engine.container or ContainerSpec()


def find_image(profile: Profile, container: Container, progress: Progress) -> ImageFacts:
    """The image, pulled when it is not here yet. EngineError when the runtime or the registry refuses."""
    image = profile.engine.image or ""
    name = Path(container.runtime).name
    asked = ("info", "{{.Version.Version}}") if name == "podman" else ("version", "{{.Server.Version}}")
    code, output, errors = ask_runtime(container, asked[0], "--format", asked[1])
    if code != 0:
        raise EngineError(
            f"{container.runtime} does not work: {errors.strip()[-300:] or f'exit code {code}'}",
            do="start its service, or see that this user may use it",
        )
    facts = _inspect(container, image)
    if facts is None:
        _pull(container, image, progress)
        facts = _inspect(container, image)
    if facts is None:
        raise EngineError(f"{container.runtime} pulled {image}, but does not find it", do="see its own log")
    return ImageFacts(f"{name} {output.strip()}".strip(), *facts)


def _inspect(container: Container, image: str) -> tuple[str, tuple[str, ...]] | None:
    code, output, _ = ask_runtime(container, "image", "inspect", image)
    try:
        entry = json.loads(output)[0] if code == 0 else None
        return None if entry is None else (str(entry["Id"]), tuple(map(str, entry.get("RepoDigests") or ())))
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def _pull(container: Container, image: str, progress: Progress) -> None:
    """Images of engines are 10 to 30 GB, so no time limit but the user's own."""
    progress(f"pulling {image}")
    began, said = time.monotonic(), 0.0
    pull = subprocess.Popen(
        [container.runtime, "pull", "--quiet", image],
        env={**os.environ, **dict(container.reached_by)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        while pull.poll() is None:
            time.sleep(0.1)
            if time.monotonic() - began - said > PULL_QUIET_S:
                said = time.monotonic() - began
                progress(f"pulling {image} … {said:.0f} s")
    finally:
        if pull.poll() is None:
            pull.terminate()
            pull.wait()
    words = pull.stdout.read().strip()[-300:] if pull.stdout is not None else ""
    if pull.returncode != 0:
        raise EngineError(
            f"{image} cannot be pulled: {words or f'exit code {pull.returncode}'}",
            do="check engine.image, and that this user is logged in at its registry",
        )


def hub_cache() -> Path:
    """Where models that were fetched before lie on this host."""
    return Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser().absolute()


def in_container(profile: Profile, rendered: Rendered, setting: Setting) -> Rendered:
    """`rendered`, whose command is the image's own, as a call of the runtime.

    Variables of the profile are handed on by name, so that their values are in no list of processes.
    """
    spec = _spec(profile)
    image = profile.engine.image or ""
    binds = [Bind(path, path, read_only=True) for path in map(Path, rendered.files)]
    binds = [Bind(setting.home, setting.home, read_only=False), *setting.binds, *binds, *_asked(spec)]
    own = _own_environment(rendered, spec, setting)
    if setting.needs_hub and "HF_HOME" not in rendered.env and hub_cache().is_dir():
        binds.append(Bind(hub_cache(), hub_cache(), read_only=False))
        own["HF_HOME"] = str(hub_cache())
    by_name = [name for name in (*rendered.env, *spec.env_from) if name not in own]
    by_name += ["HF_TOKEN"] if setting.needs_hub and "HF_TOKEN" not in by_name else []
    entrypoint, *arguments = rendered.argv
    argv = (
        *(setting.container.runtime, "run", "--name", setting.container.name),
        *("--label", f"{LABEL}={setting.lease_id}", "--pull", "never", "--init", "--log-driver", "none"),
        *("--network", "host", "--security-opt", "no-new-privileges"),
        *_device_options(profile, spec, Path(setting.container.runtime).name),
        *_user_options(spec, Path(setting.container.runtime).name),
        *(word for bind in _distinct(binds) for word in ("--mount", _mount(bind))),
        *(word for name, value in own.items() for word in ("--env", f"{name}={value}")),
        *(word for name in by_name for word in ("--env", name)),
        *spec.options,
        *("--entrypoint", entrypoint, image, *arguments),
    )
    return Rendered(argv=argv, env=dict(rendered.env), files=rendered.files)


def short_command(profile: Profile, container: Container, command: tuple[str, ...]) -> tuple[str, ...]:
    """`command` in a container that ends by itself and leaves nothing; the same for every call with this image.

    It reads what it is given on stdin.
    """
    spec = _spec(profile)
    devices = _gpu_options(spec, Path(container.runtime).name)
    once = ("run", "--rm", "--interactive", "--pull", "never", "--network", "none", *devices)
    return (container.runtime, *once, "--entrypoint", command[0], profile.engine.image or "", *command[1:])


def _own_environment(rendered: Rendered, spec: ContainerSpec, setting: Setting) -> dict[str, str]:
    """A user without an entry in the image's list of users has no home and no name otherwise."""
    own = {"HOME": str(setting.home), "TMPDIR": str(setting.home), MARKER: setting.lease_id}
    if spec.user != "image":
        own["USER"] = "kvbench"
    return {name: value for name, value in own.items() if name not in rendered.env}


def _asked(spec: ContainerSpec) -> Iterable[Bind]:
    for mount in spec.mounts:
        source = mount.source.expanduser()
        yield Bind(source, (mount.target or mount.source).expanduser(), mount.read_only)


def _distinct(binds: Iterable[Bind]) -> Iterable[Bind]:
    """The last one said for a target holds."""
    return {bind.target: bind for bind in binds}.values()


def _mount(bind: Bind) -> str:
    if any(mark in f"{bind.source}{bind.target}" for mark in ',"\n'):
        raise InputError(f"{bind.source} cannot be mounted: its name has a comma or a quote", do="rename it")
    return f"type=bind,source={bind.source},target={bind.target}" + (",readonly" if bind.read_only else "")


def _device_options(profile: Profile, spec: ContainerSpec, runtime: str) -> list[str]:
    host = profile.tiers.host.size if profile.tiers.host is not None else 0
    limits = {**_default_limits(runtime), **spec.ulimits}
    return [
        *_gpu_options(spec, runtime),
        *("--shm-size", f"{spec.shm_size or host + ENGINE_SHM_BYTES}b"),
        *(word for name, limit in sorted(limits.items()) for word in ("--ulimit", f"{name}={limit}:{limit}")),
    ]


def _default_limits(runtime: str) -> dict[str, int]:
    """Rootless podman cannot raise a limit above the user's own hard one, and starts nothing that asks for it."""
    if not _is_rootless(runtime):
        return dict(ULIMITS)
    return {name: _capped(limit, hard_limit(name)) for name, limit in ULIMITS.items()}


def hard_limit(name: str) -> int:
    """Of this process; -1 where there is none."""
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    return -1 if hard == resource.RLIM_INFINITY else hard


def _capped(limit: int, most: int) -> int:
    """The smaller of two limits, -1 being none."""
    return max(limit, most) if -1 in (limit, most) else min(limit, most)


def _is_rootless(runtime: str) -> bool:
    return runtime == "podman" and os.getuid() != 0


def _gpu_options(spec: ContainerSpec, runtime: str) -> list[str]:
    if spec.gpus == "none":
        return []
    if runtime == "podman":  # by the names of the Container Device Interface; SELinux would hide the devices
        wanted = ["all"] if spec.gpus == "all" else [str(gpu) for gpu in spec.gpus]
        devices = [word for gpu in wanted for word in ("--device", f"nvidia.com/gpu={gpu}")]
        return [*devices, "--security-opt", "label=disable"]
    if spec.gpus == "all":
        return ["--gpus", "all"]
    return ["--gpus", f'"device={",".join(str(gpu) for gpu in spec.gpus)}"']  # docker reads it as a line of CSV


def _user_options(spec: ContainerSpec, runtime: str) -> list[str]:
    if spec.user == "image":
        return []
    user = f"{os.getuid()}:{os.getgid()}" if spec.user == "host" else spec.user
    return [*(["--userns", "keep-id"] if _is_rootless(runtime) else []), "--user", user]
