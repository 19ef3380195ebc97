"""The budgets of one GPU: weights, workspace and KV, each by itself, and what the last holds. Bytes, tokens."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import InputError
from kvbench.plan.geometry import KvGeometry, geometry_of
from kvbench.plan.layers import Config, layer_kinds, text_config
from kvbench.plan.named_model import NamedModel
from kvbench.plan.weights import Weights, weights_of

__all__ = ["BATCH_TOKENS", "UTILIZATION", "Budget", "Memory", "memory_budget", "workspace_bytes"]

UTILIZATION = 0.92
"""vLLM 0.32's default for `--gpu-memory-utilization`, as its server reports it."""
BATCH_TOKENS = 8192
"""Tokens in one step (`--max-num-batched-tokens`): what activations are sized by."""
BLOCK_TOKENS = 16
"""vLLM's block on a GPU."""
_RUNTIME_BYTES = 3 * 2**29
"""Assumed: CUDA context, communication buffers and captured graphs, 1.5 GiB a rank."""
_SAMPLED = 256
"""Assumed rows of logits at once (`--max-num-seqs`)."""


@dataclass(frozen=True)
class Memory:
    """What the user says of a GPU and of how the engine uses it. `workspace` None: estimated."""

    gpu_bytes: int
    utilization: float = UTILIZATION
    weights: int | None = None
    workspace: int | None = None
    batch_tokens: int = BATCH_TOKENS
    block_tokens: int = BLOCK_TOKENS
    max_model_len: int | None = None


@dataclass(frozen=True)
class Budget:
    """Per rank, unless the name says otherwise. `kv_bytes` may be negative: then the model does not fit."""

    geometry: KvGeometry
    weights: Weights
    memory: Memory
    weights_bytes: int
    workspace_bytes: int
    kv_bytes: int
    assumptions: tuple[str, ...]
    pipeline_parallel: int = 1
    """Stages that share the layers; every rank is one of `tensor_parallel` in one of them."""

    @property
    def _rank_share(self) -> float:
        """Of the KV of every token, what a rank of the fullest stage keeps."""
        return _stage_share(self.geometry, self.pipeline_parallel) / self.geometry.tensor_parallel

    @property
    def fits(self) -> bool:
        """Whether anything is left for KV."""
        return self.kv_bytes > 0

    @property
    def blocks(self) -> int:
        """Whole blocks of every attention layer."""
        per_rank = self.geometry.block_bytes(self.memory.block_tokens) * self._rank_share
        return max(0, int(self.kv_bytes / per_rank)) if per_rank else 0

    @property
    def kv_total_bytes(self) -> int:
        """KV of all ranks together, as much as the fullest stage has room for."""
        return round(max(0, self.kv_bytes) / self._rank_share)

    def sequences(self, tokens: int) -> float | None:
        """How many sequences of so many tokens the KV budget holds at once; None: they take nothing."""
        one = self.geometry.sequence_bytes(tokens) * self._rank_share
        return max(0.0, self.kv_bytes / one) if one else None

    def document(self) -> dict[str, object]:
        """For machines."""
        tokens = self.blocks * self.memory.block_tokens
        longest = self.memory.max_model_len
        return {
            "gpu_bytes": self.memory.gpu_bytes,
            "utilization": self.memory.utilization,
            "fits": self.fits,
            "weights_bytes": self.weights_bytes,
            "weights_source": self.weights.source,
            "parameters": self.weights.parameters,
            "workspace_bytes": self.workspace_bytes,
            "outside_bytes": self.memory.gpu_bytes - round(self.memory.gpu_bytes * self.memory.utilization),
            "kv_bytes": self.kv_bytes,
            "kv_blocks": self.blocks,
            "kv_block_tokens": self.memory.block_tokens,
            "kv_tokens": tokens,
            "max_model_len": longest,
            "sequences_at_max_model_len": self.sequences(longest) if longest else None,
            "geometry": self.geometry.document()
            | {"bytes_per_token_and_rank": round(self.geometry.block_token_bytes * self._rank_share)},
            "pipeline_parallel": self.pipeline_parallel,
            "assumptions": list(self.assumptions),
        }


def _stage_share(geometry: KvGeometry, stages: int) -> float:
    """Of all layers that keep something, those of the fullest stage."""
    layers = sum(group.layers for group in geometry.groups)
    return -(-layers // stages) / layers if layers else 1.0 / stages


def memory_budget(
    model: NamedModel,
    memory: Memory,
    *,
    kv_dtype: str = "auto",
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> Budget:
    """Weights and workspace come first; what `utilization` leaves of the rest is KV, as when vLLM starts.

    InputError when the config says too little, or has fewer layers than stages.
    """
    config = model.config
    geometry = geometry_of(
        config, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel, name=model.name, where=model.where
    )
    if memory.gpu_bytes <= 0 or not 0 < memory.utilization <= 1:
        raise InputError("a GPU has more than 0 bytes, and a share of it from above 0 to 1 is used")
    layers = len(layer_kinds(text_config(config), model.where))
    if pipeline_parallel > layers:
        raise InputError(
            f"{layers} layers cannot be spread over {pipeline_parallel} stages",
            where=model.where,
            do="choose fewer stages (--pp, pipeline-parallel-size)",
        )
    weights, ranks = weights_of(config, model.directory), tensor_parallel
    said = memory.weights
    all_weights = weights.size_bytes if said is None else said
    per_rank = -(-all_weights * -(-layers // pipeline_parallel) // (layers * ranks))
    workspace = workspace_bytes(config, memory, ranks) if memory.workspace is None else memory.workspace
    assumptions = []
    if said is None and weights.source != "files":
        assumptions.append("weights: estimated from the shapes in config.json; --weights takes the real size")
    if memory.workspace is None:
        assumptions.append(
            f"workspace: 1.5 GiB for the runtime plus activations of {memory.batch_tokens:,} tokens a step; "
            "vLLM prints the real figure when it starts"
        )
    if any(group.kind == "sliding" for group in geometry.groups):
        assumptions.append("blocks and tokens: every layer keeps every token (no hybrid cache manager)")
    if any(group.token_bytes == 0 and group.state_bytes is None for group in geometry.groups):
        assumptions.append("layers with a fixed state: its size is not in config.json and counts as nothing")
    return Budget(
        geometry=geometry,
        weights=weights,
        memory=memory,
        weights_bytes=per_rank,
        workspace_bytes=workspace,
        kv_bytes=round(memory.gpu_bytes * memory.utilization) - per_rank - workspace,
        assumptions=tuple(assumptions),
        pipeline_parallel=pipeline_parallel,
    )


def workspace_bytes(config: Config, memory: Memory, ranks: int) -> int:
    """An estimate of one rank: the runtime, activations of the widest layer for one step, and the logits."""
    text = text_config(config)

    def size(key: str, default: int) -> int:
        value = text.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    hidden = size("hidden_size", 4096)
    inner = max(size("intermediate_size", 4 * hidden), hidden)
    activations = memory.batch_tokens * (4 * hidden + 3 * inner // ranks) * 2  # two bytes each
    logits = _SAMPLED * size("vocab_size", 128_000) * 4  # in float32
    return _RUNTIME_BYTES + activations + logits
