"""One request inside the emulated engine: what it asks for, how far it is, what it holds. Seconds, tokens."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from kvbench.engine.emulated.host import Access

__all__ = ["Request"]


class Request:
    """`keys` are those of every whole block of prompt and output but the last output token, which has no KV."""

    __slots__ = (
        "access",
        "answers_s",
        "arrived_s",
        "asked",
        "cached",
        "chunks",
        "computed",
        "device_tokens",
        "disk_tokens",
        "finish_reason",
        "from_disk",
        "generated",
        "host_tokens",
        "id",
        "jobs",
        "keys",
        "known",
        "loaded",
        "loading",
        "offered",
        "output_tokens",
        "own_blocks",
        "past_secondary",
        "preempted",
        "prompt_tokens",
        "registered",
        "scheduled_s",
        "storable",
        "times",
        "useless_tokens",
        "version",
        "waited_since_s",
        "wake_s",
    )

    def __init__(
        self,
        id_: int,
        prompt_tokens: int,
        output_tokens: int,
        keys: Sequence[int],
        *,
        past_secondary: bool = False,
    ) -> None:
        self.id = id_
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.keys = keys
        self.past_secondary = past_secondary
        """It wants nothing from the tiers behind the host."""
        self.arrived_s = 0.0
        self.scheduled_s = math.nan
        """First time in a step."""
        self.times = array("d")
        """When each output token was there."""
        self.finish_reason: str | None = None
        self.computed = 0
        """Tokens whose KV is on the device, or will be after the step under way."""
        self.generated = 0
        self.own_blocks: list[int] = []
        """Device blocks in the order of the tokens."""
        self.registered = 0
        """Of these, the leading ones that others can hit."""
        self.device_tokens = self.host_tokens = self.disk_tokens = 0
        """Prompt tokens by source, as at the first admission; the rest was computed."""
        self.preempted = False
        self.useless_tokens = 0
        """Computed again although a tier delivered them."""
        # Towards the tiers behind the device:
        self.chunks: Sequence[int] = ()
        self.storable = 0
        """How many leading chunks go to the host tier at all."""
        self.offered = 0
        """How many have been offered to it."""
        self.access = Access()
        self.loading = self.loaded = False
        self.cached = 0
        """Tokens on the device once what is being loaded is there."""
        self.jobs = 0
        """Copies between device and host under way for it."""
        self.from_disk: set[int] = set()
        self.known: dict[int, bool | None] = {}
        """What the disk tier has said; None: asked."""
        self.asked: list[int] = []
        self.answers_s = math.inf
        self.version = -1
        """State of the tiers at the last look-up that could not be decided."""
        self.wake_s = math.inf
        self.waited_since_s = math.nan

    @property
    def total_tokens(self) -> int:
        """Prompt and what has been generated so far."""
        return self.prompt_tokens + self.generated

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed, as the engine says."""
        return self.device_tokens + self.host_tokens + self.disk_tokens

    @property
    def promoted_tokens(self) -> int:
        """Prompt tokens that came from a tier behind the device."""
        return self.host_tokens + self.disk_tokens
