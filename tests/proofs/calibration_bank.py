"""The bank of emulated rounds that calibration draws from: an arm with itself, and the same arm slowed down.

Each round plays one schedule three times on fresh launches. Kept on disk are the latencies of its requests and gaps
in seconds, in batches, under a key made of the code that makes them and the seed: a run that was stopped goes on.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

import kvbench
from kvbench.engine.emulated.simulated import SimulatedRound
from kvbench.engine.emulated.virtual import simulate
from kvbench.judge.latency import RoundLatencies, Sample
from kvbench.spec.emulation import Injections
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule

__all__ = ["ARMS", "LOADS", "SLOWED_BY", "Bank", "PlayedRound", "fill", "play", "profile", "workload"]

Floats = npt.NDArray[np.float32]

LOADS = {"low": 3.0, "medium": 10.0, "high": 18.0}
"""Requests a second. The p99 of TTFT is then some 1.0, 1.3 and 1.6 times that of an engine at rest."""
REQUESTS = 450
"""Expected in a round; 85 % are short, so that their p99 (300 requests) is carried in every round."""
TIMEOUT_S = 120.0
ARMS = ("baseline", "candidate", "slowed")
"""Baseline and candidate are the same profile; what becomes of `slowed` is a mechanism, not a factor."""
SLOWED_BY = 1.15
"""Every step of the slowed arm takes that many times as long; queueing makes more of it."""
LEAST_REQUESTS = 300
BLOCK_TOKENS, MAX_MODEL_LEN = 128, 4096
BATCH = 20
"""Rounds in a file."""
SOURCES = ("engine/emulated", "workload", "spec/emulation.py", "load/agenda.py", "judge/latency.py")
"""Of the package: what decides the latencies of a round."""


@dataclass(frozen=True)
class PlayedRound:
    """Latencies of one arm in one round, all of requests that were answered in full."""

    short_ttft: Floats
    long_ttft: Floats
    gaps: Floats
    """Between tokens, of both classes."""
    engine_s: float
    """From the first request that fills the tiers to the last answer."""


@dataclass(frozen=True)
class Bank:
    """Rounds of one load: by arm, the same schedule at the same place."""

    load: str
    rounds: dict[str, list[PlayedRound]]

    def __len__(self) -> int:
        return len(self.rounds["baseline"])


def profile(arm: str) -> Profile:
    """A device for a third of the prefixes and a host tier for all of them."""
    tiers = {"device": {"blocks": 66}, "host": {"size": 200 * 262_144}}
    engine = {"kind": "emulated", "model": "tiny", "args": {"max-model-len": MAX_MODEL_LEN}}
    return Profile.model_validate({"name": arm, "engine": engine, "tiers": tiers})


def workload(load: str, seed: int) -> Workload:
    """Short prompts, whose tails the guardrails hold, and long ones, which the benefit is about."""
    rate = LOADS[load]
    short = {"prefix": {"tokens": 128, "pool": 8, "popularity": "uniform"}, "suffix_tokens": 64}
    long = {"prefix": {"tokens": 1024, "pool": 16, "popularity": "uniform"}, "suffix_tokens": 64}
    return Workload.model_validate(
        {
            "name": f"calibration-{load}",
            "seed": seed,
            "arrivals": {"process": "poisson", "rate": rate},
            "phases": [{"name": "steady", "for": REQUESTS / rate}],
            "classes": {
                "short": {"weight": 0.85, "output_tokens": 8, **short},
                "long": {"weight": 0.15, "output_tokens": 8, **long},
            },
            "prime": "each_prefix_once",
            "request_timeout": TIMEOUT_S,
        }
    )


def play(load: str, seed: int, index: int, arm: str) -> SimulatedRound:
    """One round of one arm, the whole of its tables. The same arguments give the same round."""
    schedule = build_schedule(
        workload(load, seed),
        index,
        block_tokens=BLOCK_TOKENS,
        capacities_tokens=None,
        max_model_len=MAX_MODEL_LEN,
    )
    injected = {"slow_steps": {"factor": SLOWED_BY}} if arm == "slowed" else {}
    return simulate(
        schedule, profile(arm), label=f"{arm}-{index}-{seed}", injections=Injections.model_validate(injected)
    )


def latencies(played: SimulatedRound, arm: str, index: int) -> PlayedRound:
    """RuntimeError for a round that cannot be scaled exactly: one with failures, or with too few requests."""
    known = RoundLatencies(played.arm_round(arm, index), TIMEOUT_S)
    short, long, gaps = known.sample("ttft", "short"), known.sample("ttft", "long"), known.sample("itl", "all")
    if short.at_timeout or long.at_timeout or gaps.at_timeout:
        raise RuntimeError(f"round {index} of {arm} has requests that failed")
    if short.requests < LEAST_REQUESTS:
        raise RuntimeError(f"round {index} of {arm} has {short.requests} short requests, not {LEAST_REQUESTS}")
    times = played.requests.select(["sent_s", "ended_s"]).to_pandas()
    engine_s = float(times["ended_s"].max() - times["sent_s"].min())
    return PlayedRound(_small(short), _small(long), _small(gaps), engine_s)


def _small(sample: Sample) -> Floats:
    return sample.values.astype(np.float32)


def fill(
    directory: Path,
    load: str,
    seed: int,
    rounds: int,
    *,
    workers: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Bank:
    """The bank of a load with `rounds` rounds; what is not in `directory` yet is played and kept there."""
    folder = directory / f"{_code_key()}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(1, rounds + 1, BATCH)
    paths = [folder / f"{load}-{first:05}.npz" for first in starts]
    missing = [(first, path) for first, path in zip(starts, paths, strict=True) if not path.exists()]
    with ProcessPoolExecutor(max_workers=workers) as pool:
        running = [pool.submit(partial(_make_batch, path, load, seed, first)) for first, path in missing]
        for count, done in enumerate(as_completed(running), 1):
            done.result()
            tell(f"{load}: {BATCH * (len(paths) - len(missing) + count)} of {BATCH * len(paths)} rounds played")
    kept: dict[str, list[PlayedRound]] = {arm: [] for arm in ARMS}
    for path in paths:
        for arm, played in _read(path).items():
            kept[arm].extend(played)
    return Bank(load, {arm: played[:rounds] for arm, played in kept.items()})


def _code_key() -> str:
    """Changes whenever the code does that decides what a round's latencies are."""
    package = Path(kvbench.__file__).parent
    files = [Path(__file__)]
    for source in SOURCES:
        place = package / source
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _make_batch(path: Path, load: str, seed: int, first: int) -> None:
    """Play the rounds of one file; the file is there whole or not at all."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for arm in ARMS:
        played = [latencies(play(load, seed, index, arm), arm, index) for index in range(first, first + BATCH)]
        for name in ("short_ttft", "long_ttft", "gaps"):
            columns = [getattr(one, name) for one in played]
            arrays[f"{arm}.{name}"] = np.concatenate(columns)
            arrays[f"{arm}.{name}.ends"] = np.cumsum([len(column) for column in columns])
        arrays[f"{arm}.engine_s"] = np.array([one.engine_s for one in played])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    part = path.with_suffix(f".part-{os.getpid()}")
    part.write_bytes(buffer.getvalue())
    part.replace(path)


def _read(path: Path) -> dict[str, list[PlayedRound]]:
    with np.load(path) as arrays:
        return {arm: _read_arm(arrays, arm) for arm in ARMS}


def _read_arm(arrays: np.lib.npyio.NpzFile, arm: str) -> list[PlayedRound]:
    columns: list[Sequence[Floats]] = [
        np.split(arrays[f"{arm}.{name}"], arrays[f"{arm}.{name}.ends"][:-1])
        for name in ("short_ttft", "long_ttft", "gaps")
    ]
    return [
        PlayedRound(short, long, gaps, float(engine_s))
        for short, long, gaps, engine_s in zip(*columns, arrays[f"{arm}.engine_s"], strict=True)
    ]
