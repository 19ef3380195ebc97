"""One start of one engine as a child of a keeper: begin, watch, end. Knows nothing of any kind of engine.

Times in seconds. The keeper (its own module) does the cleaning up, whatever happens to this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kvbench
from kvbench.engine.base import EngineState, Launch, Rendered
from kvbench.engine.container_processes import ContainerProcesses
from kvbench.engine.container_remains import ANSWER_S, REMOVE_S, Container
from kvbench.engine.environment import kvbench_home
from kvbench.engine.leases import MARKER, ORPHAN_GRACE_S, Lease, new_lease, read_lease, reclaim, write_lease
from kvbench.engine.processes import ProcessStat, cpu_seconds, descendants
from kvbench.engine.remains import KILL_S, abandoned, make_directory, remove_directory
from kvbench.errors import EngineError, InputError
from kvbench.interrupts import undisturbed

__all__ = ["GRACE_S", "EngineProcess", "LaunchPlan", "plan_disk_directory", "plan_launch"]

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL. vLLM with its default of no draining is gone within a second on the embedded engine;
unpinning many GiB of host memory takes longer on a GPU host. Draining stores would only keep blocks that are about
to be removed with the launch's disk directory."""

STARTED_S = 20.0
"""A keeper answers in some 50 ms; this is for a machine that is swapping."""

NOT_INHERITED = ("PYTHONHOME", "PYTHONPATH", "VLLM_USE_SIMPLE_KV_OFFLOAD")
"""Python's are those of kvbench's own environment and would break the engine's; vLLM's turns every native host tier
into another connector. A profile's `env` may set any of them."""

_TAIL_BYTES = 256 * 1024
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from kvbench.engine.keeper import main; main()"


def plan_disk_directory(path: Path, label: str) -> Path:
    """A directory of one launch's own under a disk tier's path. The start makes it, once its lease names it."""
    return path.expanduser().absolute() / f"kvbench-{label}-{secrets.token_hex(6)}"


def _make_disk_directory(directory: Path) -> None:
    """Make and mark it; those that a crashed kvbench left beside it are removed first, as far as this user may."""
    try:
        for left in directory.parent.glob("kvbench-*") if directory.parent.is_dir() else ():
            with contextlib.suppress(OSError):  # also where another kvbench is about to remove it
                if abandoned(left):
                    remove_directory(left)
        make_directory(directory)
    except OSError as error:
        raise InputError(
            f"cannot make a directory under {directory.parent}: {error.strerror}",
            key=("tiers", "disk", "path"),
            do="give a directory that this user may write to",
        ) from None


class LaunchPlan:
    """What is fixed before an engine can be rendered: its lease (with the engine id) and its port."""

    def __init__(self, launch: Launch, lease: Lease) -> None:
        self.launch = launch
        self.lease = lease

    @property
    def home(self) -> Path:
        """A directory of this launch alone, for temporary files; there while the engine is."""
        return Path(self.lease.temp_directory or tempfile.gettempdir())

    @property
    def lease_path(self) -> Path:
        """Where the lease lies while anything of the launch exists."""
        return kvbench_home() / "leases" / f"{self.lease.id}.json"


def plan_launch(launch: Launch, port: int, container: Container | None = None) -> LaunchPlan:
    """A plan with an engine id that no other launch has; nothing is made yet.

    `container`: how the engine's container is reached, its name completed by the lease's id.
    """
    lease = new_lease(
        launch.label,
        port=port,
        disk_directory=None if launch.disk_directory is None else str(launch.disk_directory),
    )
    temp = Path(tempfile.gettempdir()).absolute() / f"kvbench-{lease.id}"
    named = None if container is None else container._replace(name=f"{container.name}-{lease.id}")
    return LaunchPlan(launch, lease._replace(temp_directory=str(temp), container=named))


class EngineProcess:
    """An engine under a keeper. `stop` may be called any number of times, also when `start` was cut short."""

    def __init__(self, plan: LaunchPlan, rendered: Rendered, *, grace_s: float = GRACE_S) -> None:
        self._plan = plan
        self._rendered = rendered
        self._grace_s = grace_s
        self._keeper: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._log_from = 0
        """Bytes that an earlier start, which lost a race for its port, wrote to the same log."""
        container, lease = plan.lease.container, plan.lease
        self._container = None if container is None else ContainerProcesses(container, f"{MARKER}={lease.id}")
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.ended = False
        self.remark: str | None = None
        """How it had to be ended, where SIGTERM was not enough."""

    def start(self) -> None:
        """Start it; EngineError when it cannot be executed. It is not ready yet when this returns."""
        lease = self._plan.lease
        write_lease(lease, self._plan.lease_path)
        if lease.temp_directory is not None:
            make_directory(Path(lease.temp_directory))
        if lease.disk_directory is not None:
            _make_disk_directory(Path(lease.disk_directory))
        for path, text in self._rendered.files.items():
            Path(path).write_text(text)
        root = str(Path(kvbench.__file__).resolve().parent.parent)
        self._log_from = self.log_size()
        with self._plan.launch.log.open("ab") as log, undisturbed():
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,  # Ctrl-C in a terminal reaches kvbench alone
            )
        self._send_order()
        self._await_start()

    def _send_order(self) -> None:
        order = {
            "lease": str(self._plan.lease_path),
            "argv": list(self._rendered.argv),
            "env": self._environment(),
            "cwd": str(self._plan.launch.directory.absolute()),
            "log": str(self._plan.launch.log.absolute()),
            "grace_s": self._grace_s,
        }
        pipe = self._keeper.stdin if self._keeper is not None else None
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # a keeper that died at once is reported by its silence
                pipe.write(json.dumps(order).encode() + b"\n")
                pipe.flush()

    def _environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        lease = self._plan.lease
        # A container's is in its command; podman without XDG_RUNTIME_DIR would look for its containers there.
        own_temp = lease.temp_directory is not None and lease.container is None
        temp = {"TMPDIR": str(lease.temp_directory)} if own_temp else {}
        return {**inherited, **temp, **self._rendered.env, MARKER: lease.id}

    def _await_start(self) -> None:
        deadline = time.monotonic() + STARTED_S
        while self.pid is None and not self.ended and time.monotonic() < deadline:
            self._read_events(wait_s=0.1)
        if self.pid is None:
            why = self._failure or "its keeper did not start"
            self.stop()
            raise EngineError(f"{self._plan.launch.label}: the engine cannot be started: {why}")

    _failure: str | None = None

    def _read_events(self, wait_s: float = 0.0) -> None:
        """Take in what the keeper has said; its end of the pipe closes when it has finished."""
        keeper = self._keeper
        if keeper is None or keeper.stdout is None or self.ended:
            return
        while select.select([keeper.stdout], [], [], wait_s)[0]:
            data = os.read(keeper.stdout.fileno(), 65536)
            if not data:
                self.ended = True
                break
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._on_event(json.loads(line))
            wait_s = 0.0

    def _on_event(self, event: dict[str, object]) -> None:
        match event["event"]:
            case "started":
                self.pid = int(str(event["pid"]))
            case "failed":
                self._failure = str(event["why"])
            case "exited":
                self.exit_code = self._own_exit_code(int(str(event["code"])))
            case "killed":
                self.remark = _killed(float(str(event["after_s"])), engine=bool(event["engine"]))

    def _own_exit_code(self, code: int) -> int:
        """A container's client exits with 128 and the number of the signal that ended the engine."""
        return 128 - code if self._container is not None and 128 < code < 128 + 65 else code

    def alive(self) -> bool:
        """Whether the engine's main process runs, as far as the keeper has said."""
        self._read_events()
        return self.pid is not None and self.exit_code is None and not self.ended

    def tree(self, *, fresh: bool = False) -> list[ProcessStat]:
        """The engine's processes, those in its container too, the keeper not among them.

        A container that has just begun may not be in it unless `fresh`.
        """
        if self._keeper is None or self.ended:
            return []
        own = descendants(self._keeper.pid)
        inside = [] if self._container is None or self.exit_code is not None else self._container.tree(fresh=fresh)
        return list({stat.pid: stat for stat in (*own, *inside)}.values())

    def state(self) -> EngineState:
        """Alive or how it ended, and its processes."""
        if self.alive():
            return EngineState(alive=True, pids=tuple(stat.pid for stat in self.tree()))
        if self.pid is None:
            return EngineState(alive=False, detail="not started")
        if self.exit_code is None:
            return EngineState(alive=False, detail="the process that keeps the engine was killed")
        how = f"by signal {-self.exit_code}" if self.exit_code < 0 else f"with exit code {self.exit_code}"
        return EngineState(alive=False, detail=f"the engine ended {how}")

    def cpu_s(self) -> float:
        """CPU time of the engine's living processes."""
        return cpu_seconds(self.tree())

    def log_size(self) -> int:
        """Bytes written to the log so far."""
        try:
            return self._plan.launch.log.stat().st_size
        except OSError:
            return 0

    def log_tail(self) -> str:
        """The end of what this start wrote to the log, long enough for any traceback."""
        try:
            with self._plan.launch.log.open("rb") as log:
                log.seek(max(self._log_from, self.log_size() - _TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def stop(self) -> None:
        """End it and remove what it left; returns when nothing is left. EngineError names what could not go.

        A signal that comes meanwhile waits for that.
        """
        with undisturbed():
            self._tell_keeper()
            path = self._plan.lease_path
            if path.exists():  # the keeper was killed, or could not finish, or never began
                lease = read_lease(path)
                reclaimed = reclaim(lease, path)
                if reclaimed.killed and self.remark is None:
                    self.remark = _killed(ORPHAN_GRACE_S, engine=lease.engine in reclaimed.killed)
                if reclaimed.kept:
                    left = "; ".join(reclaimed.kept)
                    raise EngineError(
                        f"{self._plan.launch.label}: what the engine left could not be removed: {left}",
                        do="remove it by hand, or run the command again when its cause is gone",
                    )

    def _tell_keeper(self) -> None:
        """Closing its stdin is the order to stop; it ends when the engine and its remains are gone."""
        keeper = self._keeper
        if keeper is None:
            return
        if keeper.stdin is not None:
            with contextlib.suppress(OSError):
                keeper.stdin.close()
        try:
            in_container = 0.0 if self._plan.lease.container is None else REMOVE_S + 2 * ANSWER_S
            keeper.wait(self._grace_s + 2 * KILL_S + in_container)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
        self._read_events()
        self.ended = True
        if keeper.stdout is not None:
            keeper.stdout.close()


def _killed(after_s: float, *, engine: bool) -> str:
    """`engine`: whether it was the engine itself that did not end, not only what it had started."""
    who = "the engine" if engine else "what the engine had started"
    return f"{who} did not end on SIGTERM within {after_s:g} s and was killed"
