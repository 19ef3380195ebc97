"""What the load driver is told of one round of one arm, and whether its prompts have room for what servers add."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench.engine.base import Endpoint
from kvbench.errors import InputError, NotSupportedYetError
from kvbench.load.plan import LoadPlan
from kvbench.record.journal import Journal
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import Schedule

__all__ = ["load_plan", "prompts_of", "room_for_prompts"]


def load_plan(profile: Profile, index: int, journal: Journal, endpoint: Endpoint, directory: Path) -> LoadPlan:
    """Round `index` of the arm `profile`; rows go to `directory`."""
    return LoadPlan(
        schedule=journal.run.schedule_path(index).resolve(),
        out=directory.resolve(),
        arm=profile.name,
        round=index,
        **prompts_of(endpoint),
        past_secondary=_past_secondary(profile, journal, endpoint),
        crew=journal.manifest.crew,
    )


def prompts_of(endpoint: Endpoint) -> dict[str, Any]:
    """The fields of a load plan that say where requests go and how their prompts are written."""
    return {
        "base_url": endpoint.base_url,
        "model": endpoint.model,
        "token_id_range": endpoint.token_id_range,
        "access": endpoint.access,
        "api": endpoint.api,
        "words": endpoint.words,
        "opening": endpoint.opening,
        "extra_prompt_tokens": endpoint.extra_prompt_tokens,
        "extra_tokens_behind": endpoint.extra_tokens_behind,
        "extra_body": endpoint.extra_body,
    }


def _past_secondary(profile: Profile, journal: Journal, endpoint: Endpoint) -> dict[str, object] | None:
    """What a held out request says where the arm has a tier behind the host. NotSupportedYetError when its engine
    takes no such thing."""
    if not journal.manifest.workload.tier_holdout or not profile.tiers.behind_host:
        return None
    if endpoint.past_secondary is None:
        raise NotSupportedYetError(
            f"tier_holdout on {profile.name}: its server takes no wish of a request to go past a tier",
            do="leave tier_holdout out, or use a server of vLLM with its native offloading",
        )
    return endpoint.past_secondary


def room_for_prompts(schedule: Schedule, endpoint: Endpoint) -> tuple[str, ...]:
    """What of the planned prompts cannot be kept to, as sentences. InputError for prompts that have no room at all.

    A prompt whose last segment is no longer than what the server puts behind it lacks the end of its prefix.
    """
    front, behind = endpoint.extra_prompt_tokens, endpoint.extra_tokens_behind
    first = [request for request in schedule.requests if request.continues is None or not request.carries]
    shortest = min((request.own_prompt_tokens for request in first), default=0)
    if first and 0 < shortest <= front + behind:
        raise InputError(
            f"a prompt of {shortest} tokens is planned, and the server at {endpoint.base_url} puts "
            f"{front + behind} around each",
            do=f"make every prompt of the workload longer than {front + behind} tokens",
        )
    short = sorted({r.class_ for r in schedule.requests if r.segments[-1].tokens <= behind}) if behind else []
    if not short:
        return ()
    return (
        f"the end of the prefix of some prompts of {', '.join(short)}: the server puts {behind} tokens behind each "
        "prompt, and these have no more after their prefix",
    )
