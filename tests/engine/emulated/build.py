"""Small profiles and schedules for the emulated engine, and ways to play them."""

from __future__ import annotations

from kvbench.engine.emulated.request import Request
from kvbench.engine.emulated.scheduler import EmulatedCore
from kvbench.engine.emulated.sizes import sizes_of
from kvbench.spec.emulation import Emulation, Injections, Noise
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import Schedule

STILL = Noise(launch=0, level=0, step=0)
BLOCK = 16
APART_S = 1000.0


def a_profile(
    blocks: int = 65, host_blocks: int = 0, *, disk: bool = False, inject: dict | None = None, **host: object
) -> Profile:
    """Blocks of 16 tokens and 4 KiB."""
    tiers: dict = {"device": {"blocks": blocks}}
    if host_blocks:
        tiers["host"] = {"size": host_blocks * 4096, **host}
    if disk:
        tiers["disk"] = {"path": "/nowhere/kv"}
    engine = {
        "kind": "emulated",
        "model": "tiny",
        "args": {"block-size": BLOCK, "max-model-len": min(1024, (blocks - 1) * BLOCK)},
        "emulation": {"costs": {"block_bytes": 4096}, "noise": STILL.model_dump()},
        **({"inject": inject} if inject else {}),
    }
    return Profile.model_validate({"name": "arm", "engine": engine, "tiers": tiers})


def a_core(profile: Profile, *, noise: Noise = STILL, seed: int = 1) -> EmulatedCore:
    emulation = (profile.engine.emulation or Emulation()).model_copy(update={"noise": noise})
    return EmulatedCore(sizes_of(profile), emulation, profile.engine.inject or Injections(), seed)


def a_request(id_: int, document: int, tokens: int = 160, output: int = 4) -> Request:
    """A prompt that shares its first half with every other of the same document."""
    half = tokens // 2 // BLOCK
    whole = (tokens + output - 1) // BLOCK
    keys = [document * 1000 + i for i in range(half)] + [10**6 + id_ * 1000 + i for i in range(half, whole)]
    return Request(id_, tokens, output, keys)


def play(core: EmulatedCore, requests: list[tuple[float, Request]]) -> list[Request]:
    """Submit each at its time and let everything end; the next call begins `APART_S` later at the earliest."""
    for at_s, request in requests:
        core.advance(at_s)
        core.submit(request, at_s)
    core.advance(requests[-1][0] + APART_S - 1)
    return core.take_finished()


def a_schedule(round_: int = 1, **changes: object) -> Schedule:
    spec: dict = {
        "name": "small",
        "seed": 3,
        "arrivals": {"process": "poisson", "rate": 5.0},
        "phases": [{"name": "steady", "for": 20.0}],
        "classes": {
            "long": {
                "weight": 1.0,
                "prefix": {"tokens": 512, "pool": 6, "popularity": "uniform"},
                "suffix_tokens": 32,
                "output_tokens": 8,
            }
        },
        "prime": "each_prefix_once",
        **changes,
    }
    return build_schedule(
        Workload.model_validate(spec), round_, block_tokens=BLOCK, capacities_tokens=None, max_model_len=1024
    )
