"""How an engine's container is run: what a profile may say under `engine.container`. Sizes in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from kvbench.spec.bounds import is_stored
from kvbench.spec.model import SpecModel
from kvbench.spec.paths import UserPath
from kvbench.spec.quantity import ByteSize, Whole

__all__ = ["OWN_OPTIONS", "ContainerSpec", "Mount"]

OWN_OPTIONS = (
    *("--name", "--label", "--network", "--net", "--detach", "-d", "--rm", "--restart", "--entrypoint", "--env"),
    *("-e", "--env-file", "--gpus", "--shm-size", "--ipc", "--user", "-u", "--userns", "--ulimit", "--mount"),
    *("--volume", "-v", "--publish", "-p", "--pull", "--init", "--log-driver", "--sig-proxy", "--tty", "-t"),
    *("--stop-timeout", "--stop-signal", "--volumes-from", "--cidfile", "--pidfile", "--pod", "--replace"),
    *("--interactive", "-i", "--label-file", "--annotation", "--publish-all", "-P", "--network-alias"),
)
"""Options of `docker run` and `podman run` that kvbench sets, or that would take the engine out of its hands."""


def _mountable(value: Path) -> Path:
    if not value.expanduser().is_absolute() or any(mark in str(value) for mark in ',"\n'):
        raise ValueError(f"expected an absolute path without commas and quotes, got {str(value)!r}")
    return value


MountPath = Annotated[UserPath, AfterValidator(_mountable)]


class Mount(SpecModel):
    """A directory or file of the host that the container sees."""

    source: MountPath
    target: MountPath | None = None
    """Default: the same path as on the host."""
    read_only: bool = True


def _free_option(value: str, info: ValidationInfo) -> str:
    name = value.partition("=")[0]
    if not name.startswith("-"):
        raise ValueError(f"expected an option such as --cap-add=SYS_NICE, got {value!r}; write its value after `=`")
    if is_stored(info):
        return value
    if name in OWN_OPTIONS or (not name.startswith("--") and name[:2] in OWN_OPTIONS):
        raise ValueError(f"{name[:2] if name not in OWN_OPTIONS else name} is kvbench's to set")
    if not name.startswith("--"):
        raise ValueError(f"write {name[:2]} in its long form, such as --cap-add=SYS_NICE")
    return value


class ContainerSpec(SpecModel):
    """Everything has a default that serves engines on GPUs."""

    runtime: Literal["docker", "podman"] | None = None
    """Default: whichever is on the PATH, docker first."""
    gpus: Literal["all", "none"] | Annotated[list[Annotated[Whole, Field(ge=0)]], Field(min_length=1)] = "all"
    shm_size: ByteSize | None = None
    """Of the container's own `/dev/shm`. Default: the host tier and 8 GiB for the engine's own queues."""
    user: Annotated[str, Field(pattern=r"^(host|image|\d+(:\d+)?)$")] = "host"
    """`host`: the user who runs kvbench, so that files of the disk tier are theirs. `image`: the image's own."""
    mounts: list[Mount] = Field(default_factory=list)
    """Beside the model, the hub's cache and the disk tier, which are mounted anyway."""
    ulimits: dict[Annotated[str, Field(pattern=r"^[a-z]+$")], Annotated[int, Field(ge=-1)]] = Field(
        default_factory=dict
    )
    """Over the defaults: memlock unlimited (pinned host memory), stack 64 MiB, nofile 65536; with
    rootless podman none of these above this user's hard limit."""
    entrypoint: Annotated[list[str], Field(min_length=1)] | None = None
    """What is run in the image, before the flags. Default: the engine's own server."""
    env_from: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(default_factory=list)
    """Variables of kvbench's environment that are handed on by name (tokens, keys)."""
    options: list[Annotated[str, AfterValidator(_free_option)]] = Field(default_factory=list)
    """Further options of the runtime, such as `--cap-add=SYS_NICE` or `--device=/dev/infiniband`."""

    @model_validator(mode="after")
    def _mounts_once(self) -> ContainerSpec:
        targets = [mount.target or mount.source for mount in self.mounts]
        for target in targets:
            if targets.count(target) > 1:
                raise ValueError(f"two mounts have the target {target}")
        return self
