"""What this version can carry out, of what the spec files may say.

Loading accepts every documented key. `check_supported` is for commands that act on a spec (compare, run); `render`
does without, so that profiles for engines that are only started later can still be shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.errors import NotSupportedYetError
from kvbench.spec.document import KeyPath
from kvbench.spec.loading import where
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = ["check_supported"]

_LATER_METRICS = ("capacity", "quote_recall")


def check_supported(spec: Profile | Workload | Rules) -> None:
    """NotSupportedYetError, with file and line, for the first key whose behaviour comes later."""
    for path, what in _later(spec):
        raise NotSupportedYetError(what, where=where(spec, *path))


def _later(spec: Profile | Workload | Rules) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(spec, Profile):
        yield from _in_profile(spec)
    elif isinstance(spec, Workload):
        yield from _in_workload(spec)
    else:
        yield from _in_rules(spec)


def _in_profile(profile: Profile) -> Iterator[tuple[KeyPath, str]]:
    host = profile.tiers.host
    if host is not None and host.via == "lmcache" and profile.engine.image is not None:
        yield ("tiers", "host", "via"), "LMCache with an engine in a container"


def _in_workload(workload: Workload) -> Iterator[tuple[KeyPath, str]]:
    for name, class_ in workload.classes.items():
        working_set = class_.prefix.working_set if class_.prefix else None
        if working_set is not None and working_set.of == "disk":
            yield ("classes", name, "prefix", "working_set", "of"), "a working set sized by the disk tier"


def _in_rules(rules: Rules) -> Iterator[tuple[KeyPath, str]]:
    for part in ("guardrails", "benefits", "evidence"):
        for i, rule in enumerate(getattr(rules, part)):
            if rule.metric in _LATER_METRICS:
                yield (part, i, "metric"), f"a rule on {rule.metric}"
