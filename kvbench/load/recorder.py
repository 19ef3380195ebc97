"""Rows on disk as they come: Arrow streams while the round runs, Parquet once it is complete.

A killed driver loses at most what came in the last second or two. What it left can be read with `read_part`: the
rows of requests that were over, and of those still under way what `under_way` notes. A `requests.parquet` exists
only for a round that was played to its end.
"""

from __future__ import annotations

import os
import queue
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.errors import RecordError
from kvbench.load.under_way import Note, UnderWayFile
from kvbench.record.tables import REQUESTS, TOKENS

__all__ = ["Recorder", "read_part"]

Table = Literal["requests", "tokens"]
ROWS_AT_ONCE = 64
TOKENS_AT_ONCE = 16_384
"""What goes into a batch; less when a second is over."""
ROW_GROUP = 1 << 18
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _PartFile:
    """One Arrow stream on the disk; to be appended to by one thread."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.error: OSError | None = None
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.append(schema.serialize())

    def append(self, data: pa.Buffer | bytes) -> None:
        """Add a serialized batch. Once the disk has refused, nothing more is tried."""
        rest = memoryview(data)
        try:
            while rest and self.error is None:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self.error = error

    def close(self) -> None:
        self.append(_END_OF_STREAM)
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Requests by column, and the receive times of all their tokens one after the other."""

    columns: dict[str, list[object]]
    ids: array[int]
    counts: array[int]
    times_s: array[float]

    def requests(self) -> pa.RecordBatch:
        columns = [pa.array(self.columns[field.name], field.type) for field in REQUESTS]
        return pa.RecordBatch.from_arrays(columns, schema=REQUESTS)

    def tokens(self) -> pa.RecordBatch:
        counts = np.frombuffer(self.counts, np.int64)
        starts = np.cumsum(counts) - counts
        total = len(self.times_s)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.repeat(np.frombuffer(self.ids, np.int64), counts)),
                pa.array((np.arange(total) - np.repeat(starts, counts)).astype(np.int32)),
                pa.array(np.frombuffer(self.times_s, np.float64)),
            ],
            schema=TOKENS,
        )


class Recorder:
    """Takes rows from one thread; another one makes batches of them and writes, so that neither holds up the load.

    `shipped` is given every batch that goes to the disk, as (`requests` or `tokens`, serialized batch), in the
    writing thread; a request's tokens come before its row.
    """

    def __init__(self, out: Path, *, shipped: Callable[[str, pa.Buffer], None] | None = None) -> None:
        self.rows = 0
        self.tokens = 0
        self._out = out
        self._shipped = shipped
        self._closed = False
        self._rows = _no_rows()
        try:
            self._requests = _PartFile(out / "requests.part.arrows", REQUESTS)
            self._tokens = _PartFile(out / "tokens.part.arrows", TOKENS)
        except OSError as error:
            raise _refused(out, error) from error
        self._under_way = UnderWayFile(out / "under-way.part.arrows")
        # With its first arrays Arrow imports pandas and numpy.ma, which takes a second; that must not happen while
        # load runs.
        pa.array([0])
        pa.array(np.zeros(1))
        self._failure: BaseException | None = None
        self._queue: queue.SimpleQueue[_Rows | list[Note] | tuple[Table, pa.RecordBatch] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self._thread.start()

    def add(self, row: Mapping[str, object], times_s: array[float]) -> None:
        """One request with the receive time of each of its tokens."""
        rows = self._rows
        for name, column in rows.columns.items():
            column.append(row[name])
        rows.ids.append(int(str(row["id"])))
        rows.counts.append(len(times_s))
        rows.times_s.extend(times_s)
        self.rows += 1
        self.tokens += len(times_s)
        if len(rows.ids) >= ROWS_AT_ONCE or len(rows.times_s) >= TOKENS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Hand what has come to the writing thread. RecordError when the disk has refused earlier rows."""
        self._raise_if_refused()
        if self._rows.ids:
            self._queue.put(self._rows)
            self._rows = _no_rows()

    def note(self, under_way: list[Note]) -> None:
        """What is known of the requests that are under way now, in place of what was noted before."""
        self._queue.put(under_way)

    def append(self, table: Table, batch: pa.RecordBatch) -> None:
        """Rows that were recorded elsewhere. RecordError when the disk has refused earlier rows."""
        self.flush()
        if table == "requests":
            self.rows += batch.num_rows
        else:
            self.tokens += batch.num_rows
        self._queue.put((table, batch))

    def _write_all(self) -> None:
        """The writing thread."""
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, _Rows):
                    self._write("tokens", item.tokens())  # first, so that a request's row implies its tokens
                    self._write("requests", item.requests())
                elif isinstance(item, list):
                    self._under_way.write(item)
                else:
                    self._write(*item)
        except BaseException as error:  # noqa: BLE001  (raised again in the thread that hands rows over)
            self._failure = error

    def _write(self, table: Table, batch: pa.RecordBatch) -> None:
        data = batch.serialize()
        (self._requests if table == "requests" else self._tokens).append(data)
        if self._shipped:
            self._shipped(table, data)

    def _raise_if_refused(self) -> None:
        if self._failure:
            raise self._failure
        error = self._requests.error or self._tokens.error or self._under_way.error
        if error:
            raise _refused(self._out, error)

    def close(self) -> None:
        """Write what has come; the parts stay as they are. More than once is as good as once."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._queue.put(None)
            self._thread.join()
            self._requests.close()
            self._tokens.close()
            self._under_way.remove()
        self._raise_if_refused()

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


def _no_rows() -> _Rows:
    return _Rows({name: [] for name in REQUESTS.names}, array("q"), array("q"), array("d"))


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
