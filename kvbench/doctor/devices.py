"""Which of this host's GPUs an engine uses, in its own order. Pure.

A container sees those that it is given, numbered anew; CUDA_VISIBLE_DEVICES chooses among what is seen. CUDA is
taken to number GPUs by their bus, as NVML does: so it is where they are of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.doctor.host import Gpu, Host
from kvbench.engine.ranks import ranks, replicas
from kvbench.spec.container import ContainerSpec
from kvbench.spec.profile import Profile

__all__ = ["VISIBLE_DEVICES", "ChosenGpus", "chosen_gpus"]

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
IN_CONTAINER = "engine.container.gpus"


@dataclass(frozen=True)
class ChosenGpus:
    """What an engine sees of this host's GPUs, and takes."""

    visible: tuple[Gpu, ...]
    used: tuple[Gpu, ...]
    """One a rank."""
    by: str
    """What chose them, as it is written; empty where nothing did."""
    unknown: tuple[str, ...]
    """Names therein that cannot be matched to a GPU here."""
    absent: str
    """Why none is used, in words, where none is."""


def chosen_gpus(profile: Profile, host: Host) -> ChosenGpus:
    """The GPUs of `profile` among those of `host`."""
    spec = profile.engine.container or ContainerSpec()
    seen, chosen, unknown = host.gpus, list[str](), list[str]()
    if profile.engine.image is not None and spec.gpus != "all":
        wanted = spec.gpus if isinstance(spec.gpus, list) else []
        seen = tuple(gpu for gpu in host.gpus if gpu.index in wanted)
        unknown += [str(index) for index in wanted if index not in {gpu.index for gpu in seen}]
        chosen.append(f"{IN_CONTAINER}: {spec.gpus}")
    named = _visible_devices(profile, spec, host)
    if named is not None:
        seen, lost = _visible(named, seen)
        unknown += lost
        chosen.append(f"{VISIBLE_DEVICES}: {named or 'empty'}")
    by = ", ".join(chosen)
    return ChosenGpus(
        seen, seen[: ranks(profile) * replicas(profile)], by, tuple(unknown), _absent(host, by, unknown)
    )


def _visible_devices(profile: Profile, spec: ContainerSpec, host: Host) -> str | None:
    """A container inherits only what it is told to."""
    own = profile.engine.env.get(VISIBLE_DEVICES)
    if own is not None or (profile.engine.image is not None and VISIBLE_DEVICES not in spec.env_from):
        return own
    return host.visible_devices


def _visible(named: str, seen: tuple[Gpu, ...]) -> tuple[tuple[Gpu, ...], list[str]]:
    """By number or by the beginning of a UUID; CUDA shows nothing from the first name on that it does not know."""
    found: list[Gpu] = []
    if named.strip() in ("", "-1"):
        return (), []
    for name in (part.strip() for part in named.split(",")):
        of_that_name = (
            [gpu for gpu in seen if gpu.uuid is not None and gpu.uuid.startswith(name)]
            if name.startswith("GPU-")
            else [gpu for number, gpu in enumerate(seen) if name == str(number)]
        )
        if len(of_that_name) != 1 or of_that_name[0] in found:
            return tuple(found), [name]
        found += of_that_name
    return tuple(found), []


def _absent(host: Host, by: str, unknown: list[str]) -> str:
    if not host.gpus:
        return host.gpu_absent or "no GPU"
    of = f"; {', '.join(unknown)} cannot be matched to one" if unknown else ""
    return f"the engine sees none of the {len(host.gpus)} GPUs here ({by}){of}"
