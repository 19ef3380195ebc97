"""Secondary tiers of vLLM beside the file tier, and back-pressure of any: every key that 0.32 takes, and no other.

Defaults are vLLM's own: what is not said is not written. Times in seconds; water marks in seconds per MiB.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kvbench.spec.bounds import FACTOR, LONGEST_S, MOST_THREADS, between, within
from kvbench.spec.model import SpecModel
from kvbench.spec.quantity import CountFromZero, PositiveSeconds, Whole

__all__ = ["Backpressure", "ExampleTier", "KvcrTier", "ObjectTier", "PeerTier", "SecondaryTier", "Threads"]

WaterMark = Annotated[float, Field(gt=0, allow_inf_nan=False), within(FACTOR)]
Threads = Annotated[Whole, Field(ge=1), between(1, MOST_THREADS)]
Milliseconds = Annotated[Whole, Field(ge=1), between(1, LONGEST_S * 1000)]
Locality = Literal["LOCAL", "REMOTE"]


class Backpressure(SpecModel):
    """Stores are dropped while writing to the tier is slow, seconds per MiB, averaged over the last jobs.

    In 0.32 a store that fails does not count: a full disk goes unnoticed.
    """

    detector: str = "EMABackpressureDetector"
    policy: Literal["ThrottledDropPolicy", "DropStorePolicy"] | None = None
    high_water_s: WaterMark | None = None
    low_water_s: WaterMark | None = None
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    warmup_completions: CountFromZero | None = None
    decay_half_life_s: PositiveSeconds | None = None
    cooldown_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _low_below_high(self) -> Backpressure:
        if self.low_water_s is not None and self.high_water_s is not None and self.low_water_s > self.high_water_s:
            raise ValueError("low_water_s must not be above high_water_s")
        return self


class ObjectTier(SpecModel):
    """An object store (S3 and its like), through NIXL. Keys come from the environment: AWS_ACCESS_KEY_ID, ..."""

    type: Literal["obj"]
    bucket: Annotated[str, Field(min_length=1)]
    endpoint_override: Annotated[str, Field(min_length=1)]
    region: str | None = None
    scheme: Literal["http", "https"] | None = None
    ca_bundle: str | None = None
    prefix: str | None = None
    io_threads: Threads | None = None
    enable_kv_events: bool | None = None
    locality: Locality | None = None
    backpressure: Backpressure | None = None


class PeerTier(SpecModel):
    """Blocks of other servers. `port` is offset by the data-parallel rank."""

    type: Literal["p2p"]
    host: str | None = None
    port: Annotated[Whole, Field(ge=1, le=65535)] | None = None
    backends: Annotated[list[str], Field(min_length=1)] | None = None
    num_threads: Threads | None = None
    unbound_store_timeout_s: PositiveSeconds | None = None
    backpressure: None = None

    @field_validator("backpressure", mode="before")
    @classmethod
    def _none_here(cls, value: object) -> None:
        if value is not None:
            raise ValueError("vLLM refuses back-pressure on a p2p tier")


class ExampleTier(SpecModel):
    """vLLM's own example, in host memory: for trying out only. What it gives back counts as from the host."""

    type: Literal["example"]
    custom_param: Whole | None = None
    backpressure: Backpressure | None = None


class KvcrTier(SpecModel):
    """The package kvcr, which has to be in the engine's environment."""

    type: Literal["kvcr"]
    router_capabilities: list[str] | None = None
    control_host: str | None = None
    control_ports: list[Annotated[Whole, Field(ge=1, le=65535)]] | None = None
    control_advertise_host: str | None = None
    eager_ctrl_connect: bool | None = None
    opportunistic_query: bool | None = None
    enable_telemetry: bool | None = None
    operation_timeout_ms: Milliseconds | None = None
    abandon_timeout_ms: Milliseconds | None = None
    metadata_retry_interval_ms: Milliseconds | None = None
    secondary_g2_slots: CountFromZero | None = None
    kvcr_service_socket_path: str | None = None
    compatibility_digest: str | None = None
    policy: str | None = None
    g3: dict[str, object] | None = None
    local_dram_backend: str | None = None
    remote_fw_dram_backend: str | None = None
    backpressure: Backpressure | None = None


SecondaryTier = Annotated[ObjectTier | PeerTier | ExampleTier | KvcrTier, Field(discriminator="type")]
