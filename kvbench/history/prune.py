"""Which recorded runs to delete, by age and by size, and deleting them. The history itself is never touched.

Only folders go that hold a run.json of kvbench with the folder's own name, and nothing but what a run is made of.
Whatever else lies there stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kvbench.errors import InputError
from kvbench.history.store import FOLDER, read
from kvbench.judge.wording import listed
from kvbench.record.run_directory import RunDirectory

__all__ = ["Old", "Pruning", "carry_out", "plan_pruning"]

PARTS = re.compile(r"run\.json|verdict\.json|report\.(md|html)|junit\.xml|arms|schedules|plan-.+\.json")
"""What lies in the folder of a run. While a file is being written, its name has a dot before and more behind it."""
BLOCK_BYTES = 512
"""Unit of st_blocks, whatever the file system's own block is: stat(2)."""


@dataclass(frozen=True)
class Old:
    """A run that may go, and why; `size_bytes` is what its files occupy."""

    path: Path
    created: datetime
    size_bytes: int
    why: str
    recorded: bool
    """Whether its verdict is in the history."""


@dataclass(frozen=True)
class Pruning:
    """What would go or went, what stays, and what was left alone although it lies there."""

    old: tuple[Old, ...]
    kept: int
    kept_bytes: int
    untouched: tuple[tuple[Path, str], ...]
    done: bool = False


def plan_pruning(results: Path, now: datetime, max_age_s: float | None, max_bytes: int | None) -> Pruning:
    """Runs older than `max_age_s`, then the oldest until the rest takes at most `max_bytes`. Deletes nothing.

    InputError when there is no such folder.
    """
    if not results.is_dir():
        raise InputError(f"{results} is no folder", do="name the folder that holds the runs with --out")
    recorded = set(read(results)["run"])
    runs: list[Old] = []
    untouched: list[tuple[Path, str]] = []
    for path in sorted(results.iterdir()):
        if path.name == FOLDER or path.name.startswith("."):
            continue
        try:
            runs.append(_run(path, recorded))
        except InputError as error:
            untouched.append((path, error.what))
    old, kept = _chosen(runs, now, max_age_s, max_bytes)
    return Pruning(tuple(old), len(kept), sum(run.size_bytes for run in kept), tuple(untouched))


def _run(path: Path, recorded: set[str]) -> Old:
    """InputError says why `path` is not a run that could be deleted."""
    if path.is_symlink() or not path.is_dir():
        raise InputError("not a folder of its own")
    run = RunDirectory.open(path)
    others = [each.name for each in sorted(path.iterdir()) if not _is_part(each.name)]
    if others:
        raise InputError(f"it holds {listed(others)}, which kvbench did not put there")
    manifest = run.read_manifest()
    if manifest.run_id != path.name:
        raise InputError(f"its run.json is that of {manifest.run_id}")
    try:
        created = datetime.fromisoformat(manifest.created_utc).astimezone(UTC)
    except ValueError:
        raise InputError("its run.json holds no date") from None
    return Old(path, created, _size(path), "", path.name in recorded)


def _is_part(name: str) -> bool:
    return PARTS.fullmatch(name[1:].rpartition(".")[0] if name.startswith(".") else name) is not None


def _size(path: Path) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # a run that is being recorded replaces files
                total += os.lstat(Path(folder) / file).st_blocks * BLOCK_BYTES
    return total


def _chosen(
    runs: Sequence[Old], now: datetime, max_age_s: float | None, max_bytes: int | None
) -> tuple[list[Old], list[Old]]:
    """(What goes, what stays), the oldest first."""
    old: list[Old] = []
    kept: list[Old] = []
    for run in sorted(runs, key=lambda each: (each.created, each.path.name)):
        too_old = max_age_s is not None and (now - run.created).total_seconds() > max_age_s
        (old if too_old else kept).append(replace(run, why="age") if too_old else run)
    while max_bytes is not None and kept and sum(run.size_bytes for run in kept) > max_bytes:
        old.append(replace(kept.pop(0), why="size"))
    return old, kept


def carry_out(pruning: Pruning) -> Pruning:
    """Delete what was planned. A run that another kvbench records into, or that cannot be deleted, stays."""
    gone: list[Old] = []
    untouched = list(pruning.untouched)
    for old in pruning.old:
        try:
            with RunDirectory(old.path).held():
                shutil.rmtree(old.path)
            gone.append(old)
        except InputError as error:
            untouched.append((old.path, error.what))
        except OSError as error:
            untouched.append((old.path, error.strerror or str(error)))
    stayed = [old for old in pruning.old if old not in gone]
    kept = pruning.kept + len(stayed)
    return Pruning(
        tuple(gone),
        kept,
        pruning.kept_bytes + sum(old.size_bytes for old in stayed),
        tuple(untouched),
        done=True,
    )
