"""What a probe is to do, and how much it takes to push a prompt off the device and out of the host. Tokens."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.engine.base import Effective
from kvbench.errors import EngineError, InputError
from kvbench.plan.profile_geometry import kv_bytes_per_token
from kvbench.spec.profile import Profile

__all__ = ["OUTPUT_TOKENS", "SUFFIX_TOKENS", "Options", "Room", "choose_lengths", "room_of"]

SUFFIX_TOKENS = 8
"""Behind every prefix, always computed: an engine computes the last token in any case, and fewer than a block of
these are never cached."""
OUTPUT_TOKENS = 2
"""A second step lets the engine begin what the first one left behind, such as stores."""
LONGEST_SHARE = 0.9
"""Of the device: a prompt that fills it whole leaves no room for its own answer."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    lengths: tuple[int, ...] = ()
    """Prefix lengths; none: chosen from the engine's sizes."""
    interval: float = 0.1
    """Half width of the interval of each cost, as a share of the cost, that is enough."""
    limit_s: float = 210.0
    """For each series of probes (alone, under load). With the embedded engine's start it is under five minutes."""
    background_per_s: float | None = None
    """Requests per second beside the probes, in a second series; None: there is only the one alone."""
    confidence: float = 0.95


@dataclass(frozen=True)
class Room:
    """Sizes of the running engine's tiers."""

    unit: int
    """Prefixes are multiples of it: of the device's block, or of the chunk in which tiers are kept."""
    device: int
    host: int | None
    """None: there is no host tier."""
    disk: bool
    max_model_len: int
    kv_bytes_per_token: int | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """What can be hit, hot to cold, and what is computed."""
        behind = (() if self.host is None else ("host",)) + (("disk",) if self.disk else ())
        return ("device", *behind, "computed")

    @property
    def longest(self) -> int:
        """The longest prefix that every tier can hold beside what pushes it on."""
        whole = min(self.max_model_len - SUFFIX_TOKENS - OUTPUT_TOKENS, int(self.device * LONGEST_SHARE))
        if self.host is not None and self.host > self.device:
            # To be found in the host it must be pushed off the device and still be whole in the host.
            whole = min(whole, (self.host - self.device) * 2 // 3)
        return whole // self.unit * self.unit


def room_of(profile: Profile, effective: Effective) -> Room:
    """From what the running server says of itself, else from what the profile declares.

    EngineError when a size that decides how many other prompts are needed is not known.
    """
    block = effective.block_tokens
    blocks = effective.device_blocks or profile.tiers.device.blocks
    if block is None or blocks is None:
        raise EngineError(
            f"{profile.name}: the server does not say how many blocks its device holds, so it is not known how "
            "many prompts push one off it",
            do="probe a server with vLLM's `/metrics` (vllm:cache_config_info)",
        )
    host = profile.tiers.host
    per_token = kv_bytes_per_token(profile)
    if host is not None and per_token is None:
        raise EngineError(
            f"{profile.name}: bytes per token of model {profile.engine.model} are not known, so neither is how "
            "many tokens the host tier holds",
            do="name a model that lies in a directory of this machine",
        )
    chunk = host.tokens_per_chunk(block) if host is not None else block
    return Room(
        unit=max(chunk, block),
        device=block * blocks,
        host=None if host is None or per_token is None else (effective.host_bytes or host.size) // per_token,
        disk="disk" in profile.tier_names,
        max_model_len=effective.max_model_len or block * blocks,
        kv_bytes_per_token=per_token,
    )


def choose_lengths(room: Room, asked: tuple[int, ...]) -> tuple[int, ...]:
    """Rising prefix lengths in whole units: those asked for, or the longest, its half, quarter and eighth, and the
    smallest that can be hit, since it is near there that good tiers break even.

    InputError when fewer than two are left.
    """
    longest = room.longest
    for length in asked:
        if length > longest:
            raise InputError(
                f"--lengths: a prefix of {length} tokens does not fit; the longest that every tier can hold and "
                f"give up again is {longest}"
            )
    wanted = asked or (room.unit, *(longest // share for share in (8, 4, 2, 1)))
    lengths = sorted({max(length // room.unit, 1) * room.unit for length in wanted})
    if len(lengths) < 2 or longest < 2 * room.unit:
        raise InputError(
            f"fewer than two different prefix lengths in whole units of {room.unit} tokens, and a cost per token "
            "needs two",
            do="give other --lengths, or a device with more blocks",
        )
    return tuple(lengths)
