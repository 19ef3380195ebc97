"""Digests of what a run was about, so that a run.json that was edited afterwards shows itself."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel

from kvbench.record.manifest import Manifest

__all__ = ["content_digests", "digest", "edited"]


FORM = "sha256:"


def content_digests(manifest: Manifest) -> dict[str, str]:
    """`sha256:...` of each resolved profile, of the workload, of the rules and of what was predicted."""
    parts: dict[str, BaseModel] = {f"profile {arm.name}": arm.profile for arm in manifest.arms}
    parts |= {"workload": manifest.workload, "rules": manifest.rules}
    parts |= {f"prediction for {each.arm}": each for each in manifest.predictions}
    return {name: digest(part) for name, part in parts.items()}


def digest(part: BaseModel) -> str:
    """`sha256:...` over what is not a default, so that keys that later versions add with a default change none."""
    written = part.model_dump_json(by_alias=True, exclude_defaults=True)
    return FORM + hashlib.sha256(written.encode()).hexdigest()


def edited(manifest: Manifest) -> list[str]:
    """The parts that are no longer what they were when the run began; digests of another form prove nothing."""
    then, now = manifest.digests, content_digests(manifest)
    if not all(digest.startswith(FORM) for digest in then.values()):
        return []
    return sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
