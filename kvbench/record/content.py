"""Digests of what a run was about, so that a run.json that was edited afterwards shows itself."""

from __future__ import annotations

import hashlib

from kvbench.record.manifest import Manifest
from kvbench.spec.model import SpecModel

__all__ = ["content_digests", "edited"]


FORM = "sha256:"


def content_digests(manifest: Manifest) -> dict[str, str]:
    """`sha256:...` of each resolved profile, of the workload and of the rules.

    Over what is not a default, so that keys that later versions add with a default change no digest.
    """
    parts: dict[str, SpecModel] = {f"profile {arm.name}": arm.profile for arm in manifest.arms}
    parts |= {"workload": manifest.workload, "rules": manifest.rules}
    return {name: FORM + hashlib.sha256(_written(part)).hexdigest() for name, part in parts.items()}


def _written(part: SpecModel) -> bytes:
    return part.model_dump_json(by_alias=True, exclude_defaults=True).encode()


def edited(manifest: Manifest) -> list[str]:
    """The parts that are no longer what they were when the run began; digests of another form prove nothing."""
    then, now = manifest.digests, content_digests(manifest)
    if not all(digest.startswith(FORM) for digest in then.values()):
        return []
    return sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
