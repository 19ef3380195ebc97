"""A profile: one engine, its model and its KV-cache tiers, as the user writes it.

Sizes in bytes, times in seconds after loading. Nothing here touches the world.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvbench.spec.quantity import Bandwidth, ByteSize, Fraction, PositiveSeconds

__all__ = ["DeviceTier", "DiskTier", "EngineSpec", "HostTier", "Profile", "Tiers"]

FlagValue = str | int | float | bool | list[str | int | float] | dict[str, object]


class SpecModel(BaseModel):
    """Base of everything users write: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class EngineSpec(SpecModel):
    """What to launch, or what is already running (`kind: attached`)."""

    kind: Literal["vllm", "tensorrt-llm", "attached", "emulated"]
    environment: str | None = None
    image: str | None = None
    command: list[str] | None = None
    version: str | None = None
    model: str
    revision: str | None = None
    served_name: str | None = None
    args: dict[str, FlagValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    ready_timeout: PositiveSeconds = 600.0
    base_url: str | None = None
    metrics_url: str | None = None
    api_key_env: str | None = None
    token_id_range: tuple[int, int] | None = None


class DeviceTier(SpecModel):
    """KV blocks in GPU memory (on the CPU engine: its KV arena). One of the two sizes, or the engine's default."""

    memory_utilization: Fraction | None = None
    blocks: Annotated[int, Field(ge=2)] | None = None
    kv_dtype: str = "auto"


class HostTier(SpecModel):
    """KV blocks in DRAM. `size` is the total over all ranks of one engine."""

    size: ByteSize
    policy: Literal["lru", "arc"] = "lru"
    via: Literal["native", "offloading", "lmcache"] = "native"
    chunk_tokens: Annotated[int, Field(ge=1)] | None = None
    blocks_per_chunk: Annotated[int, Field(ge=1)] | None = None
    store_threshold: Annotated[int, Field(ge=0)] = 0
    offload_prompt_only: bool = True
    min_priority: Annotated[int, Field(ge=0, le=100)] | None = None
    throttle: Bandwidth | None = None
    """Embedded engine only: slows host-to-device copies, to test that a gate refuses a bad tier."""


class DiskTier(SpecModel):
    """KV blocks in files behind the host tier. kvbench puts a directory of its own under `path` for each launch."""

    path: Path
    read_threads: Annotated[int, Field(ge=1)] = 16
    write_threads: Annotated[int, Field(ge=1)] = 16
    size_limit: ByteSize | None = None
    throttle: Bandwidth | None = None
    """Embedded engine only: slows reads from the tier, to test that a gate refuses a bad tier."""


class Tiers(SpecModel):
    """Hot to cold; a tier left out is off."""

    device: DeviceTier = DeviceTier()
    host: HostTier | None = None
    disk: DiskTier | None = None


class Profile(SpecModel):
    """One YAML file: an arm of a comparison."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    engine: EngineSpec
    tiers: Tiers = Tiers()

    @property
    def served_name(self) -> str:
        """The model name that requests carry."""
        return self.engine.served_name or self.engine.model

    @property
    def tier_names(self) -> tuple[str, ...]:
        """The tiers that are on, hot to cold."""
        return tuple(n for n in ("device", "host", "disk") if getattr(self.tiers, n) is not None)
