"""Scrapes that nobody else keeps, on disk: a line for each round, of which only what has changed is told.

Fifty replicas every 15 s are some tens of megabytes a day. A line that was cut off is left out, and whoever writes
next begins with everything again. Unix seconds.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from kvbench.canary.reading import SIDES, Read
from kvbench.canary.series import Key, Samples, key_of, merge
from kvbench.errors import RecordError

__all__ = ["ScrapeLog"]

EXACT = 2.0**53
"""Whole numbers below it differ by a whole number that is exact."""


@dataclass
class _Written:
    """What a replica's latest line said."""

    keys: tuple[Key, ...]
    values: list[float]


@dataclass
class _Stretch:
    """Rounds of one replica with the same series: values round by round."""

    keys: tuple[Key, ...]
    t_s: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    latest: list[float] = field(default_factory=list)

    def add(self, t_s: float, values: list[float]) -> None:
        self.latest = values
        if not self.t_s or t_s > self.t_s[-1]:
            self.t_s.append(t_s)
            self.values.extend(values)

    def samples(self) -> Samples:
        times = np.array(self.t_s)
        columns = np.ascontiguousarray(np.array(self.values).reshape(len(times), len(self.keys)).T)
        return {key: (times, column) for key, column in zip(self.keys, columns, strict=True)}


class ScrapeLog:
    """One file. Whoever writes holds the lock of the gate's directory."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._written: dict[tuple[str, str], _Written] = {}

    def keep(self, read: Read, t_s: float) -> None:
        """Append one round: of each series its latest sample. RecordError when the disk refuses."""
        replicas = [
            self._told(side, name, samples)
            for side, several in read.samples.items()
            for name, samples in several.items()
            if samples
        ]
        entry = {"t": t_s, "replicas": replicas, "failed": read.failed}
        line = base64.b64encode(zlib.compress(json.dumps(entry, separators=(",", ":")).encode()))
        try:
            with self._file.open("a+b") as file:
                if _is_cut_off(file):
                    file.write(b"\n")
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._written.clear()
            raise RecordError(f"cannot write {self._file}: {error.strerror or error}", do="free space") from error

    def _told(self, side: str, name: str, samples: Samples) -> list[object]:
        """Side, name, time, series (null: as before), and values: a whole number is what one grew by."""
        keys, values = tuple(samples), [float(values[-1]) for _, values in samples.values()]
        t_s = max(float(times[-1]) for times, _ in samples.values())
        before = self._written.get((side, name))
        self._written[side, name] = _Written(keys, values)
        if before is None or before.keys != keys:
            return [side, name, t_s, [[series, dict(labels)] for series, labels in keys], values]
        return [side, name, t_s, None, list(map(_change, before.values, values))]

    def kept(self) -> tuple[Read, float] | None:
        """All rounds as one, and the time of the last; None: there are none."""
        stretches: dict[tuple[str, str], list[_Stretch]] = {}
        open_: dict[tuple[str, str], _Stretch] = {}
        failed: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
        until_s: float | None = None
        for entry in self._entries():
            if entry is None:
                open_.clear()  # what comes next may build on what was cut off
                continue
            for side, name, t_s, told, values in entry["replicas"]:
                if told is not None:
                    open_[side, name] = _Stretch(tuple(key_of(series, labels) for series, labels in told))
                    stretches.setdefault((side, name), []).append(open_[side, name])
                    open_[side, name].add(t_s, values)
                elif (stretch := open_.get((side, name))) is not None:
                    stretch.add(t_s, list(map(_changed, stretch.latest, values)))
            for side, times in entry["failed"].items():
                for name, moments in times.items():
                    failed[side].setdefault(name, []).extend(moments)
            until_s = float(entry["t"])
        if until_s is None:
            return None
        samples: dict[str, dict[str, Samples]] = {side: {} for side in SIDES}
        for side, name in [*stretches]:
            whole: Samples = {}
            for stretch in stretches.pop((side, name)):
                whole = merge(whole, stretch.samples())
            samples[side][name] = whole
        return Read(samples, failed), until_s

    def _entries(self) -> Iterator[Any]:
        """None for a line that was cut off, or is of another version."""
        try:
            with self._file.open("rb") as file:
                for line in file:
                    try:
                        entry = json.loads(zlib.decompress(base64.b64decode(line)))
                    except (ValueError, zlib.error):
                        entry = {}
                    yield entry if "replicas" in entry else None
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(
                f"{self._file} cannot be read: {error.strerror or error}", do="remove it, or give --state"
            ) from error

    def drop(self) -> None:
        """Forget everything."""
        self._written.clear()
        self._file.unlink(missing_ok=True)


def _change(before: float, now: float) -> float | int:
    """How far a whole number grew, as one; anything else as it is now."""
    whole = before.is_integer() and now.is_integer() and abs(before) < EXACT and abs(now) < EXACT
    return int(now - before) if whole else now


def _changed(before: float, told: float | int) -> float:
    return before + told if isinstance(told, int) else told


def _is_cut_off(file: IO[bytes]) -> bool:
    """Whether its last line was not written to its end."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
