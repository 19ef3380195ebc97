"""Ending processes for good and removing the files a launch left, and nothing that is not provably its own.

Used by the keeper and by the sweep after a crash. Standard library only. Times in seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from kvbench.engine.processes import (
    SHM,
    Process,
    ShmFile,
    identify,
    is_running,
    mapped_shm,
    send_signal,
    this_world,
)

__all__ = ["abandoned", "end_processes", "keep_watch", "make_directory", "remove_directory", "remove_shm"]

MARK = ".kvbench"
"""File that marks a directory as made by kvbench; without it no directory is ever removed."""

OWN_NAME = re.compile(r"kvbench-(?:.*-)?[0-9a-f]{12}")
"""Names of the directories that leases name; they end in a random number, so that no other thing is called so."""

KILL_S = 5.0
"""SIGKILL takes effect at the next return to user mode; a process in disk sleep for longer is reported."""


def _pause() -> None:
    time.sleep(0.05)


def end_processes(
    find: Callable[[], list[Process]],
    grace_s: float,
    *,
    first: Process | None = None,
    while_waiting: Callable[[], None] = _pause,
    before_kill: Callable[[list[Process]], None] = lambda _: None,
) -> list[Process]:
    """SIGTERM to all that `find` returns, SIGKILL after the grace time; returns those that did not go.

    `find` is asked again until it returns none, so that children born meanwhile are ended too. While `first` runs,
    it alone is told: it hands the signal on. `before_kill` hears of those that SIGTERM did not end, if there are
    any.
    """
    told: set[Process] = set()
    deadline = time.monotonic() + grace_s
    while (left := find()) and time.monotonic() < deadline:
        for process in ({first} if first is not None and first in left else set(left)) - told:
            send_signal(process, signal.SIGTERM)
            send_signal(process, signal.SIGCONT)  # a stopped process would not see SIGTERM
            told.add(process)
        while_waiting()
    if left:
        before_kill(left)
    deadline = time.monotonic() + KILL_S
    while (left := find()) and time.monotonic() < deadline:
        for process in left:
            send_signal(process, signal.SIGKILL)
        while_waiting()
    return left


def keep_watch(mapped: set[ShmFile], pids: Iterable[int]) -> bool:
    """Add the `/dev/shm` files that these processes map now; True when there was a new one."""
    before = len(mapped)
    for pid in pids:
        mapped.update(mapped_shm(pid))
    return len(mapped) > before


def remove_shm(engine_id: str, seen: Iterable[ShmFile], before: Iterable[ShmFile]) -> tuple[list[str], list[str]]:
    """Remove a launch's `/dev/shm` files; returns the paths removed and the reasons why one was kept.

    A file is the launch's when its name carries the engine id that this launch alone has, or when the launch's
    processes mapped it, it was not there before the start, it is this user's and no living process maps it.
    """
    removed: list[str] = []
    kept: list[str] = []
    candidates = [path for path in SHM.glob(f"vllm_offload_{engine_id}*") if engine_id]
    foreign = _mapped_by_anyone() if seen else set()
    for file in set(seen) - set(before) - foreign:
        path = SHM / file.name
        with contextlib.suppress(OSError):
            stat = path.lstat()
            if stat.st_ino == file.inode and stat.st_uid == os.getuid():
                candidates.append(path)
    for path in sorted(set(candidates)):
        try:
            path.unlink()
            removed.append(str(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            kept.append(f"{path}: {error.strerror}")
    return removed, kept


def _mapped_by_anyone() -> set[ShmFile]:
    mapped: set[ShmFile] = set()
    keep_watch(mapped, (int(name) for name in os.listdir("/proc") if name.isdigit()))  # noqa: PTH208
    return mapped


def make_directory(path: Path) -> Path:
    """Make a directory and mark it as kvbench's; OSError when it is there already or cannot be made.

    Parents made on the way are noted in the mark and go with it when they are empty.
    """
    parents = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700)
    owner = identify(os.getpid())
    mark = {"owner": owner, "world": this_world(), "parents": [str(parent) for parent in parents]}
    try:
        (path / MARK).write_text(json.dumps(mark))
    except OSError:
        (path / MARK).unlink(missing_ok=True)
        path.rmdir()  # without its mark, on a full disk, nobody would ever remove it
        raise
    return path


def _read_mark(path: Path) -> dict[str, list[str]] | None:
    """What the mark says; None when there is none that kvbench wrote."""
    try:
        mark = json.loads((path / MARK).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(mark, dict) or not isinstance(mark.get("parents"), list):
        return None
    return mark


def abandoned(path: Path) -> bool:
    """Whether kvbench made this directory and the process that did so is gone, provably."""
    mark = _read_mark(path)
    if mark is None or mark.get("owner") is None:
        return False
    try:
        same_world = tuple(mark["world"]) == this_world()
        owner = Process(*(int(value) for value in mark["owner"]))
    except (KeyError, TypeError, ValueError):
        return False
    return same_world and not is_running(owner)


def remove_directory(path: Path) -> bool:
    """Remove a directory that kvbench made, with its content; False when there is none with its mark."""
    if path.is_symlink() or not path.is_dir():
        return False
    mark = _read_mark(path)
    if mark is None:
        return _remove_begun(path)
    # The mark goes last: a removal that is cut short can be taken up again.
    for entry in list(path.iterdir()):
        if entry.name == MARK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (path / MARK).unlink()
    path.rmdir()
    for parent in mark["parents"]:
        with contextlib.suppress(OSError):
            Path(parent).rmdir()
    return True


def _remove_begun(path: Path) -> bool:
    """Remove a directory whose maker was killed before it was marked: empty, but for half a mark."""
    if OWN_NAME.fullmatch(path.name) is None or {entry.name for entry in path.iterdir()} - {MARK}:
        return False
    (path / MARK).unlink(missing_ok=True)
    path.rmdir()
    return True
