"""The directory of one run: where its parts lie, and how they are written and read.

Layout as in DESIGN: run.json, arms/<arm>/round-<k>/{requests,tokens,metrics,host}.parquet, reports beside run.json.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from kvbench.errors import InputError, RecordError, Where
from kvbench.record.atomic import write_text
from kvbench.record.manifest import Manifest
from kvbench.spec.bounds import STORED

__all__ = ["RunDirectory", "utc_now"]


def utc_now() -> str:
    """Now as `2026-01-31T12:00:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class RunDirectory:
    """One run on disk. All writes are atomic; the manifest is rewritten after every round."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, results: Path, name: str) -> RunDirectory:
        """Make `results/<UTC time>-<name>/`. InputError when the folder cannot be written."""
        path = cls.make_folder(results, name)
        try:
            (path / "arms").mkdir()
        except OSError as error:
            raise _unwritable(results, error.strerror or str(error)) from error
        return cls(path)

    @staticmethod
    def make_folder(results: Path, name: str) -> Path:
        """`results/<UTC time>-<name>/`, empty and new. InputError when it cannot be made."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        for suffix in ["", *(f"-{n}" for n in range(2, 100))]:
            path = results / f"{stamp}-{name}{suffix}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if not results.is_dir():
                    raise _unwritable(results, "it is a file, not a folder") from None
                continue
            except OSError as error:
                raise _unwritable(results, error.strerror or str(error)) from error
            return path
        raise _unwritable(results, "a hundred runs began in this second")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run. InputError when `path` is none."""
        try:
            is_one = (path / "run.json").is_file()
        except OSError as error:  # a folder that may not be looked into, or a name that is too long
            raise InputError(f"{path} cannot be looked into: {error.strerror or error}") from error
        if not is_one:
            raise InputError(
                f"{path} is not a run of kvbench: it has no run.json",
                do="name a folder that `kvbench compare` or `kvbench run` wrote, such as results/<time>-<name>",
            )
        return cls(path)

    @staticmethod
    def check_writable(results: Path) -> None:
        """Whether a run could be made under `results`; nothing is left behind. InputError when not."""
        place = results
        try:
            while not place.exists():
                place = place.parent
            if not place.is_dir():
                raise _unwritable(results, f"{place} is a file, not a folder")
            Path(tempfile.mkdtemp(prefix=".kvbench-", dir=place)).rmdir()
        except OSError as error:
            raise _unwritable(results, error.strerror or str(error)) from error

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    def write_manifest(self, manifest: Manifest) -> None:
        """Store the manifest."""
        write_text(self.manifest_path, manifest.model_dump_json(by_alias=True, indent=1) + "\n")

    def read_manifest(self) -> Manifest:
        """The stored manifest. InputError when it is not readable."""
        try:
            return Manifest.model_validate_json(self.manifest_path.read_text(encoding="utf-8"), context=STORED)
        except (OSError, ValidationError, UnicodeDecodeError) as error:
            raise InputError(
                f"run.json cannot be read: {_first_line(error)}",
                where=Where(self.manifest_path),
                do="it was damaged, or written by another version of kvbench; record the run again",
            ) from error

    def round_directory(self, arm: str, index: int) -> Path:
        """Where round `index` (from 1) of `arm` is recorded."""
        return self.path / "arms" / arm / f"round-{index}"

    def schedule_path(self, index: int) -> Path:
        """The schedule that every arm plays in round `index`."""
        return self.path / "schedules" / f"round-{index}.parquet"

    def set_spoiled_aside(self, arm: str, index: int) -> Path | None:
        """Rename a spoiled round so that it stays to be looked at; None when there was nothing."""
        source = self.round_directory(arm, index)
        if not source.exists():
            return None
        number = 1
        while (target := source.with_name(f"{source.name}.spoiled-{number}")).exists():
            number += 1
        source.rename(target)
        return target

    def set_schedule_aside(self, index: int) -> None:
        """Rename the schedule of a round that is to be played with other prompts, so that it gets a new one."""
        source = self.schedule_path(index)
        if source.exists():
            source.rename(self._schedule_aside(index, self.schedules_aside(index) + 1))

    def schedules_aside(self, index: int) -> int:
        """How many schedules round `index` has had before the one that it has or gets now."""
        number = 0
        while self._schedule_aside(index, number + 1).exists():
            number += 1
        return number

    def _schedule_aside(self, index: int, number: int) -> Path:
        path = self.schedule_path(index)
        return path.with_name(f"{path.stem}.spoiled-{number}.parquet")

    def read_table(self, arm: str, index: int, name: str, schema: pa.Schema) -> pd.DataFrame:
        """A table of a round as pandas, columns as in `schema`; empty when it was never written.

        Later versions add columns at the end; those that an older one did not write are null. RecordError when the
        file is damaged or holds something else.
        """
        path = self.round_directory(arm, index) / f"{name}.parquet"
        if not path.exists():
            return _pandas(schema.empty_table())
        try:
            names = pq.read_schema(path).names
            if names != schema.names[: len(names)]:
                raise pa.ArrowInvalid(f"it holds other columns than {name} has: {', '.join(names)}")
            return _pandas(pq.read_table(path, schema=schema))
        except (OSError, pa.ArrowException) as error:
            raise RecordError(
                f"cannot read {path}: {_first_line(error)}", do="the file is damaged; record the run again"
            ) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block no other process records into this run. InputError when another one does.

        Where the file system knows no locks (some network ones), nothing is held.
        """
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"another kvbench is recording into {self.path}", do="wait until it has ended, or stop it"
            ) from None
        except OSError:
            pass
        try:
            yield
        finally:
            os.close(handle)


def _pandas(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _unwritable(results: Path, why: str) -> InputError:
    return InputError(
        f"cannot write results to {results}: {why}", do="choose a folder that you may write to with --out"
    )
