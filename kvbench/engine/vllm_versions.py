"""Which vLLM release brought what, so that nothing is asked of one that would ignore it in silence. Pure.

Source: the packages of the releases themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.errors import InputError, KeyPath
from kvbench.spec.profile import DiskTier, HostTier, Profile
from kvbench.spec.secondary import SecondaryTier

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
                f"vLLM {profile.engine.version} has no {what}; it came with {since[0]}.{since[1]}",
                key=key,
                do=f"pin a version from {since[0]}.{since[1]}.0 on, or leave it out",
            )


def _asked(profile: Profile) -> Iterator[tuple[tuple[int, int], KeyPath, str]]:
    tiers = profile.tiers
    if tiers.host is not None:
        yield from _asked_of_host(tiers.host)
    behind: list[tuple[KeyPath, DiskTier | SecondaryTier]] = []
    if tiers.disk is not None:
        yield (0, 24), ("tiers", "disk"), "file tier"
        behind.append((("tiers", "disk"), tiers.disk))
    for i, tier in enumerate(tiers.secondary):
        yield _SECONDARY[tier.type], ("tiers", "secondary", i), f"secondary tier of type {tier.type}"
        behind.append((("tiers", "secondary", i), tier))
    for path, each in behind:
        if each.backpressure is not None:
            yield (0, 31), (*path, "backpressure"), "back-pressure"


def _asked_of_host(host: HostTier) -> Iterator[tuple[tuple[int, int], KeyPath, str]]:
    path: KeyPath = ("tiers", "host")
    yield (0, 14), path, "host tier whose size is the total over all ranks"
    if host.store_threshold:
        yield (0, 18), (*path, "store_threshold"), "store threshold"
    if not host.offload_prompt_only:
        yield (0, 24), (*path, "offload_prompt_only"), "such switch"
    if host.blocks_per_chunk is not None:
        yield (0, 26), (*path, "blocks_per_chunk"), "such key"
    if host.canonical_layout:
        yield (0, 28), (*path, "canonical_layout"), "such layout"
    if host.via == "lmcache" and not host.in_process:
        yield (0, 24), (*path, "via"), "connector to an LMCache server behind this flag"


_SECONDARY = {"example": (0, 22), "obj": (0, 24), "p2p": (0, 26), "kvcr": (0, 30)}
