"""What an engine's work costs in the emulated core: probed, from its emulation, or from stated assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.engine.emulated.sizes import emulation_of
from kvbench.engine.models import BUILT_IN_MODELS
from kvbench.plan.probe_file import SUFFIX_TOKENS, Curve, ProbeFile
from kvbench.plan.setting import Setting
from kvbench.spec.bounds import LONGEST_S
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

    def on_shared_cores(self) -> EngineCosts:
        """Of an engine without a GPU: its steps take all cores, so requests and copies take their time from them.

        A probe sees none of it, since it sends one request at a time.
        """
        note = "the engine's cores: shared with its server and the copies, whose work prolongs steps by as much"
        shared = self.costs.model_copy(update={"shared_cores": 1.0})
        return EngineCosts(shared, self.source, (*self.assumptions, note))


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
            "load_block": min(block_bytes / setting.path_bytes_per_s, LONGEST_S),
            "store_block": min(block_bytes / setting.path_bytes_per_s, LONGEST_S),
            "read_block": min(block_bytes / setting.disk_bytes_per_s, LONGEST_S),
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

    TTFT of a prompt that lies on the device is what every request takes, and what each token takes before the
    scheduler sees it; a probe's suffix is computed in any case. What a hit takes beyond that is its transfer.
    """
    costs, curves = base.costs, probe.curves
    computed = curves["computed"]
    device = curves.get("device", Curve(computed.base_s, 0.0))
    context_s = max(2 * computed.bend_s, 0.0)
    request_token_s = max(device.slope_s - SUFFIX_TOKENS * context_s, 0.0)
    token_s = max(computed.slope_s - request_token_s, 0.0)
    fixed_s = max(device.base_s - SUFFIX_TOKENS * token_s, 0.0)
    step_s, sequence_s, notes = _steps(probe, base, fixed_s)
    changed: dict[str, float] = {
        "request": max(fixed_s - step_s, 0.0),
        "request_token": request_token_s,
        "step": step_s,
        "sequence": sequence_s,
        "token": token_s,
        "token_context": context_s,
        "cached_context": _cached_context_s(probe, request_token_s, context_s),
        "block_bytes": float(block_bytes),
    }
    notes.append("writes: as fast as reads (not in a probe)")
    if probe.background_per_s is not None:
        notes.append(
            f"costs: those probed alone; beside {probe.background_per_s:g} other requests per second the probe saw "
            "waiting as well, which a plan adds itself"
        )
    if "host" in curves:
        load_s = max(curves["host"].slope_s - device.slope_s, 0.0) * block_tokens
        changed |= {"load_block": load_s, "store_block": load_s}
        changed["transfer"] = max(curves["host"].base_s - device.base_s, 0.0)
    if "disk" in curves:
        hotter = curves.get("host", device)
        read_s = max(curves["disk"].slope_s - hotter.slope_s, 0.0) * block_tokens
        changed |= {"read_block": read_s, "write_block": read_s}
        # A probe sees the look-up and the beginning of the read as one.
        changed |= {"lookup": max(curves["disk"].base_s - hotter.base_s, 0.0), "disk_transfer": 0.0}
    missing = [tier for tier in ("host", "disk") if tier not in curves]
    if missing:
        notes.append(f"loads from {' and '.join(missing)}: not in this probe; those of {base.source}")
    merged = Costs.model_validate(costs.model_dump() | changed)
    return EngineCosts(merged, f"probe {probe.path.name}", tuple(notes))


def _steps(probe: ProbeFile, base: EngineCosts, fixed_s: float) -> tuple[float, float, list[str]]:
    """(a step's own time, that of each request which decodes in it, what was not measured).

    A step cannot take longer than all that is fixed in a TTFT.
    """
    measured = sorted(probe.itl_s.items())
    if not measured:
        note = f"steps while decoding: not in this probe; those of {base.source}"
        return min(base.costs.step, fixed_s), base.costs.sequence, [note]
    (fewest, low_s), (most, high_s) = measured[0], measured[-1]
    if most == fewest:
        return min(low_s, fixed_s), 0.0, ["requests that decode together: not in this probe; each is free"]
    sequence_s = max((high_s - low_s) / (most - fewest), 0.0)
    return min(max(low_s - fewest * sequence_s, 0.0), fixed_s), sequence_s, []


def _cached_context_s(probe: ProbeFile, request_token_s: float, context_s: float) -> float:
    """By how much longer prefixes make the same suffix slower, beyond what was told apart already; 0: not in this
    probe."""
    found = []
    for suffix in {suffix for _, suffix in probe.suffixes}:
        ttft = sorted((prefix, ttft_s) for (prefix, tokens), ttft_s in probe.suffixes.items() if tokens == suffix)
        (short, first_s), (long, last_s) = ttft[0], ttft[-1]
        if long > short:
            found.append((last_s - first_s) / (long - short) - request_token_s - suffix * context_s)
    return max(sum(found) / len(found), 0.0) if found else 0.0
