"""An engine's command inside a container: the exact call of docker or podman, the runtime and the image it needs.

The container shares the host's network, so that the engine listens on loopback as everywhere else, and has its own
`/dev/shm`, so that nothing can stay in the host's. Removing it is `container_remains`. Sizes in bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvbench.engine.base import Progress, Rendered
from kvbench.engine.container_processes import reached_by
from kvbench.engine.container_remains import LABEL, REACHED_BY, Container, ask_runtime, client_environment, reason
from kvbench.engine.leases import MARKER
from kvbench.engine.ranks import replicas
from kvbench.errors import EngineError, InputError
from kvbench.spec.container import ContainerSpec
from kvbench.spec.profile import Profile

__all__ = [
    "LENDS_IPC",
    "Bind",
    "ImageFacts",
    "Setting",
    "by_client",
    "container_of",
    "find_image",
    "hub_cache",
    "in_container",
    "service_version",
    "short_command",
]

ULIMITS = {"memlock": -1, "stack": 64 * 2**20, "nofile": 65536}
"""Pinned host memory must not be limited, and NVIDIA's images ask for that stack; files: connections and blocks."""

ENGINE_SHM_BYTES = 8 * 2**30
"""Queues between the engine's processes (vLLM: up to 250 MB each) and NCCL's; taken only when used."""

LENDS_IPC = "shareable"
"""An IPC namespace of the container's own, that others may be started in (docker's `run --ipc`, podman's, too)."""

OBEYED = re.compile(rf"{'|'.join(REACHED_BY)}|PATH|LD_\w+|(DOCKER|CONTAINERS?|STORAGE|XDG)_\w+")
"""Variables that would lead the runtime's client astray were they set for it: to other containers, or to none."""

CAP_SYS_RESOURCE = 24  # linux/capability.h
PID_MAX = Path("/proc/sys/kernel/pid_max")
PULL_QUIET_S = 5.0

UNUSABLE = (
    (r"permission denied", "let this user use it (docker: add them to its group and log in again), or use podman"),
    (r"cannot connect to|no such host|connection refused|is the docker daemon running",
     "start its service (`systemctl start docker`), or say where one is (DOCKER_HOST)"),
    (r"context \S+ not found|context not found", "correct DOCKER_CONTEXT, or `docker context use default`"),
)  # fmt: skip
"""What a client says about a service that it cannot use, and what to do."""


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
    ipc: str | None = None
    """Its IPC namespace and `/dev/shm`: lent to others, or another container's (`container:NAME`)."""


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
        if found is not None and _is_podman(Path(found)):
            found = shutil.which("podman") or found
        if found is not None:
            return Container(str(Path(found).absolute()), f"kvbench-{profile.name}", reached_by())
    raise InputError(
        f"profile {profile.name} runs in a container, and there is no {wanted or 'docker or podman'} on the PATH",
        do="install it, or start the engine yourself and use kind: attached",
    )


def _is_podman(docker: Path) -> bool:
    """Whether this is podman under another name (the package podman-docker), which takes podman's options."""
    script = b""
    with contextlib.suppress(OSError), docker.open("rb") as file:
        script = file.read(4096)
    calls_podman = script.startswith(b"#!") and re.search(rb'podman"?\s+"\$@"', script) is not None
    return docker.resolve().name == "podman" or calls_podman


def _spec(profile: Profile) -> ContainerSpec:
    return profile.engine.container or ContainerSpec()


def find_image(profile: Profile, container: Container, progress: Progress) -> ImageFacts:
    """The image, pulled when it is not here yet. EngineError when the runtime or the registry refuses."""
    image = profile.engine.image or ""
    version = service_version(container)
    facts = _inspect(container, image)
    if facts is None:
        _pull(container, image, progress)
        facts = _inspect(container, image)
    if facts is None:
        raise EngineError(f"{container.runtime} pulled {image}, but does not find it", do="see its own log")
    return ImageFacts(f"{Path(container.runtime).name} {version}", *facts)


def service_version(container: Container, *, timeout_s: float | None = None) -> str:
    """Of docker's service, or of podman, which has none. EngineError says in one line why it cannot be used."""
    name = Path(container.runtime).name
    asked = ("info", "{{.Version.Version}}") if name == "podman" else ("version", "{{.Server.Version}}")
    code, output, errors = ask_runtime(container, asked[0], "--format", asked[1], timeout_s=timeout_s)
    if code == 0 and output.strip():
        return output.strip()
    said = reason(code, errors)
    known = (do for pattern, do in UNUSABLE if re.search(pattern, said, re.IGNORECASE))
    raise EngineError(f"{name} cannot be used: {said}", do=next(known, f"see `{name} {asked[0]}`"))


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
        env=client_environment(container),
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
    words = pull.stdout.read() if pull.stdout is not None else ""
    if pull.returncode != 0:
        raise EngineError(
            f"{image} cannot be pulled: {reason(pull.returncode, words)}",
            do="check engine.image, and that this user is logged in at its registry",
        )


def hub_cache() -> Path:
    """Where models that were fetched before lie on this host."""
    return Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser().absolute()


def in_container(profile: Profile, rendered: Rendered, setting: Setting) -> Rendered:
    """`rendered`, whose command is the image's own, as a call of the runtime.

    Variables of the profile are handed on by name, so that their values are in no list of processes; but for those
    that the runtime's client obeys itself.
    """
    spec = _spec(profile)
    image = profile.engine.image or ""
    binds = [Bind(path, path, read_only=True) for path in map(Path, rendered.files)]
    binds = [Bind(setting.home, setting.home, read_only=False), *setting.binds, *binds, *_asked(spec)]
    own = _own_environment(rendered, spec, setting)
    if setting.needs_hub and "HF_HOME" not in rendered.env and hub_cache().is_dir():
        binds.append(Bind(hub_cache(), hub_cache(), read_only=False))
        own["HF_HOME"] = str(hub_cache())
    own |= {name: value for name, value in rendered.env.items() if OBEYED.fullmatch(name)}
    by_name = [name for name in (*rendered.env, *spec.env_from) if name not in own]
    by_name += ["HF_TOKEN"] if setting.needs_hub and "HF_TOKEN" not in by_name else []
    entrypoint, *arguments = rendered.argv
    argv = (
        *(setting.container.runtime, "run", "--name", setting.container.name),
        *("--label", f"{LABEL}={setting.lease_id}", "--pull", "never", "--init", "--stop-timeout", "0"),
        *("--log-driver", "none", "--network", "host", "--security-opt", "no-new-privileges"),
        *_gpu_options(spec, Path(setting.container.runtime).name),
        *_shm_options(profile, spec, setting.ipc),
        *_limit_options(spec, Path(setting.container.runtime).name),
        *_user_options(spec, Path(setting.container.runtime).name, setting.ipc),
        *_mount_options(binds),
        *_variable_options(own, by_name),
        *spec.options,
        *("--entrypoint", entrypoint, image, *arguments),
    )
    by_client = {name: value for name, value in rendered.env.items() if name not in own}
    return Rendered(argv=argv, env=by_client, files=rendered.files)


def short_command(profile: Profile, container: Container, command: tuple[str, ...]) -> tuple[str, ...]:
    """`command` in a container that ends by itself and leaves nothing; the same for every call with this image.

    It reads what it is given on stdin, and has the profile's variables, most of them from its client (`by_client`).
    """
    spec, runtime = _spec(profile), Path(container.runtime).name
    own = {name: value for name, value in profile.engine.env.items() if OBEYED.fullmatch(name)}
    return (
        *(container.runtime, "run", "--rm", "--interactive", "--pull", "never", "--network", "none"),
        *("--init", "--stop-timeout", "0"),
        *_gpu_options(spec, runtime),
        *_limit_options(spec, runtime),
        *_mount_options(_asked(spec)),
        *_variable_options(own, by_client(profile)),
        *spec.options,
        *("--entrypoint", command[0], profile.engine.image or "", *command[1:]),
    )


def by_client(profile: Profile) -> dict[str, str]:
    """Variables of the profile that the runtime's client has and hands on by name."""
    return {name: value for name, value in profile.engine.env.items() if not OBEYED.fullmatch(name)}


def _variable_options(by_value: Mapping[str, str], by_name: Iterable[str]) -> list[str]:
    words = [*(f"{name}={value}" for name, value in by_value.items()), *by_name]
    return [option for word in words for option in ("--env", word)]


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


def _mount_options(binds: Iterable[Bind]) -> list[str]:
    """The last one said for a target holds."""
    distinct = {bind.target: bind for bind in binds}.values()
    return [word for bind in distinct for word in ("--mount", _mount(bind))]


def _mount(bind: Bind) -> str:
    if any(mark in f"{bind.source}{bind.target}" for mark in ',"\n'):
        raise InputError(f"{bind.source} cannot be mounted: its name has a comma or a quote", do="rename it")
    return f"type=bind,source={bind.source},target={bind.target}" + (",readonly" if bind.read_only else "")


def _shm_options(profile: Profile, spec: ContainerSpec, ipc: str | None) -> list[str]:
    """A `/dev/shm` that is another container's has the size that this one was given."""
    if ipc not in (None, LENDS_IPC):
        return ["--ipc", str(ipc)]
    host = replicas(profile) * profile.tiers.host.size if profile.tiers.host is not None else 0
    size = ["--shm-size", f"{spec.shm_size or host + ENGINE_SHM_BYTES}b"]
    return size if ipc is None else ["--ipc", ipc, *size]


def _limit_options(spec: ContainerSpec, runtime: str) -> list[str]:
    limits = {**_default_limits(runtime), **spec.ulimits}
    return [word for name, limit in sorted(limits.items()) for word in ("--ulimit", f"{name}={limit}:{limit}")]


def _default_limits(runtime: str) -> dict[str, int]:
    """podman is this user's own process: where they may not raise a hard limit, it starts nothing that asks for
    more, not even by podman's own default (nproc)."""
    if runtime != "podman" or may_raise_limits():
        return dict(ULIMITS)
    capped = {name: _capped(limit, hard_limit(name)) for name, limit in ULIMITS.items()}
    # podman lowers its own limit of processes to pid_max (containers/common, pkg/config/default.go).
    return {"nproc": _capped(int(PID_MAX.read_text()), hard_limit("nproc")), **capped}


def may_raise_limits(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has CAP_SYS_RESOURCE, which root in a container or sandbox often lacks."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(errors="replace"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> CAP_SYS_RESOURCE & 1)


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
    named = [str(gpu) for gpu in spec.gpus] if isinstance(spec.gpus, list) else []
    if runtime == "podman":  # by the names of the Container Device Interface; SELinux would hide devices and mounts
        wanted = ["all"] if spec.gpus == "all" else named
        devices = [word for gpu in wanted for word in ("--device", f"nvidia.com/gpu={gpu}")]
        return [*devices, "--security-opt", "label=disable"]
    if spec.gpus == "none":
        return []
    return ["--gpus", "all" if spec.gpus == "all" else f'"device={",".join(named)}"']  # docker reads a line of CSV


def _user_options(spec: ContainerSpec, runtime: str, ipc: str | None) -> list[str]:
    """Without root an IPC namespace can be shared only in the user namespace that it belongs to (namespaces(7))."""
    shares = ipc if ipc != LENDS_IPC else None
    if spec.user == "image":
        return ["--userns", shares] if shares is not None and _is_rootless(runtime) else []
    user = f"{os.getuid()}:{os.getgid()}" if spec.user == "host" else spec.user
    return [*(["--userns", shares or "keep-id"] if _is_rootless(runtime) else []), "--user", user]
