"""Since when the caches of a replica are filled: told by what was computed and stored, never by a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvbench.canary.families import BY_SOURCE, CACHE_CONFIG, CACHED, HOST_STORED, LATENCY_FAMILIES, PROMPT
from kvbench.canary.series import Floats, Replica

__all__ = ["Warmth", "warmth"]

STRETCH_REQUESTS = 50
"""The share of cached tokens is taken over so many requests: fewer tell nothing at the spread of prompt lengths."""
STILL_RISING = 0.05
"""More than five points from one stretch to the next is a cache that still fills."""


@dataclass(frozen=True)
class Warmth:
    """`since_s`: from when on the replica counts; None while its caches still fill. `why`: what tells so."""

    since_s: float | None
    why: str


def warmth(replica: Replica, host_bytes: int | None) -> Warmth:
    """From the last restart on: warm once device and host were written through, or hits stopped rising."""
    began_s = float(replica.restarts_s[-1]) if len(replica.restarts_s) else -np.inf
    filled = [
        since
        for since in (_device_filled(replica, began_s), _host_filled(replica, host_bytes, began_s))
        if since is not None
    ]
    written_s = max(filled) if filled else np.inf
    level_s = _levelled(replica, began_s)
    # Whichever came first, so that what counts as warm now does so at every later look.
    if level_s is not None and level_s < written_s:
        return Warmth(level_s, "the share of cached tokens does not rise any more")
    if written_s < np.inf:
        return Warmth(written_s, "as much was computed and stored as its caches hold")
    if not filled and not replica.has(CACHED):
        return Warmth(max(began_s, _first(replica)), "it does not tell its cache fill")
    return Warmth(None, "its caches still fill")


def _first(replica: Replica) -> float:
    return float(replica.t_s[0]) if len(replica.t_s) else 0.0


def _reached(replica: Replica, level: Floats, wanted: float, began_s: float) -> float:
    """When a counter, which begins with the process, first reached a level after `began_s`; infinite: not yet."""
    there = replica.t_s[(replica.t_s >= began_s) & ~np.isnan(level) & (np.nan_to_num(level) >= wanted)]
    return float(there[0]) if len(there) else np.inf


def _device_filled(replica: Replica, began_s: float) -> float | None:
    """Computed prompt tokens against what the device holds; None where the server does not tell its capacity."""
    capacity = 0
    for _, labels in replica.keys(CACHE_CONFIG):
        config = dict(labels)
        blocks, tokens = config.get("num_gpu_blocks", ""), config.get("block_size", "")
        if blocks.isdigit() and tokens.isdigit():
            capacity += int(blocks) * int(tokens)
    keys = replica.keys(BY_SOURCE, source="computed")
    if not capacity or not keys:
        return None
    return _reached(replica, replica.level(keys), capacity, began_s)


def _host_filled(replica: Replica, host_bytes: int | None, began_s: float) -> float | None:
    """Stored bytes against the size of the host tier. The counter has no sample before the first store."""
    if host_bytes is None or not replica.has(CACHED):
        return None
    keys = replica.keys(HOST_STORED)
    return _reached(replica, replica.level(keys), host_bytes, began_s) if keys else np.inf


def _levelled(replica: Replica, began_s: float) -> float | None:
    """The end of the first stretch whose share of cached tokens is not above that of the stretch before it."""
    rows = (
        replica.grown(replica.keys(LATENCY_FAMILIES["ttft"] + "_count")),
        replica.grown(replica.keys(PROMPT)),
        replica.grown(replica.keys(CACHED)),
    )
    known = ~np.isnan(np.vstack(rows)).any(axis=0) & (replica.t_s > began_s)
    if not known.any():
        return None
    t_s = replica.t_s[known]
    requests, prompt, cached = (np.cumsum(row[known]) for row in rows)
    stretch = (requests / STRETCH_REQUESTS).astype(int)
    ends = np.flatnonzero(np.diff(stretch) > 0) + 1
    if len(ends) < 2:
        return None
    tokens = np.diff(prompt[ends], prepend=0.0)
    shares = np.divide(np.diff(cached[ends], prepend=0.0), tokens, out=np.zeros(len(ends)), where=tokens > 0)
    level = np.flatnonzero(np.diff(shares) <= STILL_RISING)
    return float(t_s[ends[level[0] + 1]]) if len(level) else None
