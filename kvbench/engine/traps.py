"""What a profile's engine will not do as it looks, in sentences: settings that are valid and mislead. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kvbench.engine import tensorrt_llm, vllm_traps
from kvbench.spec.profile import Profile

__all__ = ["named_traps", "traps"]


def traps(profile: Profile) -> list[str]:
    """One sentence each; none for engines that others start."""
    match profile.engine.kind:
        case "vllm":
            return vllm_traps.traps(profile)
        case "tensorrt-llm":
            return tensorrt_llm.traps(profile)
        case _:
            return []


def named_traps(profiles: Iterable[Profile]) -> list[str]:
    """Those of several profiles, each after the name of its own."""
    return [f"{profile.name}: {trap}" for profile in profiles for trap in traps(profile)]
