"""How large an emulated engine and its tiers are, read from its profile. Blocks, chunks, tokens and bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvbench.spec.emulation import Emulation, Injections
from kvbench.spec.fitness import EMULATED_LONGEST
from kvbench.spec.profile import Profile

__all__ = ["DEFAULTS", "Sizes", "as_run", "emulation_of", "sizes_of"]

DEFAULTS = {
    "block-size": 128,
    "max-model-len": EMULATED_LONGEST,
    "max-num-batched-tokens": 8_192,
    "max-num-seqs": 256,
}
"""Arguments of an emulated engine. Blocks and the batch are those of vLLM on a CPU (block of 128 tokens)."""

DEVICE_BLOCKS = 512
"""Where the profile does not say: enough for three requests of the longest kind."""


@dataclass(frozen=True)
class Sizes:
    """Everything that is counted and not timed."""

    block_tokens: int
    device_blocks: int
    """As vLLM states them, its null block included."""
    max_model_len: int
    max_batched_tokens: int
    max_sequences: int
    block_bytes: int
    host_bytes: int = 0
    host_chunks: int = 0
    host_policy: str = "lru"
    blocks_per_chunk: int = 1
    store_threshold: int = 0
    prompt_only: bool = True
    disk: bool = False
    read_lanes: int = 16
    write_lanes: int = 16
    load_bytes_per_s: float | None = None
    """The path between device and host, where the profile throttles it."""
    read_bytes_per_s: float | None = None
    """The path between host and disk, where the profile throttles it."""

    @property
    def chunk_tokens(self) -> int:
        """Tokens in one chunk of the host tier."""
        return self.block_tokens * self.blocks_per_chunk

    @property
    def capacities(self) -> dict[str, float]:
        """As a recorded round tells them."""
        return {
            "block_tokens": float(self.block_tokens),
            "device_blocks": float(self.device_blocks),
            "host_bytes": float(self.host_bytes),
            "max_model_len": float(self.max_model_len),
            "kv_bytes_per_token": self.block_bytes / self.block_tokens,
        }

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk of the host tier."""
        return self.block_bytes * self.blocks_per_chunk


def emulation_of(profile: Profile) -> Emulation:
    """Costs and noise that the profile asks for, or the defaults."""
    return profile.engine.emulation or Emulation()


def sizes_of(profile: Profile, emulation: Emulation | None = None) -> Sizes:
    """What the profile asks for, or the default."""
    args = {name: _whole(profile.engine.args.get(name), default) for name, default in DEFAULTS.items()}
    tiers, block_tokens = profile.tiers, args["block-size"]
    block_bytes = (emulation or emulation_of(profile)).costs.block_bytes
    device_alone = Sizes(
        block_tokens=block_tokens,
        device_blocks=tiers.device.blocks or DEVICE_BLOCKS,
        max_model_len=args["max-model-len"],
        max_batched_tokens=args["max-num-batched-tokens"],
        max_sequences=args["max-num-seqs"],
        block_bytes=block_bytes,
    )
    host, disk = tiers.host, tiers.disk
    if host is None:
        return device_alone
    per_chunk = max(1, host.tokens_per_chunk(block_tokens) // block_tokens)
    return replace(
        device_alone,
        host_bytes=host.size,
        host_chunks=host.size // (block_bytes * per_chunk),
        host_policy=host.policy,
        blocks_per_chunk=per_chunk,
        store_threshold=host.store_threshold,
        prompt_only=host.offload_prompt_only,
        disk=disk is not None,
        read_lanes=disk.read_threads if disk else 1,
        write_lanes=disk.write_threads if disk else 1,
        load_bytes_per_s=host.throttle,
        read_bytes_per_s=disk.throttle if disk else None,
    )


def as_run(asked: Sizes, injections: Injections) -> Sizes:
    """What the engine really has, which an injected truth may have made another thing than was asked for."""
    return replace(asked, device_blocks=asked.device_blocks - 1) if injections.other_configuration else asked


def _whole(given: object, default: int) -> int:
    return given if isinstance(given, int) else default
