"""Whether offload is worth a pilot on this traffic, in one paragraph with its reason. Shares of prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvbench.plan.setting import Setting
from kvbench.plan.sizing import HitCurve
from kvbench.spec.quantity import show_bytes, show_seconds

__all__ = ["LITTLE_REUSE", "SMALL_GAIN", "Advice", "advise", "unknown_advice"]

LITTLE_REUSE = 0.10
"""Below it, even a cache without limit saves less than a tenth of prefill; the shipped rules ask for twice that."""
SMALL_GAIN = 0.05
"""Of the prefill that the device leaves, and of its time. Less drowns in the spread between launches."""

Reason = Literal["unique_prompts", "fits_device", "slow_path", "beyond_every_tier", "worth_it", "no_identity"]


@dataclass(frozen=True)
class Advice:
    """`pilot` is yes, no or unknown."""

    pilot: Literal["yes", "no", "unknown"]
    reason: Reason
    text: str
    shares: dict[str, float]
    """Of prompt tokens that are served with the tiers up to this one; `unlimited` without any limit."""
    seconds_per_token: dict[str, float]
    """To compute one, and to load one from each tier."""
    sizes_bytes: dict[str, int]
    """That a pilot would begin with; empty where none is advised."""

    def document(self, setting: Setting | None) -> dict[str, object]:
        """For machines."""
        return {
            "pilot": self.pilot,
            "reason": self.reason,
            "text": self.text,
            "shares": self.shares,
            "seconds_per_token": self.seconds_per_token,
            "sizes_bytes": self.sizes_bytes,
            "setting": setting.document() if setting is not None else None,
        }


def unknown_advice() -> Advice:
    """For a trace that does not say which blocks are equal."""
    text = (
        "This trace has arrivals and lengths only. It does not say which prompts begin alike, so nothing can be "
        "said about reuse, about hits, or about what a tier would serve. Record block hashes, token ids or "
        "messages (see --format) and ask again."
    )
    return Advice("unknown", "no_identity", text, {}, {}, {})


def advise(curve: HitCurve, setting: Setting, block_tokens: int) -> Advice:
    """From the hit curve and a setting. Tiers are inclusive: a larger one also holds what the faster ones hold."""
    return _Case(curve, setting, block_tokens).advice()


class _Case:
    """The figures that decide, and the words for each decision."""

    def __init__(self, curve: HitCurve, setting: Setting, block_tokens: int) -> None:
        self._curve, self._setting = curve, setting
        self._block_bytes = setting.geometry.block_bytes(block_tokens)
        host = max(setting.device_bytes, setting.host_bytes)
        disk = max(host, setting.disk_bytes) if setting.host_bytes else host  # what the disk holds comes through it
        self._shares = {
            "device": self._share(setting.device_bytes),
            "host": self._share(host),
            "disk": self._share(disk),
            "unlimited": curve.best,
        }
        self._costs = {
            "computed": setting.recompute_s,
            "host": setting.load_s("host"),
            "disk": setting.load_s("disk"),
        }

    def _share(self, size_bytes: int) -> float:
        return self._curve.share(size_bytes // self._block_bytes)

    def _gain(self, tier: str) -> float:
        """Share of the prefill left by the device that the tiers up to this one take away."""
        left = 1.0 - self._shares["device"]
        return (self._shares[tier] - self._shares["device"]) / left if left > 0 else 0.0

    def _saved(self) -> float:
        """Share of the time of that prefill that is left when hits are loaded, from every tier that pays."""
        upto, saved = self._shares["device"], 0.0
        for tier in ("host", "disk"):
            saved += (self._shares[tier] - upto) * max(0.0, 1.0 - self._costs[tier] / self._costs["computed"])
            upto = self._shares[tier]
        return saved / (1.0 - self._shares["device"])

    def advice(self) -> Advice:
        best = self._shares["unlimited"]
        if best < LITTLE_REUSE:
            return self._no(
                "unique_prompts",
                f"Prompts are mostly unique: a cache without limit would serve {best:.1%} of the prompt tokens, "
                "so no tier can do more. Look at the prompts first: does something that changes stand before what "
                "is shared?",
            )
        if self._gain("unlimited") < SMALL_GAIN:
            return self._no(
                "fits_device",
                f"What is used again fits the device: {show_bytes(self._setting.device_bytes)} there serve "
                f"{self._shares['device']:.1%} of the prompt tokens, a cache without limit {best:.1%}. A tier "
                "would cost memory and copies and could serve next to nothing more.",
            )
        gaining = [tier for tier in ("host", "disk") if self._gain(tier) >= SMALL_GAIN]
        if not gaining:
            return self._beyond()
        paying = [tier for tier in gaining if self._costs[tier] < self._costs["computed"]]
        if not paying:
            return self._slow(gaining[0])
        return self._yes(paying) if self._saved() >= SMALL_GAIN else self._hardly_faster(paying[0])

    def _beyond(self) -> Advice:
        wanted = self._curve.blocks_for(0.5) or 0
        return self._no(
            "beyond_every_tier",
            f"There is reuse ({self._shares['unlimited']:.1%} of the prompt tokens without limit), but it comes "
            f"after more than the tiers hold: with {show_bytes(self._setting.host_bytes)} of host and "
            f"{show_bytes(self._setting.disk_bytes)} of disk it is {self._shares['disk']:.1%}, with the device "
            f"alone {self._shares['device']:.1%}. Blocks would be written and evicted before they are used. Half "
            f"of the reuse takes {show_bytes(wanted * self._block_bytes)}.",
        )

    def _slow(self, tier: str) -> Advice:
        return self._no(
            "slow_path",
            f"The path is slower than computing: a prompt token takes {show_seconds(self._costs['computed'])} to "
            f"compute and {show_seconds(self._costs[tier])} to load from the {tier} "
            f"({show_bytes(self._setting.token_bytes)} of KV). Hits would raise TTFT. A faster path or smaller KV "
            "(fp8, fewer KV heads) would change that.",
        )

    def _hardly_faster(self, tier: str) -> Advice:
        return self._no(
            "slow_path",
            f"The path is hardly faster than computing: the {tier} would take away {self._gain(tier):.0%} of the "
            f"prefill that the device leaves, but a prompt token takes {show_seconds(self._costs[tier])} to load "
            f"from there instead of {show_seconds(self._costs['computed'])} to compute, so that "
            f"{self._saved():.1%} of its time would be saved: no measurement tells that from the spread between "
            "launches. A faster path or smaller KV (fp8, fewer KV heads) would change that.",
        )

    def _yes(self, paying: list[str]) -> Advice:
        sizes = self._sizes(paying)
        tier = paying[0]
        disk = ""
        if "disk" in sizes:
            disk = f"; a disk tier of {show_bytes(sizes['disk'])} behind it brings {self._shares['disk']:.1%}"
        text = (
            f"Worth a pilot: the device alone serves {self._shares['device']:.1%} of the prompt tokens, with the "
            f"host tier it is {self._shares['host']:.1%}, and without limit {self._shares['unlimited']:.1%}. The "
            f"{tier} takes away {self._gain(tier):.0%} of the prefill that is left, and a token takes "
            f"{show_seconds(self._costs[tier])} to load from the {tier} instead of "
            f"{show_seconds(self._costs['computed'])} to compute: {self._saved():.0%} of the time of that prefill "
            f"are saved. Begin with {show_bytes(sizes['host'])} of host "
            f"memory{disk}. Whether tails stay safe only a comparison tells."
        )
        return Advice("yes", "worth_it", text, self._shares, self._costs, sizes)

    def _sizes(self, paying: list[str]) -> dict[str, int]:
        """The host: what nine tenths of the reuse it can bring take; the disk where it brings enough more."""
        setting = self._setting
        reach = self._shares["host"] / self._shares["unlimited"]
        wanted = (self._curve.blocks_for(0.9 * reach) or 0) * self._block_bytes
        sizes = {"host": min(max(wanted, 2 * setting.device_bytes), setting.host_bytes)}
        more = self._shares["disk"] - self._shares["host"]
        if "disk" in paying and more >= SMALL_GAIN * (1 - self._shares["host"]):
            blocks_disk = self._curve.blocks_for(0.9 * self._shares["disk"] / self._shares["unlimited"]) or 0
            sizes["disk"] = min(max(blocks_disk * self._block_bytes, 2 * sizes["host"]), setting.disk_bytes)
        return sizes

    def _no(self, reason: Reason, text: str) -> Advice:
        return Advice("no", reason, f"Not worth a pilot. {text}", self._shares, self._costs, {})
