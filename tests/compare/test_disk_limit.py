"""A disk tier that outgrows its limit is noticed, one that does not is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.compare.disk_limit import LOOK_S, DiskLimit, size_of


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def fill(directory: Path, *sizes: int) -> Path:
    for number, size in enumerate(sizes):
        place = directory / f"{number:02x}"
        place.mkdir(parents=True)
        (place / "block.bin").write_bytes(b"\1" * size)
    return directory


def test_the_size_is_that_of_all_files_below_and_links_lead_nowhere(tmp_path: Path) -> None:
    fill(tmp_path / "tier", 4096, 8192)
    elsewhere = fill(tmp_path / "elsewhere", 1_000_000)
    (tmp_path / "tier" / "link").symlink_to(elsewhere)
    assert 12288 <= size_of(tmp_path / "tier") < 100_000
    assert size_of(tmp_path / "nowhere") == 0


def test_beyond_the_limit_it_says_so_in_words(tmp_path: Path) -> None:
    limit = DiskLimit(fill(tmp_path / "tier", 3 * 2**20), 2**20)
    assert limit()
    assert limit.exceeded == "the disk tier took 3 MiB, more than its size_limit of 1 MiB"


def test_it_looks_seldom_and_once_more_when_told(tmp_path: Path) -> None:
    clock = Clock()
    limit = DiskLimit(tmp_path / "tier", 2**20, clock=clock)
    assert not limit()
    fill(tmp_path / "tier", 2**21)
    clock.now += LOOK_S / 2
    assert not limit(), "not yet looked again"
    clock.now += LOOK_S
    assert limit()
    late = DiskLimit(tmp_path / "tier", 2**20, clock=clock)
    late.look()
    assert late.exceeded is not None


@pytest.mark.parametrize(("directory", "limit_bytes"), [(None, 1), (Path("tier"), None)])
def test_without_a_tier_or_a_limit_nothing_is_exceeded(
    directory: Path | None, limit_bytes: int | None, tmp_path: Path
) -> None:
    fill(tmp_path / "tier", 4096)
    limit = DiskLimit(directory and tmp_path / directory, limit_bytes)
    assert not limit()
    assert limit.exceeded is None
