"""The transfer budget: bringing tokens back from a tier against computing them again. Pure; seconds and bytes.

Both grow in line with the length; a promotion has a start-up cost beside. Where nothing was measured, the text
names the assumption.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kvbench.doctor.check import Check, failed, passed, skipped, warned
from kvbench.doctor.devices import chosen_gpus
from kvbench.doctor.host import Host
from kvbench.doctor.needs import chunk_tokens, embedded, longest_prompt
from kvbench.engine.emulated.sizes import emulation_of
from kvbench.engine.ranks import ranks
from kvbench.spec.emulation import Costs
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes, show_seconds

__all__ = ["Recompute", "break_even_bytes_per_s", "budget_disk", "budget_host", "recompute"]

FLOPS_PER_PARAMETER = 2
"""Of a forward pass for each token: one multiplication and one addition (attention left out)."""

UTILISATION = 0.4
"""Share of a GPU's peak that prefill is assumed to reach."""

PEAK_FLOPS = {
    "B200": 2.25e15,
    "GH200": 9.89e14,
    "H200": 9.89e14,
    "H100": 9.89e14,
    "L40S": 3.62e14,
    "A100": 3.12e14,
    "L4": 1.21e14,
    "A10": 1.25e14,
}
"""Dense bfloat16, from the makers' data sheets (SXM forms where there are several)."""

ASSUMED_GPU = "H100"

MEASURE = "give --probe with the output of `kvbench probe PROFILE --json`"


@dataclass(frozen=True)
class Recompute:
    """What computing one token costs."""

    s_per_token: float
    how: str
    measured: bool


@dataclass(frozen=True)
class Restore:
    """What bringing tokens back costs."""

    fixed_s: float
    s_per_token: float
    how: str
    measured: bool = False


def recompute(profile: Profile, host: Host) -> Recompute | None:
    """From the probe, else from what is known of the engine, else assumed from the model's size; None: no idea."""
    if host.probe is not None:
        return Recompute(host.probe.cost_per_token_s["computed"], f"measured, {host.probe.file}", True)
    if profile.engine.kind == "emulated":
        return Recompute(_costs(profile).token, "the emulation's own cost", True)
    if embedded(profile) and profile.engine.model == "tiny":
        return Recompute(Costs().token, "assumed: the model tiny on two AVX2 cores", False)
    parameters = host.model.parameters if host.model is not None else None
    if parameters is None or embedded(profile):
        return None
    used = chosen_gpus(profile, host).used
    name = used[0].name if used else ASSUMED_GPU
    known = next((key for key in PEAK_FLOPS if key in re.split(r"[ -]", name)), ASSUMED_GPU)
    rate = PEAK_FLOPS[known] * UTILISATION * ranks(profile)
    per_token = FLOPS_PER_PARAMETER * parameters / rate
    of = f"{UTILISATION:.0%} of the peak of {ranks(profile)} {known}"
    how = f"assumed: {parameters / 1e9:.3g} billion parameters a token at {of}"
    return Recompute(per_token, how, False)


def _costs(profile: Profile) -> Costs:
    return emulation_of(profile).costs


def break_even_bytes_per_s(profile: Profile, host: Host) -> tuple[float, str] | None:
    """How fast computing makes KV: a tier read more slowly loses at every length. With the words for its source."""
    cost, per_token = recompute(profile, host), _bytes_per_token(host)
    if cost is None or per_token is None:
        return None
    return per_token / cost.s_per_token, cost.how


def _bytes_per_token(host: Host) -> int | None:
    return host.model.kv_bytes_per_token if host.model is not None else None


def budget_host(profile: Profile, host: Host) -> Check:
    """Host to device."""
    if profile.tiers.host is None:
        return skipped("budget_host", "the profile has no host tier")
    return _budget("host", profile, host, _from_host(profile, host))


def budget_disk(profile: Profile, host: Host) -> Check:
    """Disk to host to device."""
    if profile.tiers.disk is None:
        return skipped("budget_disk", "the profile has no disk tier")
    return _budget("disk", profile, host, _from_disk(profile, host))


def _from_host(profile: Profile, host: Host) -> Restore | str:
    """A sentence where it is not known."""
    tier = profile.tiers.host
    if host.probe is not None and "host" in host.probe.cost_per_token_s:
        return Restore(0.0, host.probe.cost_per_token_s["host"], f"measured, {host.probe.file}", True)
    per_token = _bytes_per_token(host)
    if per_token is None:
        return "the KV bytes of a token are not known: the model's config.json is not here, or of an unknown form"
    used = chosen_gpus(profile, host).used
    if profile.engine.kind == "emulated":
        costs = _costs(profile)
        rate, how, sure = costs.block_bytes / costs.load_block, "the emulation's own cost", True
    elif used and used[0].to_device_bytes_per_s:
        rate = sum(gpu.to_device_bytes_per_s or 0.0 for gpu in used)
        how, sure = f"{show_bytes(rate)}/s measured to {len(used)} GPU{'s' if len(used) > 1 else ''}", False
    elif embedded(profile) and host.copy is not None:
        rate, how, sure = host.copy.bytes_per_s, f"{show_bytes(host.copy.bytes_per_s)}/s of memory copy", False
    else:
        return "host-to-device copies were not measured: there is no GPU of this engine to measure"
    throttle = tier.throttle if tier is not None else None
    if throttle is not None and throttle < rate:
        rate, how = throttle, f"throttled to {show_bytes(throttle)}/s"
    return Restore(Costs().transfer, per_token / rate, how, sure)


def _from_disk(profile: Profile, host: Host) -> Restore | str:
    if host.probe is not None and "disk" in host.probe.cost_per_token_s:
        return Restore(0.0, host.probe.cost_per_token_s["disk"], f"measured, {host.probe.file}", True)
    above, per_token = _from_host(profile, host), _bytes_per_token(host)
    if isinstance(above, str) or per_token is None:
        return above if isinstance(above, str) else "the KV bytes of a token are not known"
    tier, trial = profile.tiers.disk, host.disk.trial if host.disk is not None else None
    if profile.engine.kind == "emulated":
        costs = _costs(profile)
        rate, how = costs.block_bytes / costs.read_block, "the emulation's own cost"
        start = costs.lookup + costs.disk_transfer
    elif trial is not None:
        rate, how, start = (
            trial.read_bytes_per_s,
            f"{show_bytes(trial.read_bytes_per_s)}/s read",
            trial.read.median_s,
        )
        start += Costs().lookup
    else:
        return f"the disk was not measured: {host.disk.not_tried if host.disk else 'there is none'}"
    if tier is not None and tier.throttle is not None and tier.throttle < rate:
        rate, how = tier.throttle, f"throttled to {show_bytes(tier.throttle)}/s"
    both = how if how == above.how else f"{how}, then {above.how}"
    return Restore(above.fixed_s + start, above.s_per_token + per_token / rate, both, above.measured)


def _budget(tier: str, profile: Profile, host: Host, restore: Restore | str) -> Check:
    id_ = f"budget_{tier}"
    if isinstance(restore, str):
        return skipped(id_, f"not known: {restore}", MEASURE)
    cost = recompute(profile, host)
    if cost is None:
        text = "what computing a token costs is not known, so there is nothing to hold restoring against"
        return skipped(id_, text, MEASURE)
    tokens = longest_prompt(profile)
    text = (
        f"{tokens:,} tokens{_size(host, tokens)} come back from {tier} in "
        f"{show_seconds(restore.fixed_s + tokens * restore.s_per_token)} ({restore.how}); computing them takes "
        f"{show_seconds(tokens * cost.s_per_token)} ({cost.how})"
    )
    least = _break_even_tokens(tier, profile, host, restore, cost)
    do = f"leave tiers.{tier} out, or make its path faster; `kvbench probe` measures both sides"
    probed = host.probe.longest_tokens if host.probe is not None and restore.measured else None
    if least is None and probed is not None and probed < tokens and restore.s_per_token < cost.s_per_token:
        text += f": none of up to {probed:,.0f} tokens, the longest that were probed, came back sooner"
        return warned(id_, text, "probe longer prefixes (kvbench probe --lengths)", None, "tokens", tokens)
    if least is None:
        make = failed if cost.measured and restore.measured else warned
        return make(id_, f"{text}: every promotion loses", do, None, "tokens", tokens)
    text += f": promotions below {least:,} tokens lose"
    if least > tokens:
        make = failed if cost.measured and restore.measured else warned
        return make(id_, f"{text}, and that is all of them", do, least, "tokens", tokens)
    return passed(id_, text, least, "tokens", tokens)


def _size(host: Host, tokens: int) -> str:
    per_token = _bytes_per_token(host)
    return f" ({show_bytes(tokens * per_token)})" if per_token else ""


def _break_even_tokens(tier: str, profile: Profile, host: Host, restore: Restore, cost: Recompute) -> int | None:
    """Whole chunks; None when restoring is never faster."""
    if host.probe is not None and tier in host.probe.cost_per_token_s:
        found = host.probe.break_even_tokens.get(tier)
        return math.ceil(found) if found is not None else None
    saved = cost.s_per_token - restore.s_per_token
    if saved <= 0:
        return None
    chunk = chunk_tokens(profile)
    return max(1, math.ceil(restore.fixed_s / saved / chunk)) * chunk
