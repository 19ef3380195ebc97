"""What the host, its disks, network and GPUs did while an arm was measured. Describes; decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kvbench.judge import wording
from kvbench.judge.evidence import ArmRound, Comparison
from kvbench.judge.instrument import host_values
from kvbench.judge.quality import ArmHost, HostReading
from kvbench.spec.host_figures import GPU_ABSENT, HOST_FIGURES, NO_GPU, host_figure
from kvbench.spec.profile import DeviceTier, Profile
from kvbench.spec.workload import Workload

__all__ = ["arm_host", "host_paths"]


def host_paths(comparison: Comparison) -> list[ArmHost]:
    """Of both arms; nothing of an arm without samples."""
    arms = (
        (comparison.baseline, [pair.baseline for pair in comparison.pairs]),
        (comparison.candidate, [pair.candidate for pair in comparison.pairs]),
    )
    found = (arm_host(profile, rounds, comparison.workload) for profile, rounds in arms)
    return [host for host in found if host is not None]


def arm_host(profile: Profile, rounds: Sequence[ArmRound], workload: Workload) -> ArmHost | None:
    """Over the measured parts of all rounds of one arm; None: nothing was sampled."""
    readings = [reading for name in _names(rounds) if (reading := _reading(name, rounds, workload)) is not None]
    if not readings:
        return None
    host = profile.tiers.host
    blocks = _proven(rounds, "device_blocks")
    return ArmHost(
        arm=profile.name,
        readings=readings,
        no_gpu=_no_gpu(rounds, workload),
        device_asked=_asked(profile.tiers.device),
        device_proven_blocks=None if blocks is None else int(blocks),
        host_tier_asked_bytes=None if host is None else float(host.size),
        host_tier_proven_bytes=_proven(rounds, "host_bytes"),
    )


def _proven(rounds: Sequence[ArmRound], name: str) -> float | None:
    """By the last engine that proved it."""
    told = [size for each in rounds if (size := each.capacities.get(name)) is not None]
    return told[-1] if told else None


def _asked(device: DeviceTier) -> str:
    if device.blocks is not None:
        return wording.count(device.blocks, "block")
    if device.memory_utilization is not None:
        return f"{wording.share(device.memory_utilization)} of the GPU's memory"
    return "what the engine takes"


def _names(rounds: Sequence[ArmRound]) -> list[str]:
    """What was sampled and has words, in the order of the table; GPUs last, one after the other."""
    seen = {name for each in rounds for name in each.host_samples if host_figure(name) is not None}
    return [*(name for name in HOST_FIGURES if name in seen), *sorted(seen - set(HOST_FIGURES), key=_of_gpu)]


def _of_gpu(name: str) -> tuple[int, int]:
    number, _, figure = name.removeprefix("gpu").partition("_")
    return int(number), list(HOST_FIGURES).index(f"gpu_{figure}")


def _reading(name: str, rounds: Sequence[ArmRound], workload: Workload) -> HostReading | None:
    values = np.concatenate([host_values(each, name, workload) for each in rounds])
    figure = host_figure(name)
    if figure is None or not len(values):
        return None
    return HostReading(
        name=name,
        unit=figure.unit,
        n=len(values),
        p50=float(np.median(values)),
        max=float(values.max()),
        min=float(values.min()),
    )


def _no_gpu(rounds: Sequence[ArmRound], workload: Workload) -> str | None:
    return next(_reasons(rounds, workload), None)


def _reasons(rounds: Sequence[ArmRound], workload: Workload) -> Iterator[str]:
    for each in rounds:
        for code in host_values(each, GPU_ABSENT, workload):
            yield NO_GPU.get(int(code), "no GPU was read")
