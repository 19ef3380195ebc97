"""Files that are either the old one or the new one, never half of one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.errors import UnwritableError

__all__ = ["write_document", "write_table", "write_text"]


def _replace(path: Path, temporary: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def _temporary(path: Path) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    temporary.chmod(0o644)
    return temporary


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8. UnwritableError when the disk refuses."""
    try:
        temporary = _temporary(path)
        try:
            temporary.write_text(text, encoding="utf-8")
            _replace(path, temporary)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, error) from error


def write_document(path: Path, document: object) -> None:
    """Write `document` as JSON. UnwritableError when the disk refuses; ValueError for what JSON has not (NaN)."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_table(path: Path, table: pa.Table) -> None:
    """Write `table` as Parquet. UnwritableError when the disk refuses."""
    try:
        temporary = _temporary(path)
        try:
            pq.write_table(table, temporary, compression="zstd")
            _replace(path, temporary)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> UnwritableError:
    return UnwritableError(
        f"cannot write {path}: {error.strerror or error}",
        do="free space or choose another folder with --out; `--resume` goes on from what was recorded",
    )
