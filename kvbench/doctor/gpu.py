"""Checks of GPUs and their links. Pure. Bytes per second, GT/s as generations."""

from __future__ import annotations

from collections.abc import Callable

from kvbench.doctor.check import Check, failed, passed, skipped, warned
from kvbench.doctor.devices import ChosenGpus, chosen_gpus
from kvbench.doctor.host import Gpu, Host
from kvbench.doctor.needs import embedded
from kvbench.engine.ranks import ranks, replicas
from kvbench.plan.budget import UTILIZATION
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes

__all__ = ["device_to_host", "gpu", "gpu_load", "gpu_memory", "host_to_device", "link_bytes_per_s", "pcie"]

LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Of one PCIe lane in one direction after line coding (PCI-SIG: 2.5, 5, 8, 16, 32 and 64 GT/s)."""

EXPECTED_SHARE = 0.7
"""Pinned copies of large pieces reach 80 to 90 % of a link."""

BAD_SHARE = 0.35
"""Less than half of what a healthy link gives: lanes are missing, or the copies are not pinned."""

BUSY = 0.05


def gpu(profile: Profile, host: Host) -> Check:
    """As many GPUs as the profile has ranks in all replicas, among those that its engine sees."""
    needed, chosen = ranks(profile) * replicas(profile), chosen_gpus(profile, host)
    container = profile.engine.container
    if profile.engine.image is not None and container is not None and container.gpus == "none":
        return skipped("gpu", f"the container is given no GPU ({chosen.by})")
    if host.gpus and embedded(profile):
        return passed("gpu", _seen(chosen, host, needed), len(chosen.visible), "GPUs", needed)
    if host.gpus:
        return _enough(profile, host, chosen, needed)
    absent = host.gpu_absent or "no GPU: none was looked for"
    if embedded(profile) or profile.engine.kind in ("emulated", "attached"):
        return skipped("gpu", f"{absent}; this profile needs none")
    return warned(
        "gpu", absent, "an engine built for GPUs will not start here; run doctor on the GPU host", 0, "GPUs", needed
    )


def _seen(chosen: ChosenGpus, host: Host, needed: int) -> str:
    """In words."""
    names = ", ".join(sorted({seen.name for seen in chosen.visible or host.gpus}))
    text = f"{len(host.gpus)} × {names}; the profile uses {needed}"
    if chosen.visible and chosen.by:
        text += f" of GPU {', '.join(str(seen.index) for seen in chosen.visible)} ({chosen.by})"
    return text


def _enough(profile: Profile, host: Host, chosen: ChosenGpus, needed: int) -> Check:
    have = len(chosen.visible)
    text = _seen(chosen, host, needed) if have else f"{chosen.absent}; the profile uses {needed}"
    figures = (have, "GPUs", needed)
    if chosen.unknown:
        text += f"; {', '.join(chosen.unknown)} cannot be matched to a GPU here" if have else ""
        # A part of a GPU has a name of its own, and may be there; what CUDA does not know it leaves out.
        part = any(name.startswith("MIG-") for name in chosen.unknown)
        make = warned if part or (have >= needed and profile.engine.image is None) else failed
        return make("gpu", text, f"correct {chosen.by}", *figures)
    if have < needed:
        do = "lower tensor-parallel-size, or run it where there are as many"
        return failed("gpu", text, f"{do}; or widen {chosen.by}" if chosen.by else do, *figures)
    return passed("gpu", text, *figures)


def link_bytes_per_s(generation: int | None, lanes: int | None) -> float | None:
    """What a link carries in one direction; None for generations that are not known."""
    per_lane = LANE_BYTES_PER_S.get(generation or 0)
    return per_lane * lanes if per_lane is not None and lanes else None


def pcie(profile: Profile, host: Host) -> Check:
    """Lanes and generation of the worst link against what the device and slot could do."""
    chosen = chosen_gpus(profile, host)
    if not chosen.used:
        return skipped("pcie", chosen.absent)
    known = [
        (now / most, seen)
        for seen in chosen.used
        if (now := link_bytes_per_s(seen.generation, seen.lanes))
        and (most := link_bytes_per_s(seen.generation_max, seen.lanes_max))
    ]
    if not known:
        return skipped("pcie", "the GPUs do not tell their links (MIG, virtual GPUs and NVLink-C2C do not)")
    share, worst = min(known, key=lambda pair: pair[0])
    text = (
        f"GPU {worst.index}: generation {worst.generation} × {worst.lanes} lanes now, "
        f"{worst.generation_max} × {worst.lanes_max} possible"
    )
    figures = (share, "fraction", 1.0)
    lanes_lost = (worst.lanes or 0) < (worst.lanes_max or 0)
    if share >= 1:
        return passed("pcie", text, *figures)
    if not lanes_lost and worst.to_device_bytes_per_s is None:
        return skipped("pcie", f"{text}; an idle GPU lowers its generation, and no copy was running")
    do = "reseat the card or use another slot; check bifurcation and risers, and the BIOS's link speed"
    make = failed if share < 0.5 else warned
    return make("pcie", text, do, *figures)


def host_to_device(profile: Profile, host: Host) -> Check:
    """Measured from pinned memory: what a promotion takes."""
    return _copies("host_to_device", profile, host, lambda seen: seen.to_device_bytes_per_s)


def device_to_host(profile: Profile, host: Host) -> Check:
    """Measured into pinned memory: what a store takes."""
    return _copies("device_to_host", profile, host, lambda seen: seen.from_device_bytes_per_s)


def _copies(id_: str, profile: Profile, host: Host, rate_of: Callable[[Gpu], float | None]) -> Check:
    chosen = chosen_gpus(profile, host)
    if not chosen.used:
        return skipped(id_, chosen.absent)
    measured = [(rate, seen) for seen in chosen.used if (rate := rate_of(seen)) is not None]
    if not measured:
        return skipped(id_, f"not measured: {chosen.used[0].not_measured or 'nothing was copied'}")
    rate, worst = min(measured, key=lambda pair: pair[0])
    link = link_bytes_per_s(worst.generation_max, worst.lanes_max)
    text = (
        f"GPU {worst.index}: {show_bytes(rate)}/s from pinned memory"
        if id_ == "host_to_device"
        else (f"GPU {worst.index}: {show_bytes(rate)}/s into pinned memory")
    )
    if link is None:
        return passed(id_, text, rate, "bytes/s")
    text += f"; its link carries {show_bytes(link)}/s"
    expected = link * EXPECTED_SHARE
    if rate < expected:
        do = "see pcie and numa above; look for another process that copies"
        make = failed if rate < link * BAD_SHARE else warned
        return make(id_, text, do, rate, "bytes/s", expected)
    return passed(id_, text, rate, "bytes/s", expected)


def gpu_memory(profile: Profile, host: Host) -> Check:
    """Whether what the engine asks for is free: vLLM takes a share of all memory, or does not start."""
    id_ = "gpu_memory"
    chosen = chosen_gpus(profile, host)
    if not chosen.used:
        return skipped(id_, chosen.absent)
    if embedded(profile) or profile.engine.kind in ("emulated", "attached"):
        return skipped(id_, "this profile takes no memory of a GPU")
    least = min(chosen.used, key=lambda seen: seen.memory_free / seen.memory_total)
    free, total = show_bytes(least.memory_free), show_bytes(least.memory_total)
    if profile.engine.kind != "vllm":
        text = f"GPU {least.index}: {free} of {total} free, of which the engine takes its share"
        return passed(id_, text, least.memory_free, "bytes")
    needed, whose = _asked_memory(profile, least)
    text = f"GPU {least.index}: {free} of {total} free, {show_bytes(needed)} asked for ({whose})"
    if least.memory_free < needed:
        do = "stop what else uses this GPU, or lower tiers.device.memory_utilization"
        return failed(id_, text, do, least.memory_free, "bytes", needed)
    return passed(id_, text, least.memory_free, "bytes", needed)


def _asked_memory(profile: Profile, seen: Gpu) -> tuple[float, str]:
    """Bytes that vLLM asks for, and by which setting. A size of the KV cache takes the place of the share."""
    kv_bytes = profile.engine.args.get("kv-cache-memory-bytes")
    if isinstance(kv_bytes, int) and not isinstance(kv_bytes, bool):
        return kv_bytes, "kv-cache-memory-bytes, the weights not counted"
    asked = profile.tiers.device.memory_utilization
    if asked is None:
        return UTILIZATION * seen.memory_total, f"vLLM's default share of {UTILIZATION:g}"
    return asked * seen.memory_total, f"tiers.device.memory_utilization: {asked:g}"


def gpu_load(profile: Profile, host: Host) -> Check:
    """Whether somebody else computes there."""
    chosen = chosen_gpus(profile, host)
    if not chosen.used:
        return skipped("gpu_load", chosen.absent)
    busiest = max(chosen.used, key=lambda seen: seen.busy or 0.0)
    used = max(seen.memory_total - seen.memory_free for seen in chosen.used)
    if busiest.busy is None:
        return skipped("gpu_load", "the GPUs do not tell their load")
    text = f"GPU {busiest.index} is {busiest.busy:.0%} busy; at most {show_bytes(used)} of a GPU's memory in use"
    if busiest.busy > BUSY:
        do = "stop what else runs on it; a comparison needs it alone"
        return warned("gpu_load", text, do, busiest.busy, "fraction", BUSY)
    return passed("gpu_load", text, busiest.busy, "fraction", BUSY)
