"""Which vLLM release brought what, so that nothing is asked of one that would ignore it in silence. Pure.

Source: the packages of the releases themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.errors import InputError
from kvbench.spec.profile import Profile

__all__ = ["check_release", "release"]


def release(version: str | None) -> tuple[int, ...]:
    """`0.32.0` → (0, 32); of what is not known, nothing."""
    parts = (version or "").split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def check_release(profile: Profile) -> None:
    """InputError for the first key that the pinned release does not know; keys inside a connector's configuration
    that it does not know are ignored without a word. An unpinned version is not judged."""
    pinned = release(profile.engine.version)
    for since, key, what in _asked(profile):
        if pinned and pinned < since:
            raise InputError(
                f"{key}: vLLM {profile.engine.version} has no {what}; it came with {since[0]}.{since[1]}",
                do=f"pin a version from {since[0]}.{since[1]}.0 on, or leave it out",
            )


def _asked(profile: Profile) -> Iterator[tuple[tuple[int, int], str, str]]:
    host, disk = profile.tiers.host, profile.tiers.disk
    if host is not None:
        yield (0, 14), "tiers.host", "host tier whose size is the total over all ranks"
        if host.store_threshold:
            yield (0, 18), "tiers.host.store_threshold", "store threshold"
        if not host.offload_prompt_only:
            yield (0, 24), "tiers.host.offload_prompt_only", "such switch"
        if host.blocks_per_chunk is not None:
            yield (0, 26), "tiers.host.blocks_per_chunk", "such key"
        if host.canonical_layout:
            yield (0, 28), "tiers.host.canonical_layout", "such layout"
        if host.via == "lmcache" and not host.in_process:
            yield (0, 24), "tiers.host.via", "connector to an LMCache server behind this flag"
    if disk is not None:
        yield (0, 24), "tiers.disk", "file tier"
    for i, tier in enumerate(profile.tiers.secondary):
        yield _SECONDARY[tier.type], f"tiers.secondary[{i}]", f"secondary tier of type {tier.type}"
    if any(tier.backpressure is not None for tier in (*([disk] if disk else []), *profile.tiers.secondary)):
        yield (0, 31), "backpressure", "back-pressure"


_SECONDARY = {"example": (0, 22), "obj": (0, 24), "p2p": (0, 26), "kvcr": (0, 30)}
