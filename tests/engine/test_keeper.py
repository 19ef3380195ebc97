"""The keeper ends an engine and everything it left, in whatever way kvbench goes away."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kvbench
from kvbench.engine.base import Launch, Rendered
from kvbench.engine.launch import EngineProcess, plan_disk_directory, plan_launch
from kvbench.engine.leases import ORPHAN_GRACE_S
from kvbench.engine.processes import identify
from kvbench.engine.remains import remove_directory
from kvbench.errors import EngineError, Interrupted
from kvbench.interrupts import stop_on_signals

STAND_IN = Path(__file__).with_name("stand_in.py")
OWNER = Path(__file__).with_name("owner.py")


def wait_for(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    return identify(pid) is None


pytestmark = pytest.mark.usefixtures("home")


def a_process(
    tmp_path: Path, *, grace_s: float = 2.0, argv: tuple[str, ...] = (), **settings: str
) -> EngineProcess:
    directory = tmp_path / "launch"
    directory.mkdir(exist_ok=True)
    launch = Launch(directory, directory / "engine-1.log", plan_disk_directory(tmp_path / "kv", "arm-1"), "arm-1")
    env = {f"STAND_IN_{key}": value for key, value in settings.items()}
    argv = argv or (sys.executable, "-S", str(STAND_IN))
    return EngineProcess(plan_launch(launch, 0), Rendered(argv, env), grace_s=grace_s)


def serving(process: EngineProcess) -> bool:
    return "startup complete" in process.log_tail()


def nothing_left(tmp_path: Path) -> bool:
    return not list((tmp_path / "home" / "leases").glob("*")) and not (tmp_path / "kv").exists()


def test_every_line_of_the_log_carries_its_time_in_utc(tmp_path: Path) -> None:
    process = a_process(tmp_path)
    process.start()
    assert wait_for(lambda: serving(process))
    process.stop()
    lines = process.log_tail().splitlines()
    assert len(lines) == 2
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO", line) for line in lines)


def test_stopping_ends_the_engine_and_removes_what_it_left(tmp_path: Path) -> None:
    name = f"kvbench-test-{os.getpid()}"
    process = a_process(tmp_path, GRANDCHILD="1", SHM=name)
    process.start()
    assert wait_for(lambda: serving(process) and len(process.tree()) == 2)
    tree = process.tree()
    assert os.getsid(tree[0].pid) != os.getsid(tree[1].pid), "the grandchild is in a session of its own"
    process.stop()
    assert all(gone(stat.pid) for stat in tree)
    assert not Path("/dev/shm", name).exists()
    assert nothing_left(tmp_path)
    assert process.remark is None
    process.stop()
    assert process.state().alive is False


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    process = a_process(tmp_path, grace_s=0.3, IGNORE_TERM="1")
    process.start()
    assert wait_for(lambda: serving(process))
    process.stop()
    assert process.exit_code == -signal.SIGKILL
    assert process.remark == "the engine did not end on SIGTERM within 0.3 s and was killed"
    assert nothing_left(tmp_path)


def test_what_an_engine_had_started_and_that_ignores_sigterm_is_killed_and_not_taken_for_the_engine(
    tmp_path: Path,
) -> None:
    ignoring = "trap '' TERM; sleep 600 & trap - TERM; exit 3"
    process = a_process(tmp_path, grace_s=0.3, argv=("sh", "-c", ignoring))
    process.start()
    assert wait_for(lambda: not process.alive())
    process.stop()
    assert process.exit_code == 3
    assert process.remark == "what the engine had started did not end on SIGTERM within 0.3 s and was killed"
    assert nothing_left(tmp_path)


def test_without_its_keeper_an_engine_that_ignores_sigterm_is_named_too(tmp_path: Path) -> None:
    process = a_process(tmp_path, IGNORE_TERM="1")
    process.start()
    assert wait_for(lambda: serving(process))
    (lease,) = (tmp_path / "home" / "leases").glob("*.json")
    os.kill(json.loads(lease.read_text())["keeper"][0], signal.SIGKILL)
    process.stop()
    assert process.remark == f"the engine did not end on SIGTERM within {ORPHAN_GRACE_S:g} s and was killed"
    assert nothing_left(tmp_path)


def test_a_stopped_engine_is_ended_too(tmp_path: Path) -> None:
    process = a_process(tmp_path, grace_s=5.0)
    process.start()
    assert wait_for(lambda: serving(process))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    process.stop()
    assert process.exit_code == -signal.SIGTERM


def test_an_engine_that_ends_by_itself_is_noticed_and_its_orphans_are_ended(tmp_path: Path) -> None:
    process = a_process(tmp_path, GRANDCHILD="1", DIE="RuntimeError: no luck")
    process.start()
    assert wait_for(lambda: not process.alive())
    assert wait_for(lambda: process.tree() == [])
    assert process.state().detail == "the engine ended with exit code 1"
    assert "RuntimeError: no luck" in process.log_tail()
    process.stop()
    assert nothing_left(tmp_path)


def test_shared_memory_that_was_there_before_is_left_alone(tmp_path: Path) -> None:
    path = Path("/dev/shm", f"kvbench-test-foreign-{os.getpid()}")
    path.write_bytes(b"somebody's")
    try:
        process = a_process(tmp_path, SHM=path.name)
        process.start()
        assert wait_for(lambda: serving(process))
        process.stop()
        assert path.exists()
    finally:
        path.unlink()


def test_offload_memory_is_recognised_by_its_engine_id_alone(tmp_path: Path) -> None:
    process = a_process(tmp_path)
    process.start()
    (lease,) = (tmp_path / "home" / "leases").glob("*.json")
    path = Path("/dev/shm", f"vllm_offload_{json.loads(lease.read_text())['engine_id']}.mmap.1")
    path.write_bytes(b"left by a killed worker")
    process.stop()
    assert not path.exists()


def test_a_command_that_does_not_exist_is_told_at_once(tmp_path: Path) -> None:
    process = a_process(tmp_path, argv=("/nowhere/vllm",))
    with pytest.raises(EngineError, match=r"/nowhere/vllm: No such file or directory"):
        process.start()
    assert nothing_left(tmp_path)


def test_the_engine_is_out_of_reach_of_the_terminals_ctrl_c(tmp_path: Path) -> None:
    process = a_process(tmp_path)
    process.start()
    assert process.pid is not None
    assert os.getsid(process.pid) != os.getsid(0)
    assert os.getpgid(process.pid) == process.pid
    process.stop()


def test_a_signal_during_a_stop_waits_until_nothing_is_left(tmp_path: Path) -> None:
    name = f"kvbench-test-signal-{os.getpid()}"
    process = a_process(tmp_path, grace_s=1.0, IGNORE_TERM="1", SHM=name)
    process.start()
    assert wait_for(lambda: serving(process))
    tree = process.tree()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Interrupted), stop_on_signals():
        process.stop()
    assert all(gone(stat.pid) for stat in tree)
    assert not Path("/dev/shm", name).exists()
    assert nothing_left(tmp_path)


def test_a_full_disk_under_the_home_does_not_end_the_engine(tmp_path: Path) -> None:
    """Given a lease that cannot be written for a while, what the engine maps meanwhile is written later."""
    name, go = f"kvbench-test-full-{os.getpid()}", tmp_path / "go"
    process = a_process(tmp_path, SHM=name, WAIT_FOR=str(go))
    process.start()
    (lease,) = (tmp_path / "home" / "leases").glob("*.json")
    in_the_way = lease.with_suffix(".new")
    in_the_way.mkdir()
    go.touch()
    assert wait_for(lambda: serving(process))
    assert not wait_for(lambda: not process.alive(), 2.0), "the keeper has looked at what it maps by now"
    assert name not in lease.read_text()
    in_the_way.rmdir()
    assert wait_for(lambda: name in lease.read_text())
    process.stop()
    assert not Path("/dev/shm", name).exists()
    assert nothing_left(tmp_path)


def test_what_cannot_be_removed_is_named_also_when_the_keeper_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = a_process(tmp_path)
    process.start()
    assert wait_for(lambda: serving(process))
    (lease,) = (tmp_path / "home" / "leases").glob("*.json")
    os.kill(json.loads(lease.read_text())["keeper"][0], signal.SIGKILL)
    (kv,) = (tmp_path / "kv").iterdir()

    def refuse(path: Path) -> bool:
        if path == kv:
            raise PermissionError(13, "Permission denied")
        return remove_directory(path)

    with monkeypatch.context() as patched:
        patched.setattr("kvbench.engine.leases.remove_directory", refuse)
        with pytest.raises(
            EngineError, match=rf"what the engine left could not be removed: {kv}: Permission denied"
        ):
            process.stop()
    process.stop()
    assert nothing_left(tmp_path)


def test_stopping_before_starting_leaves_nothing(tmp_path: Path) -> None:
    a_process(tmp_path).stop()
    assert nothing_left(tmp_path)


def test_when_kvbench_is_killed_the_keeper_cleans_up(tmp_path: Path) -> None:
    name = f"kvbench-test-owner-{os.getpid()}"
    owner, made = start_owner(tmp_path, GRANDCHILD="1", SHM=name)
    owner.kill()
    owner.wait()
    assert wait_for(lambda: gone(made["keeper"]))
    assert all(gone(pid) for pid in made["tree"])
    assert not Path("/dev/shm", name).exists()
    assert not Path(made["temp"]).exists()
    assert nothing_left(tmp_path)


def test_when_the_keeper_is_killed_stop_still_cleans_up(tmp_path: Path) -> None:
    name = f"kvbench-test-keeper-{os.getpid()}"
    process = a_process(tmp_path, GRANDCHILD="1", SHM=name)
    process.start()
    assert wait_for(lambda: serving(process) and len(process.tree()) == 2)
    tree = process.tree()
    (lease,) = (tmp_path / "home" / "leases").glob("*.json")
    assert wait_for(lambda: name in lease.read_text()), "the keeper looks for shared memory from time to time"
    os.kill(json.loads(lease.read_text())["keeper"][0], signal.SIGKILL)
    assert wait_for(lambda: not process.alive())
    process.stop()
    assert wait_for(lambda: all(gone(stat.pid) for stat in tree))
    assert not Path("/dev/shm", name).exists()
    assert nothing_left(tmp_path)


def test_the_keeper_imports_the_standard_library_and_its_own_modules_only() -> None:
    root = str(Path(kvbench.__file__).parent.parent)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import kvbench.engine.keeper; "
        "print(*{m for m in sys.modules if m.split('.')[0] not in sys.stdlib_module_names})"
    )
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True
    )
    assert set(answer.stdout.split()) - {"__main__"} == {
        "kvbench",
        "kvbench.engine",
        "kvbench.engine.container_remains",
        *(f"kvbench.engine.{name}" for name in ("keeper", "leases", "processes", "remains")),
    }


def start_owner(tmp_path: Path, **settings: str) -> tuple[subprocess.Popen[str], dict]:
    directory = tmp_path / "launch"
    directory.mkdir()
    env = {**os.environ, **{f"STAND_IN_{key}": value for key, value in settings.items()}}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(kvbench.__file__).parent.parent), env.get("PYTHONPATH", "")])
    owner = subprocess.Popen(
        [sys.executable, str(OWNER), str(directory), str(tmp_path / "kv")],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    line = owner.stdout.readline()
    assert line, "the owner did not get as far as it should"
    return owner, json.loads(line)
