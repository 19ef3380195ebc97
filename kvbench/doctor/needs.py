"""What a profile takes of its host, from the profile and its model alone. Pure. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.doctor.host import ModelFiles
from kvbench.engine.lmcache import has_server
from kvbench.engine.ranks import ranks, replicas
from kvbench.engine.vllm import EMBEDDED_ENVIRONMENT
from kvbench.spec.fitness import block_tokens, usual_block_tokens
from kvbench.spec.profile import Profile

__all__ = [
    "Needs",
    "chunk_bytes",
    "chunk_tokens",
    "embedded",
    "longest_prompt",
    "needs_of",
    "region_bytes",
    "shm_bytes",
]

ENGINE_ROOM_BYTES = 3 * 2**30
"""Of one rank beside its tiers. The embedded engine: about 1.9 GiB resident for all processes, plus a margin; a GPU
rank: reported as 3 GB resident beyond its share of the host tier."""

NCCL_SHM_BYTES = 2**30
"""What several ranks want in `/dev/shm` to talk to each other; containers get 64 MiB unless told."""

PAGE_BYTES = 4096
"""vLLM rounds a chunk up to whole pages."""

LONGEST_TOKENS = 8_192
"""Length that budgets are worked out for where the profile allows longer prompts, or does not say."""


@dataclass(frozen=True)
class Needs:
    """Host memory by what it is for."""

    tier: int
    """The host tier, over all ranks and replicas; an LMCache server's is one for all."""
    device: int
    """The device tier, where it lies in host memory (the embedded engine)."""
    weights: int
    """The same of the model's weights."""
    engine: int

    @property
    def total(self) -> int:
        """Everything that has to fit at once."""
        return self.tier + self.device + self.weights + self.engine


def embedded(profile: Profile) -> bool:
    """Whether the engine computes on the CPU, with all its tiers in host memory."""
    return profile.engine.environment == EMBEDDED_ENVIRONMENT


def needs_of(profile: Profile, model: ModelFiles | None) -> Needs:
    """What has to be free before the start."""
    pools = 1 if has_server(profile) else replicas(profile)
    tier = pools * profile.tiers.host.size if profile.tiers.host is not None else 0
    engine = ENGINE_ROOM_BYTES * replicas(profile) * ranks(profile)
    if not embedded(profile):
        return Needs(tier, 0, 0, engine)
    blocks, per_token = profile.tiers.device.blocks, model.kv_bytes_per_token if model is not None else None
    tokens = block_tokens(profile.engine)
    device = blocks * tokens * per_token if blocks and tokens and per_token else 0
    return Needs(tier, device, model.weights_bytes if model is not None else 0, engine)


def shm_bytes(profile: Profile) -> int:
    """What the engine puts into this host's `/dev/shm`; a container has one of its own.

    vLLM's own host tier lies there; TensorRT-LLM's and LMCache's do not.
    """
    return 0 if profile.engine.image is not None else region_bytes(profile)


def region_bytes(profile: Profile) -> int:
    """What the engine puts into `/dev/shm`, whosever that is."""
    host = profile.tiers.host
    region = host.size if host is not None and profile.engine.kind == "vllm" and host.via != "lmcache" else 0
    return replicas(profile) * (region + (NCCL_SHM_BYTES if ranks(profile) > 1 else 0))


def chunk_tokens(profile: Profile) -> int:
    """Tokens that move between tiers at once."""
    block, host = usual_block_tokens(profile.engine), profile.tiers.host
    return block if host is None else host.tokens_per_chunk(block)


def chunk_bytes(profile: Profile, model: ModelFiles | None) -> int | None:
    """One chunk of all ranks, which is one file of the disk tier; None when the model's geometry is not known."""
    per_token = model.kv_bytes_per_token if model is not None else None
    if not per_token:
        return None
    return -(-chunk_tokens(profile) * per_token // PAGE_BYTES) * PAGE_BYTES


def longest_prompt(profile: Profile) -> int:
    """Tokens; the profile's own limit where that is shorter."""
    asked = [profile.engine.args.get(name) for name in ("max-model-len", "max_seq_len")]
    limits = [value for value in asked if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return min([LONGEST_TOKENS, *limits])
