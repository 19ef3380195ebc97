"""A directory of one piece of work is gone when the work is over, and so is what was started for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

import kvbench
from kvbench.engine.leases import MARKER, sweep
from kvbench.engine.processes import Process, identify, is_running
from kvbench.engine.remains import MARK
from kvbench.engine.scratch import scratch
from kvbench.errors import Interrupted, RunError
from kvbench.interrupts import stop_on_signals
from tests.engine.test_keeper import wait_for

pytestmark = pytest.mark.usefixtures("home")

SLEEP = (sys.executable, "-c", "import time; print('there', flush=True); time.sleep(600)")
ROOT = str(Path(kvbench.__file__).parent.parent)


def quiet(_: str) -> None: ...


def leases(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "home" / "leases").iterdir())


def killed(program: str, ready: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a program in a process of its own, and kill that once the file is there."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {ROOT!r})\n{program}"],
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    assert wait_for(lambda: ready.exists() and ready.read_text() != ""), process.poll()
    process.kill()
    process.wait()


def read_process(file: Path) -> Process:
    pid, start = file.read_text().split()
    return Process(int(pid), int(start))


def test_it_is_there_for_the_work_and_no_longer(tmp_path: Path) -> None:
    with scratch("work", tmp_path / "place") as place:
        assert place.directory.parent == tmp_path / "place"
        (place.directory / "sub").mkdir()
        (place.directory / "sub" / "file").write_text("something")
        (lease,) = leases(tmp_path)
        assert str(place.directory) in lease.read_text()
    assert not (tmp_path / "place").exists()
    assert leases(tmp_path) == []


def test_it_goes_with_work_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch("work", tmp_path / "place"):
        raise ZeroDivisionError
    assert not (tmp_path / "place").exists()
    assert leases(tmp_path) == []


def test_it_stays_when_somebody_is_to_look_at_it(tmp_path: Path) -> None:
    with scratch("work", tmp_path) as place:
        (place.directory / "log").write_text("words")
        place.keep()
    assert [path.name for path in place.directory.iterdir()] == ["log"], "it is the user's now"
    assert leases(tmp_path) == []


def test_what_was_started_for_the_work_ends_with_it(tmp_path: Path) -> None:
    with scratch("work", tmp_path) as place:
        child = subprocess.Popen(SLEEP, env={**os.environ, **place.environment}, start_new_session=True)
    assert child.wait(5) != 0


def test_a_signal_waits_for_its_end(tmp_path: Path) -> None:
    def work() -> None:
        with scratch("work", tmp_path / "place") as place:
            deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
            subprocess.Popen([sys.executable, "-c", deaf], env={**os.environ, **place.environment})
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()

    with pytest.raises(Interrupted), stop_on_signals():
        work()
    assert not (tmp_path / "place").exists()
    assert leases(tmp_path) == []


def test_a_home_that_cannot_be_written_to_does_not_forbid_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "file" / "home"))
    with scratch("work", tmp_path) as place:
        assert (place.directory / MARK).is_file()
    assert not place.directory.exists()


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("kvbench.engine.leases.remove_directory", refuse)
        with pytest.raises(RunError, match=r"could not be removed: .*Permission denied"), scratch("work", tmp_path):
            pass
    assert len(leases(tmp_path)) == 1, "for the next command"


def test_the_next_command_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    program = f"""
import os, subprocess, time
from pathlib import Path
from kvbench.engine.processes import identify
from kvbench.engine.scratch import scratch
with scratch("work", Path({str(tmp_path / "place")!r})) as place:
    (place.directory / "file").write_text("something")
    child = subprocess.Popen({SLEEP!r}, env={{**os.environ, **place.environment}}, start_new_session=True)
    Path({str(tmp_path / "ready")!r}).write_text("{{}} {{}}".format(*identify(child.pid)))
    time.sleep(600)
"""
    killed(program, tmp_path / "ready")
    child = read_process(tmp_path / "ready")
    (left,) = (tmp_path / "place").iterdir()
    said = sweep(quiet)
    assert said == [f"ended process {child.pid} of launch work", f"removed {left} of launch work"]
    assert not is_running(child)
    assert not (tmp_path / "place").exists()
    assert leases(tmp_path) == []


def test_a_command_run_for_the_work_is_killed_at_once_when_kvbench_is(tmp_path: Path) -> None:
    say = f"import os, time; open({str(tmp_path / 'ready')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = f"""
import os, sys
from pathlib import Path
from kvbench.engine.scratch import scratch
with scratch("work", Path({str(tmp_path)!r})) as place:
    place.run([sys.executable, "-c", {say!r}], dict(os.environ))
"""
    killed(program, tmp_path / "ready")
    assert wait_for(lambda: identify(int((tmp_path / "ready").read_text())) is None)


def test_a_command_run_for_the_work_answers_and_keeps_its_temporary_files_there(tmp_path: Path) -> None:
    program = "import os, sys, tempfile; print(tempfile.mkdtemp(), os.environ['A']); sys.exit('no luck')"
    with scratch("work", tmp_path) as place:
        answer = place.run([sys.executable, "-c", program], {**os.environ, "A": "b"})
        where, variable = answer.stdout.split()
        assert Path(where).parent == place.directory
        assert place.environment[MARKER] in where
    assert (variable, answer.stderr.strip(), answer.returncode) == ("b", "no luck", 1)
