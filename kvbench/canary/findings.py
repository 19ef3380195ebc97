"""What keeps a live measurement from being trusted yet: every finding and its words, in this one place.

None of them is a breach and none a pass: while one blocks there is no GO, and at the end the verdict is
INCONCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvbench.judge import wording
from kvbench.judge.verdict import RuleResult

__all__ = ["CanaryFinding", "FindingKind", "results"]


class FindingKind(StrEnum):
    """In the order in which they are reported: the first ones explain the later ones."""

    UNREACHABLE = "metrics-unreachable"
    OVERLAP = "selections-overlap"
    MISSING = "series-missing"
    DOWN = "scrape-failed"
    STALE = "series-stale"
    GAP = "scrape-gap"
    RESTARTED = "engine-restarted"
    RESET = "counter-reset"
    WARMING = "warming-up"
    TRAFFIC = "too-few-requests"
    UNEQUAL = "unequal-traffic"
    REPLICA = "replica-differs"


_CLEAN = {
    FindingKind.UNREACHABLE: "metrics could be read throughout",
    FindingKind.OVERLAP: "no server is in both selections",
    FindingKind.MISSING: "every series that the rules need is there",
    FindingKind.DOWN: "every replica answers its scrapes",
    FindingKind.STALE: "every series goes on",
    FindingKind.GAP: "scrapes are complete",
    FindingKind.RESTARTED: "no engine restarted",
    FindingKind.RESET: "no counter fell",
    FindingKind.WARMING: "caches are filled",
    FindingKind.TRAFFIC: "there are enough requests to judge",
    FindingKind.UNEQUAL: "candidate and baseline get the same traffic for each replica",
    FindingKind.REPLICA: "no replica differs from the others of its group",
}

if set(_CLEAN) != set(FindingKind):
    raise AssertionError("every finding has its words")


@dataclass(frozen=True)
class CanaryFinding:
    """One thing; `blocks`: there can be no GO while it is so. Otherwise it is only said."""

    kind: FindingKind
    text: str
    blocks: bool = True


def results(findings: Sequence[CanaryFinding]) -> list[RuleResult]:
    """One result for each kind, in their order: unknown while it blocks, else pass with what there is to say."""
    found: list[RuleResult] = []
    for kind in FindingKind:
        mine = [finding for finding in findings if finding.kind is kind]
        blocks = any(finding.blocks for finding in mine)
        text = wording.listed([finding.text for finding in sorted(mine, key=lambda each: not each.blocks)])
        status = "unknown" if blocks else "pass"
        found.append(
            RuleResult.model_validate(
                {"rule": kind.value, "kind": "validity", "status": status, "text": text or _CLEAN[kind]}
            )
        )
    return found
