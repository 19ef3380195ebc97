"""What a crash left is found and removed by the next command; nothing is touched that is not provably kvbench's."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.leases import MARKER, Lease, new_lease, read_lease, sweep, write_lease
from kvbench.engine.processes import Process, ShmFile, identify, is_running, processes_with
from kvbench.engine.remains import MARK, make_directory
from tests.engine.test_keeper import gone, nothing_left, start_owner, wait_for

DEAD = Process(2**22 + 1, 1)  # above the largest pid that Linux gives


pytestmark = pytest.mark.usefixtures("home")


def quiet(_: str) -> None:
    pass


def left_lease(home: Path, **changes: object) -> tuple[Lease, Path]:
    """The lease of a kvbench that is dead."""
    lease = new_lease("arm-1")._replace(owner=DEAD)._replace(**changes)
    path = home / "leases" / f"{lease.id}.json"
    write_lease(lease, path)
    return lease, path


def sleeper(lease_id: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: lease_id}, start_new_session=True)


def test_a_lease_reads_back_as_it_was_written(home: Path) -> None:
    lease = new_lease("arm-1", port=8000, disk_directory="/kv/a")._replace(shm=(ShmFile("psm_1", 7),), keeper=DEAD)
    write_lease(lease, home / "leases" / "x.json")
    assert read_lease(home / "leases" / "x.json") == lease
    assert (home / "leases" / "x.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("keeper_first", [True, False])
def test_kvbench_and_keeper_killed_the_next_command_cleans_up(tmp_path: Path, keeper_first: bool) -> None:
    name = f"kvbench-test-sweep-{os.getpid()}"
    owner, made = start_owner(tmp_path, GRANDCHILD="1", SHM=name, IGNORE_TERM="1")
    assert wait_for(lambda: name in Path(made["lease"]).read_text())
    victims = [made["keeper"], owner.pid]
    for pid in victims if keeper_first else reversed(victims):
        os.kill(pid, 9)
    owner.wait()
    assert wait_for(lambda: gone(made["keeper"]))
    assert not gone(made["engine"]), "it ignores the signal that the kernel sends it"
    said = sweep(quiet)
    assert all(gone(pid) for pid in made["tree"])
    assert not Path("/dev/shm", name).exists()
    assert not Path(made["temp"]).exists()
    assert nothing_left(tmp_path)
    forced = f"killed process {made['engine']} of launch arm-1, which did not end on SIGTERM within 3 s"
    assert forced in said
    assert f"removed {made['disk']} of launch arm-1" in said
    assert sweep(quiet) == []


def test_the_lease_of_a_living_owner_is_left_alone(home: Path) -> None:
    me = identify(os.getpid())
    assert me is not None
    lease, path = left_lease(home, owner=me)
    process = sleeper(lease.id)
    try:
        assert sweep(quiet) == []
        assert process.poll() is None
        assert path.exists()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("field", ["host", "pid_namespace"])
def test_the_lease_of_another_world_proves_nothing_here(home: Path, tmp_path: Path, field: str) -> None:
    lease, path = left_lease(home, disk_directory=str(make_directory(tmp_path / "kv")))
    write_lease(lease._replace(world=lease.world._replace(**{field: "elsewhere"})), path)
    assert sweep(quiet) == []
    assert path.exists()
    assert (tmp_path / "kv").exists()


def test_after_a_reboot_files_go_and_pids_are_not_believed(home: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        engine = identify(process.pid)
        lease, path = left_lease(home, engine=engine, disk_directory=str(make_directory(tmp_path / "kv")))
        write_lease(lease._replace(world=lease.world._replace(boot_id="earlier")), path)
        assert sweep(quiet) == [f"removed {tmp_path / 'kv'} of launch arm-1"]
        assert process.poll() is None
        assert not path.exists()
    finally:
        process.kill()
        process.wait()


def test_a_pid_that_is_used_again_is_not_the_engine(home: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        engine = identify(process.pid)
        assert engine is not None
        _, path = left_lease(home, engine=engine._replace(start=engine.start - 1))
        sweep(quiet)
        assert process.poll() is None
        assert not path.exists()
    finally:
        process.kill()
        process.wait()


def test_an_orphan_is_found_by_the_marker_in_its_environment(home: Path) -> None:
    lease, _ = left_lease(home)
    process = sleeper(lease.id)
    other = sleeper("some other launch")
    try:
        assert [found.pid for found in processes_with(MARKER, lease.id)] == [process.pid]
        assert sweep(quiet) == [f"ended process {process.pid} of launch arm-1"]
        assert process.wait(5) == -15
        assert other.poll() is None
    finally:
        for each in (process, other):
            each.kill()
            each.wait()


def test_directories_without_a_mark_are_never_removed(home: Path, tmp_path: Path) -> None:
    mine, link, kv = tmp_path / "mine", tmp_path / "link", make_directory(tmp_path / "kv")
    mine.mkdir()
    link.symlink_to(kv)
    left_lease(home, disk_directory=str(mine), temp_directory=str(link))
    assert sweep(quiet) == []
    assert mine.exists()
    assert kv.exists()


def test_a_directory_that_cannot_be_marked_is_not_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            make_directory(tmp_path / "kv" / "kvbench-1")
    assert not (tmp_path / "kv" / "kvbench-1").exists()
    assert make_directory(tmp_path / "kv" / "kvbench-1").is_dir()


@pytest.mark.parametrize("half_a_mark", [None, '{"owner": [12'])
def test_a_directory_whose_maker_was_killed_before_it_was_marked_is_removed(
    home: Path, tmp_path: Path, half_a_mark: str | None
) -> None:
    begun = plan_disk_directory(tmp_path, "arm-1")
    begun.mkdir()
    if half_a_mark is not None:
        (begun / MARK).write_text(half_a_mark)
    _, path = left_lease(home, disk_directory=str(begun))
    assert sweep(quiet) == [f"removed {begun} of launch arm-1"]
    assert not begun.exists()
    assert not path.exists()


def test_such_a_directory_with_anything_in_it_is_somebody_elses(home: Path, tmp_path: Path) -> None:
    full = plan_disk_directory(tmp_path, "arm-1")
    full.mkdir()
    (full / "thesis.txt").write_text("three years")
    left_lease(home, disk_directory=str(full))
    assert sweep(quiet) == []
    assert (full / "thesis.txt").exists()


def test_a_lease_that_was_only_begun_goes_after_a_while(home: Path) -> None:
    _, path = left_lease(home, owner=identify(os.getpid()))
    old, young, of_a_lease = home / "leases" / "a.new", home / "leases" / "b.new", path.with_suffix(".new")
    for new in (old, young, of_a_lease):
        new.write_text("{")
    for new in (old, of_a_lease):
        os.utime(new, (0, 0))
    assert sweep(quiet) == []
    assert sorted((home / "leases").iterdir()) == sorted((young, path, of_a_lease))


def test_a_lease_that_cannot_be_written_is_named_and_the_old_one_stays(home: Path) -> None:
    lease, path = left_lease(home)
    path.with_suffix(".new").mkdir()
    with pytest.raises(OSError, match=str(path)):
        write_lease(lease._replace(label="arm-2"), path)
    assert read_lease(path) == lease


def test_shared_memory_of_the_same_name_but_another_inode_is_somebody_elses(home: Path) -> None:
    path = Path("/dev/shm", f"kvbench-test-inode-{os.getpid()}")
    path.write_bytes(b"x")
    try:
        left_lease(home, shm=(ShmFile(path.name, path.stat().st_ino + 1),))
        assert sweep(quiet) == []
        assert path.exists()
    finally:
        path.unlink()


def test_a_lease_that_may_not_be_read_is_left_to_its_owner(home: Path) -> None:
    (home / "leases" / "unreadable.json").mkdir(parents=True)
    said: list[str] = []
    assert sweep(said.append) == []
    assert said == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id": 1}', "null"])
def test_what_is_no_lease_is_named_and_left_alone(home: Path, text: str) -> None:
    path = home / "leases" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    said: list[str] = []
    assert sweep(said.append) == []
    assert "left alone" in said[0]
    assert path.read_text() == text


def test_a_lease_whose_directory_cannot_be_removed_is_kept_for_the_next_time(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = left_lease(home, disk_directory=str(make_directory(tmp_path / "kv")))

    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("kvbench.engine.leases.remove_directory", refuse)
        assert sweep(quiet) == [f"could not remove {tmp_path / 'kv'}: Permission denied"]
    assert path.exists()
    assert sweep(quiet) == [f"removed {tmp_path / 'kv'} of launch arm-1"]


def test_a_process_is_more_than_its_pid() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert is_running(me)
    assert not is_running(me._replace(start=me.start + 1))
    assert not is_running(DEAD)
    assert json.loads(json.dumps(me)) == [me.pid, me.start]
