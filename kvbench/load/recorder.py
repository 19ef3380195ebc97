"""Rows on disk as they come: Arrow streams while the round runs, Parquet once it is complete.

A killed driver loses at most what came in the last second or two; what it left can be read with `read_part`. A
`requests.parquet` exists only for a round that was played to its end.
"""

from __future__ import annotations

import os
import queue
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.errors import RecordError
from kvbench.record.tables import REQUESTS, TOKENS

__all__ = ["Recorder", "read_part"]

ROWS_AT_ONCE = 64
TOKENS_AT_ONCE = 16_384
"""So that handing rows over never holds the driver's loop for more than about a millisecond."""
ROW_GROUP = 1 << 18
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _PartFile:
    """Appends to one Arrow stream from a thread of its own: a slow disk must not stop the load."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.error: OSError | None = None
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._queue: queue.SimpleQueue[pa.Buffer | bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name=f"write {path.name}", daemon=True)
        self._thread.start()
        self._queue.put(schema.serialize())

    def append(self, data: pa.Buffer) -> None:
        """Add a serialized batch."""
        self._queue.put(data)

    def close(self) -> None:
        self._queue.put(_END_OF_STREAM)
        self._queue.put(None)
        self._thread.join()
        os.close(self._fd)

    def _write(self) -> None:
        while (data := self._queue.get()) is not None:
            rest = memoryview(data)
            try:
                while rest and self.error is None:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError as error:
                self.error = error


class Recorder:
    """Takes rows from one thread.

    `shipped` is given every batch that goes to the disk, as (`requests` or `tokens`, serialized batch), in that
    thread; a request's tokens come before its row.
    """

    def __init__(self, out: Path, *, shipped: Callable[[str, pa.Buffer], None] | None = None) -> None:
        self.rows = 0
        self.tokens = 0
        self._out = out
        self._shipped = shipped
        self._closed = False
        self._columns: dict[str, list[object]] = {name: [] for name in REQUESTS.names}
        self._ids = array("q")
        self._counts = array("q")
        self._times_s = array("d")
        try:
            self._requests = _PartFile(out / "requests.part.arrows", REQUESTS)
            self._tokens = _PartFile(out / "tokens.part.arrows", TOKENS)
        except OSError as error:
            raise _refused(out, error) from error
        # Arrow imports pandas with its first array, which takes a second; that must not happen while load runs.
        pa.array([0])

    def add(self, row: Mapping[str, object], times_s: array[float]) -> None:
        """One request with the receive time of each of its tokens."""
        for name, column in self._columns.items():
            column.append(row[name])
        self._ids.append(int(str(row["id"])))
        self._counts.append(len(times_s))
        self._times_s += times_s
        self.rows += 1
        self.tokens += len(times_s)
        if len(self._ids) >= ROWS_AT_ONCE or len(self._times_s) >= TOKENS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Hand what has come to the disk. RecordError when the disk has refused earlier rows."""
        error = self._requests.error or self._tokens.error
        if error:
            raise _refused(self._out, error)
        if not self._ids:
            return
        columns = [pa.array(self._columns[field.name], field.type) for field in REQUESTS]
        self._write("tokens", self._token_batch())  # first, so that a request's row implies its tokens
        self._write("requests", pa.RecordBatch.from_arrays(columns, schema=REQUESTS))
        for column in self._columns.values():
            column.clear()
        self._ids, self._counts, self._times_s = array("q"), array("q"), array("d")

    def append(self, table: Literal["requests", "tokens"], batch: pa.RecordBatch) -> None:
        """Rows that were recorded elsewhere. RecordError when the disk has refused earlier rows."""
        self.flush()
        if table == "requests":
            self.rows += batch.num_rows
        else:
            self.tokens += batch.num_rows
        self._write(table, batch)

    def _write(self, table: Literal["requests", "tokens"], batch: pa.RecordBatch) -> None:
        data = batch.serialize()
        (self._requests if table == "requests" else self._tokens).append(data)
        if self._shipped:
            self._shipped(table, data)

    def _token_batch(self) -> pa.RecordBatch:
        counts = np.frombuffer(self._counts, np.int64)
        starts = np.cumsum(counts) - counts
        total = len(self._times_s)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.repeat(np.frombuffer(self._ids, np.int64), counts)),
                pa.array((np.arange(total) - np.repeat(starts, counts)).astype(np.int32)),
                pa.array(np.array(self._times_s, np.float64)),
            ],
            schema=TOKENS,
        )

    def close(self) -> None:
        """Write what has come; the parts stay as they are. More than once is as good as once."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._requests.close()
            self._tokens.close()
        error = self._requests.error or self._tokens.error
        if error:
            raise _refused(self._out, error)

    def complete(self) -> None:
        """After `close`: turn the parts into `tokens.parquet` and then `requests.parquet`, and remove them."""
        for part, schema, name, rows in (
            (self._tokens, TOKENS, "tokens", self.tokens),
            (self._requests, REQUESTS, "requests", self.rows),
        ):
            written = _to_parquet(part.path, schema, self._out / f"{name}.parquet")
            if written != rows:
                raise RecordError(
                    f"{part.path} holds {written} rows where {rows} were recorded; the file was changed"
                )
        self.discard()

    def discard(self) -> None:
        """After `close`: remove the parts."""
        self._tokens.path.unlink()
        self._requests.path.unlink()


def read_part(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a part file up to where its writer was killed."""
    with pa.OSFile(str(path)) as file:
        try:
            yield from pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError):
            return  # the last batch was cut off


def _to_parquet(part: Path, schema: pa.Schema, path: Path) -> int:
    """Returns the number of rows."""
    rows = 0
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in read_part(part):
                waiting.append(batch)
                rows += batch.num_rows
                if sum(batch.num_rows for batch in waiting) >= ROW_GROUP:
                    writer.write_table(pa.Table.from_batches(waiting), row_group_size=ROW_GROUP)
                    waiting.clear()
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=ROW_GROUP)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def _refused(path: Path, error: OSError) -> RecordError:
    return RecordError(
        f"cannot write {path}: {error.strerror or error}",
        do="free space or choose another folder with --out; `--resume` goes on from what was recorded",
    )
