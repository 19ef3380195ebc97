"""What to do on a breach: the candidate's profile without its newest tier, rendered. Nothing is started."""

from __future__ import annotations

from kvbench.canary.verdict import CanaryAction, CanaryVerdict, Configuration
from kvbench.engine.create import render_profile
from kvbench.judge.tiers import Tier, newest_tier
from kvbench.judge.verdict import Outcome
from kvbench.spec.canary import LoadedCanary
from kvbench.spec.profile import Profile

__all__ = ["action_for", "newest_tier_of", "with_configuration", "without_tier"]


def newest_tier_of(loaded: LoadedCanary) -> Tier | None:
    """Against the baseline's profile where the file names one, else the coldest tier behind the device."""
    if loaded.candidate is None:
        return None
    if loaded.baseline is not None:
        return newest_tier(loaded.baseline, loaded.candidate)
    tiers = loaded.candidate.tier_names
    return "disk" if "disk" in tiers else "host" if "host" in tiers else None


def without_tier(profile: Profile, tier: Tier, baseline: Profile | None = None) -> Profile:
    """The same profile with `tier` off, or as the baseline has it where that has one too."""
    before = getattr(baseline.tiers, tier) if baseline is not None else None
    update: dict[str, object] = {tier: before}
    if tier == "disk":  # object stores count as one
        update["secondary"] = baseline.tiers.secondary if baseline is not None else []
    return profile.model_copy(update={"tiers": profile.tiers.model_copy(update=update)})


def with_configuration(verdict: CanaryVerdict, loaded: LoadedCanary) -> CanaryVerdict:
    """The verdict with the exact configuration to apply, where it calls for one."""
    action = verdict.action
    if verdict.verdict is not Outcome.NO_GO or action is None or loaded.candidate is None:
        return verdict
    new = action_for(loaded.candidate, loaded, action.disable_tier, action.why)
    return verdict.model_copy(update={"action": new})


def action_for(candidate: Profile, loaded: LoadedCanary, tier: Tier, why: str) -> CanaryAction:
    """Disable `tier` of `candidate`, with the configuration that does."""
    wanted = without_tier(candidate, tier, loaded.baseline)
    return CanaryAction(disable_tier=tier, why=why, configuration=_rendered(wanted))


def _rendered(profile: Profile) -> Configuration:
    shown = profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if profile.engine.kind == "attached":
        return Configuration(profile=shown)
    rendered = render_profile(profile)
    return Configuration(
        profile=shown, argv=list(rendered.argv), env=dict(rendered.env), files=dict(rendered.files)
    )
