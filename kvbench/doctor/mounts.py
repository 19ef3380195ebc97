"""The table of mounts, `/proc/self/mountinfo`, and which mount a path lies on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mount", "mount_of", "mounts"]


@dataclass(frozen=True)
class Mount:
    """One line of the table; later lines cover earlier ones."""

    root: str
    """The directory of the file system that is seen at `point`."""
    point: str
    options: tuple[str, ...]
    filesystem: str
    source: str
    super_options: tuple[str, ...]

    @property
    def read_only(self) -> bool:
        """For this mount, or for the whole file system."""
        return "ro" in self.options or "ro" in self.super_options


def mounts(proc: Path = Path("/proc")) -> list[Mount]:
    """The columns are those of proc(5); none where the table cannot be read."""
    try:
        lines = (proc / "self" / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [mount for line in lines if (mount := _mount(line)) is not None]


def _mount(line: str) -> Mount | None:
    left, dash, right = line.partition(" - ")
    here, there = left.split(" "), right.split(" ")
    if not dash or len(here) < 6 or len(there) < 3:
        return None
    return Mount(
        root=_plain(here[3]),
        point=_plain(here[4]),
        options=tuple(here[5].split(",")),
        filesystem=there[0],
        source=_plain(there[1]),
        super_options=tuple(there[2].split(",")),
    )


def _plain(field: str) -> str:
    r"""Spaces, tabs, line ends and backslashes are written as `\040` and so on."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mount_of(path: Path, table: list[Mount]) -> Mount | None:
    """The mount that `path` (absolute, without links) lies on."""
    around = [mount for mount in table if path.is_relative_to(mount.point)]
    return max(reversed(around), key=lambda mount: len(mount.point), default=None)
