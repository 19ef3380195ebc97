"""What a launch holds (processes, port, `/dev/shm` files, directories), on disk before any of it exists.

One small JSON file a launch under `<KVBENCH_HOME>/leases`. When kvbench and the keeper both die, the next command
finds the lease of a dead owner and removes what is provably its own; nothing else is touched. Imports little,
because the keeper uses it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kvbench.engine.container_remains import Container, remove_containers
from kvbench.engine.processes import (
    Process,
    ShmFile,
    World,
    identify,
    is_running,
    processes_with,
    shm_files,
    this_world,
)
from kvbench.engine.remains import end_processes, keep_watch, remove_directory, remove_shm

__all__ = [
    "MARKER",
    "ORPHAN_GRACE_S",
    "Lease",
    "Reclaimed",
    "drop_lease",
    "new_lease",
    "read_lease",
    "reclaim",
    "release",
    "sweep",
    "write_lease",
]

MARKER = "KVBENCH_LEASE"
"""Environment variable that every process of a launch inherits; its value is the lease's id."""

KEEPER_GRACE_S = 20.0
"""A keeper whose owner died gets this long to clean up by itself: twice the engine's own grace time."""

ORPHAN_GRACE_S = 3.0
"""Orphans serve nobody; vLLM's need about a second after SIGTERM to remove their own shared memory."""

HALF_WRITTEN_S = 60.0
"""A lease that has been only begun for so long was begun by a process that is gone; writing one takes a moment."""


class Lease(NamedTuple):
    """Everything by which a launch's things are recognised later. Paths are absolute."""

    id: str
    label: str
    world: World
    owner: Process
    engine_id: str
    shm_before: tuple[ShmFile, ...]
    """In `/dev/shm` before the start, so not the engine's whoever maps it."""
    keeper: Process | None = None
    engine: Process | None = None
    port: int | None = None
    temp_directory: str | None = None
    disk_directory: str | None = None
    shm: tuple[ShmFile, ...] = ()
    """Seen mapped by the engine's processes, in addition to those named after `engine_id`."""
    container: Container | None = None
    """What the engine runs in; found by its label, which is the lease's id."""


class Reclaimed(NamedTuple):
    """What became of the things that a lease names."""

    done: list[str]
    """Sentences."""
    kept: list[str]
    """What could not be removed, with the reason. Its lease stays, for the next command."""
    killed: frozenset[Process] = frozenset()
    """Those that SIGTERM was not enough for."""


def new_lease(
    label: str, *, port: int | None = None, temp_directory: str | None = None, disk_directory: str | None = None
) -> Lease:
    """A lease of this process. Not on disk yet."""
    owner = identify(os.getpid())
    if owner is None:
        raise ProcessLookupError("/proc does not show this process")
    name = os.urandom(6).hex()
    return Lease(
        id=name,
        label=label,
        world=this_world(),
        owner=owner,
        engine_id=f"kvbench-{name}",
        shm_before=tuple(sorted(shm_files())),
        port=port,
        temp_directory=temp_directory,
        disk_directory=disk_directory,
    )


def write_lease(lease: Lease, path: Path) -> None:
    """Replace the file in one step; readable by its owner only. OSError names the file that cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(lease._asdict(), file)
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def drop_lease(path: Path) -> None:
    """Remove it, and what a writer that was killed has left of another version."""
    for file in (path, path.with_suffix(".new")):
        if file.exists():
            file.unlink(missing_ok=True)


def read_lease(path: Path) -> Lease:
    """ValueError when the file is not a lease."""
    try:
        raw = json.loads(path.read_text())
        raw["world"] = World(*raw["world"])
        for key in ("owner", "keeper", "engine"):
            raw[key] = None if raw[key] is None else Process(*raw[key])
        for key in ("shm_before", "shm"):
            raw[key] = tuple(ShmFile(*item) for item in raw[key])
        raw["container"] = _container(raw.get("container"))
        return Lease(**raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a lease: {error}") from error


def _container(raw: list[object] | None) -> Container | None:
    if raw is None:
        return None
    runtime, name, reached_by = raw
    pairs = tuple((str(key), str(value)) for key, value in reached_by) if isinstance(reached_by, list) else ()
    return Container(str(runtime), str(name), pairs)


def release(lease: Lease) -> tuple[list[str], list[str]]:
    """Remove the container and the files that a launch left, its processes being gone.

    Returns what was removed and what was not.
    """
    removed, kept = ([], []) if lease.container is None else remove_containers(lease.container, lease.id)
    shm_removed, shm_kept = remove_shm(lease.engine_id, lease.shm, lease.shm_before)
    removed, kept = removed + shm_removed, kept + shm_kept
    for directory in (lease.temp_directory, lease.disk_directory):
        if directory is None:
            continue
        try:
            if remove_directory(Path(directory)):
                removed.append(directory)
        except OSError as error:
            kept.append(f"{directory}: {error.strerror or error}")
    return removed, kept


def reclaim(lease: Lease, path: Path) -> Reclaimed:
    """End what is left of a launch and remove what it made, and its lease when nothing is left of it."""
    orphans: set[Process] = set()
    mapped: set[ShmFile] = set(lease.shm)

    def find() -> list[Process]:
        found = set(processes_with(MARKER, lease.id))
        found |= {process for process in (lease.engine,) if process is not None and is_running(process)}
        orphans.update(found)
        return sorted(found)

    def watch() -> None:
        keep_watch(mapped, [process.pid for process in orphans])
        time.sleep(0.05)

    killed: set[Process] = set()
    find()
    watch()
    survivors = end_processes(find, ORPHAN_GRACE_S, while_waiting=watch, before_kill=killed.update)
    removed, kept = release(lease._replace(shm=tuple(sorted(mapped))))
    kept += [f"process {process.pid}: it does not end" for process in survivors]
    done = [_ended(process, lease, by_force=process in killed) for process in sorted(orphans - set(survivors))]
    done += [f"removed {name} of launch {lease.label}" for name in removed]
    if not kept:
        drop_lease(path)
    return Reclaimed(done, kept, frozenset(killed))


def _ended(process: Process, lease: Lease, *, by_force: bool) -> str:
    how = f", which did not end on SIGTERM within {ORPHAN_GRACE_S:g} s" if by_force else ""
    return f"{'killed' if by_force else 'ended'} process {process.pid} of launch {lease.label}{how}"


def sweep(progress: Callable[[str], None], directory: Path | None = None) -> list[str]:
    """Remove what launches whose kvbench died have left; returns one sentence for each thing removed.

    Leases of a living owner are left alone, and so are those of another host or pid namespace, where nothing can
    be proven from here. `directory`: where the leases are; the default is `<KVBENCH_HOME>/leases`.
    """
    if directory is None:
        from kvbench.engine.environment import kvbench_home  # not needed by the keeper, which must start at once

        directory = kvbench_home() / "leases"
    said: list[str] = []
    for path, lease in sorted(_leases(directory, progress), key=_last_started_first):
        said += _sweep_one(lease, path, progress)
    _remove_half_written(directory)
    return said


def _leases(directory: Path, progress: Callable[[str], None]) -> Iterator[tuple[Path, Lease]]:
    for path in sorted(directory.glob("*.json")):
        try:
            yield path, read_lease(path)
        except OSError:
            continue  # gone meanwhile, or another user's, who alone may read and end what it names
        except ValueError as error:
            progress(f"left alone: {error}")


def _last_started_first(found: tuple[Path, Lease]) -> int:
    """podman removes no container whose IPC namespace another one uses, which was therefore started later."""
    engine = found[1].engine
    return 0 if engine is None else -engine.start


def _remove_half_written(directory: Path) -> None:
    """Nothing was made yet when its owner was killed while writing the first one."""
    for new in directory.glob("*.new"):
        with contextlib.suppress(OSError):
            if not new.with_suffix(".json").exists() and time.time() - new.stat().st_mtime > HALF_WRITTEN_S:
                new.unlink()


def _sweep_one(lease: Lease, path: Path, progress: Callable[[str], None]) -> list[str]:
    here = this_world()
    if lease.world.boot_id != here.boot_id and lease.world.host == here.host:
        return _told(reclaim(lease._replace(engine=None, keeper=None), path))  # rebooted: its pids mean nothing now
    if lease.world != here or is_running(lease.owner):
        return []
    progress(f"removing what launch {lease.label} left behind")
    if lease.keeper is not None:
        _wait_for_keeper(lease.keeper)
    with contextlib.suppress(FileNotFoundError):
        return _told(reclaim(read_lease(path), path))
    return [f"launch {lease.label} was cleaned up by its keeper"]


def _told(reclaimed: Reclaimed) -> list[str]:
    return [*reclaimed.done, *(f"could not remove {text}" for text in reclaimed.kept)]


def _wait_for_keeper(keeper: Process) -> None:
    """Its owner's death is its order to clean up; one that does not get done is ended."""
    deadline = time.monotonic() + KEEPER_GRACE_S
    while is_running(keeper) and time.monotonic() < deadline:
        time.sleep(0.05)
    end_processes(lambda: [keeper] if is_running(keeper) else [], 0.0)
