"""What an engine's work costs in the emulated core: probed, from its emulation, or from stated assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.engine.emulated.sizes import emulation_of
from kvbench.engine.models import BUILT_IN_MODELS
from kvbench.plan.probe_file import SUFFIX_TOKENS, Curve, ProbeFile
from kvbench.plan.setting import Setting
from kvbench.spec.emulation import Costs
from kvbench.spec.profile import Profile

__all__ = ["EngineCosts", "assumed_costs", "probed_costs", "profile_costs"]

HBM_BYTES_PER_S = 2e12
"""A GPU of 3.35 TB/s of which decoding reaches 60 %: a step reads all weights once."""
DISK_WRITE_BYTES_PER_S = 3e9
_REQUEST_S, _SEQUENCE_S = 0.01, 2e-5


@dataclass(frozen=True)
class EngineCosts:
    """Costs and where they come from. `assumptions` names everything that was not measured."""

    costs: Costs
    source: str
    assumptions: tuple[str, ...]


def profile_costs(
    profile: Profile, setting: Setting, probe: ProbeFile | None, *, block_tokens: int, block_bytes: int
) -> EngineCosts:
    """A probe wins; then what the profile's own engine is known to cost; then assumptions about a GPU."""
    known = profile.engine.kind == "emulated" or profile.engine.model in BUILT_IN_MODELS
    base = (
        _fitted(profile, block_bytes)
        if known
        else assumed_costs(setting, block_tokens=block_tokens, block_bytes=block_bytes)
    )
    if probe is None:
        return base
    return probed_costs(probe, base, block_tokens=block_tokens, block_bytes=block_bytes)


def _fitted(profile: Profile, block_bytes: int) -> EngineCosts:
    """The emulation's costs; without any of its own they are those that were fitted to the embedded engine."""
    costs = emulation_of(profile).costs.model_copy(update={"block_bytes": block_bytes})
    if profile.engine.kind == "emulated":
        return EngineCosts(costs, "the emulated engine's own costs", ())
    note = "costs: those of the embedded engine on the machine on which its emulation was fitted"
    return EngineCosts(costs, "the embedded engine's emulation", (note,))


def assumed_costs(setting: Setting, *, block_tokens: int, block_bytes: int) -> EngineCosts:
    """A GPU and its paths by rule of thumb; each number has its note."""
    geometry = setting.geometry
    step_s = setting.weights_bytes / geometry.tensor_parallel / HBM_BYTES_PER_S
    costs = Costs.model_validate(
        {
            "request": _REQUEST_S,
            "step": step_s,
            "sequence": _SEQUENCE_S,
            "token": setting.recompute_s,
            "token_context": setting.attention_s,
            "load_block": block_bytes / setting.path_bytes_per_s,
            "store_block": block_bytes / setting.path_bytes_per_s,
            "read_block": block_bytes / setting.disk_bytes_per_s,
            "write_block": block_bytes / DISK_WRITE_BYTES_PER_S,
            "block_bytes": block_bytes,
        }
    )
    notes = (
        f"a step: {step_s * 1e3:.3g} ms, reading all weights at {HBM_BYTES_PER_S / 1e12:g} TB/s",
        f"a request: {_REQUEST_S * 1e3:g} ms outside the engine's steps",
        f"writes to disk: {DISK_WRITE_BYTES_PER_S / 1e9:g} GB/s",
    )
    return EngineCosts(costs, "assumed", (*setting.assumptions, *notes))


def probed_costs(probe: ProbeFile, base: EngineCosts, *, block_tokens: int, block_bytes: int) -> EngineCosts:
    """Put what was measured in the place of what `base` says.

    A probe's request computes its suffix whatever it hits; what a hit takes beyond a device hit is its transfer.
    """
    costs, curves = base.costs, probe.curves
    computed = curves["computed"]
    device = curves.get("device", Curve(computed.base_s, 0.0))
    fixed_s = max(device.base_s - SUFFIX_TOKENS * computed.slope_s, 1e-6)
    scale = fixed_s / (costs.request + costs.step)
    changed: dict[str, float] = {
        "request": costs.request * scale,
        "token": max(computed.slope_s, 0.0),
        "token_context": max(2 * computed.bend_s, 0.0),
        "block_bytes": float(block_bytes),
    }
    notes = [
        "steps while decoding: not in a probe; those of " + base.source,
        "writes: as fast as reads (not in a probe)",
    ]
    if "host" in curves:
        load_s = max(curves["host"].slope_s - device.slope_s, 0.0) * block_tokens
        changed |= {"load_block": load_s, "store_block": load_s}
        changed["transfer"] = max(curves["host"].base_s - device.base_s, 0.0)
    if "disk" in curves:
        hotter = curves.get("host", device)
        read_s = max(curves["disk"].slope_s - hotter.slope_s, 0.0) * block_tokens
        changed |= {"read_block": read_s, "write_block": read_s}
        changed["lookup"] = max(curves["disk"].base_s - hotter.base_s, 0.0)
    missing = [tier for tier in ("host", "disk") if tier not in curves]
    if missing:
        notes.append(f"loads from {' and '.join(missing)}: not in this probe; those of {base.source}")
    merged = Costs.model_validate(costs.model_dump() | changed)
    return EngineCosts(merged, f"probe {probe.path.name}", tuple(notes))
