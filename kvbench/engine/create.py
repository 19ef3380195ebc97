"""From a profile to its engine, and to the command that the engine would be started with."""

from __future__ import annotations

from pathlib import Path

from kvbench.engine import trtllm_engine, vllm_engine
from kvbench.engine.attached import AttachedEngine
from kvbench.engine.base import Engine, Launch, Rendered
from kvbench.engine.emulated import launched as emulated
from kvbench.engine.launched import asked_port
from kvbench.engine.lmcache import has_server, in_process
from kvbench.engine.lmcache_engine import VllmWithLmcache, VllmWithLmcacheInside
from kvbench.errors import InputError
from kvbench.spec.places import placed
from kvbench.spec.profile import Profile

__all__ = ["create_engine", "render_profile"]


def create_engine(profile: Profile, launch: Launch) -> Engine:
    """The engine of this profile; nothing is started yet."""
    with placed(profile):
        return _created(profile, launch)


def _created(profile: Profile, launch: Launch) -> Engine:
    match profile.engine.kind:
        case "vllm" if has_server(profile):
            return VllmWithLmcache(profile, launch)
        case "vllm" if in_process(profile):
            return VllmWithLmcacheInside(profile, launch)
        case "vllm":
            return vllm_engine.VllmEngine(profile, launch)
        case "attached":
            return AttachedEngine(profile, launch)
        case "tensorrt-llm":
            return trtllm_engine.TensorRtLlmEngine(profile, launch)
        case "emulated":
            return emulated.EmulatedEngine(profile, launch)


def render_profile(profile: Profile) -> Rendered:
    """What `kvbench render` shows: nothing is started, made or asked, and no engine needs to be installed.

    The port is the engine's default, where a launch takes a free one; engine id and directories are stand-ins too.
    InputError names file and line of what is wrong with the profile.
    """
    with placed(profile):
        return _rendered(profile)


def _rendered(profile: Profile) -> Rendered:
    match profile.engine.kind:
        case "vllm":
            return vllm_engine.render_without_start(profile)
        case "tensorrt-llm":
            return trtllm_engine.render_without_start(profile)
        case "attached":
            raise InputError(
                f"profile {profile.name} attaches to a running server, so there is no command to show",
                key=("engine", "kind"),
                do="`kvbench render` is for engines that kvbench starts",
            )
        case "emulated":
            return emulated.render(
                profile,
                port=asked_port(profile) or emulated.DEFAULT_PORT,
                file=Path(f"kvbench-{profile.name}.json").absolute(),
                label=profile.name,
            )
