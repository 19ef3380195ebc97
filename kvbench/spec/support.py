"""What this version can carry out, of what the spec files may say.

Loading accepts every documented key; `check_supported` is for commands that act on what was loaded. Everything that
a profile may say can be carried out.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.errors import NotSupportedYetError
from kvbench.spec.document import KeyPath
from kvbench.spec.loading import where
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = ["check_supported"]

_LATER_METRICS = ("capacity", "quote_recall")


def check_supported(spec: Workload | Rules) -> None:
    """NotSupportedYetError, with file and line, for the first key whose behaviour comes later."""
    for path, what in _in_workload(spec) if isinstance(spec, Workload) else _in_rules(spec):
        raise NotSupportedYetError(what, where=where(spec, *path))


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
