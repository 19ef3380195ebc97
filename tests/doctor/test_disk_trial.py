"""The disk is tried in a directory of its own, and nothing is left of it, whatever happens."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.doctor import disk_trial
from kvbench.doctor.disk_trial import try_disk
from kvbench.doctor.host import DiskTrial
from kvbench.doctor.storage import read_disk
from kvbench.engine.processes import SHM
from kvbench.engine.remains import MARK
from tests.missing import missing

KIB = 2**10
MIB = 2**20


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() if f.is_file() else b"" for f in folder.rglob("*")}


def dd(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("dd") is None:
        missing("needs dd")
    return subprocess.run(
        ["dd", *arguments], env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False
    )


def test_chunks_are_written_and_read_back_and_all_is_removed(tmp_path: Path, home: Path) -> None:
    place = tmp_path / "kv"
    place.mkdir()
    (place / "somebody's").write_text("file")
    before = tree(place)
    trial = try_disk(read_disk(place), 200 * KIB, 3, 2, trial_bytes=4 * MIB)
    assert isinstance(trial, DiskTrial)
    assert (trial.chunk_bytes, trial.files) == (200 * KIB, 4 * MIB // (200 * KIB))
    assert (trial.write_threads, trial.read_threads) == (3, 2)
    assert trial.write_bytes_per_s > 0
    assert trial.read_bytes_per_s > 0
    assert 0 < trial.read.median_s <= trial.read.p99_s
    assert tree(place) == before
    assert list((home / "leases").glob("*")) == []


def test_parents_that_were_made_on_the_way_are_removed_too(tmp_path: Path, home: Path) -> None:
    trial = try_disk(read_disk(tmp_path / "a" / "b"), 4 * KIB, 1, 1, trial_bytes=64 * KIB)
    assert isinstance(trial, DiskTrial)
    assert not (tmp_path / "a").exists()


def test_bytes_files_and_threads_are_bounded(tmp_path: Path, home: Path) -> None:
    disk = replace(read_disk(tmp_path), free=20 * MIB)
    trial = try_disk(disk, 100 * KIB, 64, 64)
    assert isinstance(trial, DiskTrial)
    assert trial.files * trial.chunk_bytes <= 0.05 * 20 * MIB
    assert trial.write_threads <= trial.files


def test_time_is_bounded(tmp_path: Path, home: Path) -> None:
    trial = try_disk(read_disk(tmp_path), 4 * KIB, 1, 1, trial_bytes=8 * MIB, trial_s=0.02)
    assert isinstance(trial, DiskTrial)
    assert trial.files < 2048


def test_a_disk_is_measured_even_when_time_is_up_before_the_first_chunk(tmp_path: Path, home: Path) -> None:
    trial = try_disk(read_disk(tmp_path), 4 * KIB, 3, 2, trial_bytes=64 * KIB, trial_s=0)
    assert isinstance(trial, DiskTrial)
    assert trial.files == 3
    assert trial.write_bytes_per_s > 0
    assert 0 < trial.read.median_s <= trial.read.p99_s


def test_too_little_space_is_told_and_nothing_is_made(tmp_path: Path, home: Path) -> None:
    why = try_disk(replace(read_disk(tmp_path), free=MIB), MIB, 1, 1)
    assert isinstance(why, str)
    assert "too little" in why
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_made_is_told(tmp_path: Path, home: Path) -> None:
    (tmp_path / "file").touch()
    why = try_disk(replace(read_disk(tmp_path), path=str(tmp_path / "file" / "kv")), 4 * KIB, 1, 1)
    assert isinstance(why, str)
    assert "cannot make a directory" in why


def test_a_disk_that_fills_up_meanwhile_is_told_and_left_clean(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "kv"
    place.mkdir()
    marks: list[bool] = []

    def full(self: object, file: Path) -> float:
        marks.append((place / file.relative_to(place).parts[0] / MARK).is_file())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_trial._Trial, "write", full)
    why = try_disk(read_disk(place), 4 * KIB, 2, 2, trial_bytes=64 * KIB)
    assert why == "writing there failed: No space left on device"
    assert marks
    assert all(marks)
    assert list(place.iterdir()) == []


def test_a_page_cache_that_cannot_be_gone_round_is_said(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_trial, "_direct", lambda directory: False)
    trial = try_disk(read_disk(tmp_path), 4 * KIB, 1, 1, trial_bytes=64 * KIB)
    assert isinstance(trial, DiskTrial)
    assert not trial.direct


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_the_page_cache_is_gone_round_where_dd_can(place: str, tmp_path: Path, home: Path) -> None:
    """tmpfs refuses it before Linux 6.6."""
    with tempfile.TemporaryDirectory(dir=tmp_path if place == "disk" else SHM) as name:
        written = dd("if=/dev/zero", f"of={name}/file", "bs=4096", "count=1", "oflag=direct")
        trial = try_disk(read_disk(Path(name)), 4 * KIB, 1, 1, trial_bytes=64 * KIB)
    assert isinstance(trial, DiskTrial)
    assert trial.direct == (written.returncode == 0), written.stderr


ON_RAMFS = """
import sys
from dataclasses import replace
from pathlib import Path
from kvbench.doctor.disk_trial import try_disk
from kvbench.doctor.storage import read_disk

place = Path(sys.argv[1])
disk = replace(read_disk(place), free=2**30)
trial = try_disk(disk, 4096, 1, 1, trial_bytes=65536)
print(disk.filesystem, trial.direct, trial.files, list(place.iterdir()))
"""


def test_a_file_system_that_refuses_to_go_round_the_page_cache_is_measured_through_it(
    tmp_path: Path, home: Path
) -> None:
    """ramfs always refuses; it is mounted for the test's own process alone."""
    mounted = 'mount -t ramfs ramfs "$1" && exec "$2" -c "$3" "$1"'
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which(alone[0]) is None:
        missing("needs unshare")
    if subprocess.run([*alone, "mount -t ramfs ramfs /tmp"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a user may not mount anything here, not even for themselves")
    (tmp_path / "kv").mkdir()
    call = [*alone, mounted, "sh", str(tmp_path / "kv"), sys.executable, ON_RAMFS]
    answer = subprocess.run(call, capture_output=True, text=True, check=False)
    assert answer.stdout.split() == ["ramfs", "False", "16", "[]"], answer.stderr


def dd_bytes_per_s(*arguments: str) -> float:
    """Of the fastest of three."""
    told = [dd(*arguments) for _ in range(3)]
    found = [re.search(r"^(\d+) bytes.* copied, ([\d.e-]+) s", answer.stderr, re.MULTILINE) for answer in told]
    return max(int(seen[1]) / float(seen[2]) for seen in found if seen is not None)


def test_a_disk_is_about_as_fast_as_dd_finds_it(tmp_path: Path, home: Path) -> None:
    """Within a factor of thirty: both share the disk with other tests, and take it one after the other."""
    trial = try_disk(read_disk(tmp_path), MIB, 1, 1, trial_bytes=32 * MIB)
    assert isinstance(trial, DiskTrial)
    past = ("oflag=direct", "iflag=direct") if trial.direct else ("conv=fdatasync", "iflag=nocache")
    written = dd_bytes_per_s("if=/dev/zero", f"of={tmp_path}/file", "bs=1M", "count=32", past[0])
    read = dd_bytes_per_s(f"if={tmp_path}/file", "of=/dev/null", "bs=1M", past[1])
    assert written / 30 < trial.write_bytes_per_s < written * 30
    assert read / 30 < trial.read_bytes_per_s < read * 30
