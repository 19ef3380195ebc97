"""What pruning tells: for people and for machines."""

from __future__ import annotations

from rich.console import Console

from kvbench.history.document import moment
from kvbench.history.prune import Pruning
from kvbench.report.streams import say
from kvbench.spec.quantity import show_bytes

__all__ = ["pruning_document", "show_pruning"]


def show_pruning(console: Console, pruning: Pruning) -> None:
    """A line for each run that goes, what was left alone, and what stays."""
    verb = "deleted" if pruning.done else "would delete"
    for old in pruning.old:
        history = "" if old.recorded else "; its verdict is not in the history"
        say(console, f"{verb} {old.path}: {show_bytes(old.size_bytes)}, too {_WHY[old.why]}{history}")
    for path, why in pruning.untouched:
        say(console, f"left alone {path}: {why}")
    size = show_bytes(sum(old.size_bytes for old in pruning.old))
    say(console, f"{verb} {len(pruning.old)} runs, {size}; {pruning.kept} stay, {show_bytes(pruning.kept_bytes)}")
    if pruning.old and not pruning.done:
        say(console, "nothing was deleted; add --yes to do it")


_WHY = {"age": "old", "size": "large with all newer ones"}


def pruning_document(pruning: Pruning) -> dict[str, object]:
    """`dry_run` says whether anything was deleted."""
    return {
        "dry_run": not pruning.done,
        "runs": [
            {
                "path": str(old.path),
                "created_utc": moment(old.created),
                "bytes": old.size_bytes,
                "why": old.why,
                "recorded": old.recorded,
            }
            for old in pruning.old
        ],
        "freed_bytes": sum(old.size_bytes for old in pruning.old),
        "kept": pruning.kept,
        "kept_bytes": pruning.kept_bytes,
        "left_alone": [{"path": str(path), "why": why} for path, why in pruning.untouched],
    }
