"""What an emulated engine costs, how it varies, and which known truths are injected into it. Times in seconds.

The defaults of `Costs` were fitted to the embedded engine (vLLM 0.32.0 on two AVX2 cores, model tiny in float32).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvbench.spec.bounds import FACTOR, within
from kvbench.spec.model import SpecModel
from kvbench.spec.quantity import ByteSize, Cost, CountFromZero, Fraction, Number, PositiveSeconds, Seconds, Seed

__all__ = [
    "After",
    "Costs",
    "Emulation",
    "Held",
    "Injections",
    "Noise",
    "Restart",
    "Share",
    "Slowed",
    "Stalls",
]

Factor = Annotated[Number, Field(gt=0), within(FACTOR)]
LARGEST_SPREAD = 5.0
"""Standard deviation on log level: one step in six would take more than 150 times as long as usual."""
Spread = Annotated[Number, Field(ge=0, le=LARGEST_SPREAD)]
Share_ = Annotated[Fraction, Field(gt=0)]


class Costs(SpecModel):
    """Seconds of work. A step of the engine takes the sum of what is in it; transfers take place beside it."""

    request: Cost = 0.022
    """Before the scheduler sees a request: parsing, and the answer's way back. Takes no engine time. From the TTFT
    of prompts that are on the device (45 to 70 ms) less the step."""
    request_token: Cost = 0.0
    """For each prompt token before the scheduler sees the request: reading and hashing it. Takes no engine time."""
    step: Cost = 0.007
    """Of every step, whatever is in it. With `sequence`: gaps of 9 to 12 ms for one request alone."""
    sequence: Cost = 0.002
    """For each decoding request in the step."""
    token: Cost = 1.25e-4
    """For each prompt token computed. With `token_context`: 3,072 tokens in 0.42 s, 8,000 in 1.25 s."""
    token_context: Cost = 8e-9
    """For each pair of a computed prompt token and a token before it (attention)."""
    cached_context: Cost = 0.0
    """For each cached token of a prompt, once, in the step that begins to compute the rest: attention goes back
    over all of them, however few are computed."""
    load_block: Cost = 2.5e-4
    """Host to device, for 256 KiB: 24 blocks took some 6 ms more than blocks on the device."""
    store_block: Cost = 3.0e-4
    """Device to host."""
    read_block: Cost = 5.0e-4
    """Disk to host: 62 blocks took 30 to 50 ms more than blocks on the device."""
    write_block: Cost = 8.0e-4
    """Host to disk."""
    transfer: Cost = 5e-4
    """Of every job between host and device, however many blocks it moves."""
    disk_transfer: Cost = 5e-4
    """Of every job between host and disk, however many blocks it moves."""
    lookup: Cost = 1e-3
    """From asking the disk tier for a chunk to its answer."""
    shared_cores: Fraction = 0.0
    """Of the server's own work (handling requests, moving blocks), how much takes its time from a step under way:
    all where the engine computes on every core that does this work, nothing where it computes on a GPU."""
    block_bytes: ByteSize = 262_144
    """KV bytes of one block: 128 tokens of the built-in model `tiny`."""


class Noise(SpecModel):
    """Spread of the costs on log level. Zero everywhere makes every run of a schedule the same."""

    launch: Spread = 0.02
    """Standard deviation between launches: rounds that share a launch are not independent."""
    level: Spread = 0.08
    """Standard deviation of a level that wanders (AR(1) in time), so that slow and fast stretches last. Assumed,
    not fitted: over a round of two minutes it averages to 0.08 sqrt(2 x 5 s / 120 s) = 0.023, about what launches
    differ by, so that neither alone makes the noise between rounds."""
    correlation: PositiveSeconds = 5.0
    """Time after which the level has lost all but 1/e of what it was. Assumed: long against the time between
    requests (0.06 to 0.3 s in calibration), so that neighbours share it and are no independent evidence; short
    against a round, so that each has many stretches."""
    step: Spread = 0.10
    """Standard deviation of single steps around the level."""


class Emulation(SpecModel):
    """How an emulated engine behaves when nothing is injected."""

    costs: Costs = Costs()
    noise: Noise = Noise()
    seed: Seed = 0
    """With the launch's label it decides all of the noise."""


class Share(SpecModel):
    """A share of the requests, chosen by their number."""

    share: Share_


class Held(SpecModel):
    """A share of the requests that get their first token later, from so many requests on."""

    share: Share_
    by: PositiveSeconds
    after: CountFromZero = 0


class Stalls(SpecModel):
    """Steps that take longer."""

    every: PositiveSeconds
    by: PositiveSeconds


class Slowed(SpecModel):
    """Costs times a factor."""

    factor: Factor


class Restart(SpecModel):
    """After so many requests; the server is away for `down`."""

    after: CountFromZero
    down: Seconds = 1.0


class After(SpecModel):
    """From so many requests on; 0: from the start."""

    after: CountFromZero = 0


class Injections(SpecModel):
    """Known truths. Each says what the engine then does, and which verdict a comparison must end in when the
    candidate alone has it.

    `after` counts requests from the launch on, those that fill the tiers before the round included.
    """

    slower_tail: Held | None = None
    """A share of the requests waits longer for its first token, and nothing else changes. NO_GO: a guardrail on
    a tail of TTFT; beyond the requests' time-out on the error rate."""
    stalls: Stalls | None = None
    """Every so often one step takes longer, so every stream under way has one long gap. NO_GO: a guardrail on
    ITL."""
    slow_steps: Slowed | None = None
    """Every step takes longer. NO_GO: guardrails on TTFT and ITL."""
    slow_promotions: Slowed | None = None
    """Loads to the device and reads from disk take longer; with a factor large enough longer than computing. NO_GO:
    hits slower than recompute."""
    useless_hits: bool = False
    """What a tier delivers is counted and moved, and then computed all the same. NO_GO: no benefit, or hits slower
    than recompute."""
    no_promotions: bool = False
    """Tiers take blocks in and never give one back. NO_GO: the tier does not work."""
    errors: Share | None = None
    """A share of the requests is answered with status 500. NO_GO: a guardrail on the error rate; all of them:
    stability (INVALID when the baseline has it)."""
    dropped_streams: Share | None = None
    """A share of the answers ends in the middle, without an end mark. NO_GO: a guardrail on the error rate."""
    short_outputs: Share | None = None
    """A share of the answers is complete, with finish_reason stop, after half the tokens. NO_GO: stability."""
    corrupt_outputs: Share | None = None
    """A share of the answers to prompts that came from a tier behind the device has other tokens. NO_GO: output
    parity."""
    leaked_outputs: Share | None = None
    """A share of the answers to prompts that came from a tier behind the device is a passage of the prompt before
    it that begins otherwise. NO_GO: canaries, where the workload has them and the other prompt is another
    tenant's."""
    restart: Restart | None = None
    """Every connection breaks, all tiers but the disk are empty, counters begin anew. NO_GO: stability (INVALID
    when the baseline has it)."""
    death: After | None = None
    """The process ends. NO_GO: stability (INVALID when the baseline has it)."""
    freeze: After | None = None
    """No step is ever finished again; /health and /metrics go on answering. NO_GO: stability (INVALID when the
    baseline has it)."""
    counter_reset: After | None = None
    """Counters begin anew and nothing else happens. INVALID: a reset without the death of a process."""
    missing_metrics: After | None = None
    """/metrics answers 404. From the start INCONCLUSIVE: evidence unknown; later INVALID."""
    miscounted_sources: Share | None = None
    """Computed tokens are counted too high, so sources do not add up. INVALID: token-source identity."""
    miscounted_prompts: Share | None = None
    """Prompts are said to be longer than they were. INVALID: prompt tokens differ from plan."""
    other_configuration: bool = False
    """The server runs, and says so, with one device block less than asked. INVALID: effective configuration."""
    residue: bool = False
    """Counters and the device are not empty at the start: a prompt was served before. INVALID: cache not reset."""

    def named(self) -> dict[str, object]:
        """What is injected, by key."""
        return self.model_dump(exclude_defaults=True)
