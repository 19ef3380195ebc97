"""What is known of requests whose answers are still coming: all that a driver that is killed leaves of them.

Their rows are made when they are over. Times are seconds from time zero.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from kvbench.load.exchange import Exchange

__all__ = ["UNDER_WAY", "UNDER_WAY_NS", "Note", "UnderWayFile", "noted"]

UNDER_WAY_NS = 1_000_000_000
"""Those that went out later are not noted: a driver that is killed may lose its last two seconds."""
UNDER_WAY = pa.schema(
    [
        ("id", pa.int64()),
        ("t_s", pa.float64()),  # of the note; there is one a second
        ("sent_s", pa.float64()),
        ("http_status", pa.int32()),  # null: no answer had begun
        ("reads", pa.int64()),  # pieces of the answer that had come, of which most are one event
        ("first_read_s", pa.float64()),  # by the clock at the read, not by the kernel's
        ("last_read_s", pa.float64()),
    ]
)

Note = tuple[int, float, float, int | None, int, float | None, float | None]


def noted(active: Iterable[Exchange], now_ns: int, zero_ns: int) -> list[Note]:
    """A row of `UNDER_WAY` for each of `active` that went out long enough ago."""
    before_ns = now_ns - UNDER_WAY_NS
    now_s = (now_ns - zero_ns) / 1e9
    rows: list[Note] = []
    for exchange in active:
        sent_ns, read_ns = exchange.sent_ns, exchange.read_ns
        if sent_ns is not None and sent_ns < before_ns:
            first_s, last_s = (
                ((read_ns[0] - zero_ns) / 1e9, (read_ns[-1] - zero_ns) / 1e9) if read_ns else (None, None)
            )
            sent_s = (sent_ns - zero_ns) / 1e9
            rows.append((exchange.id, now_s, sent_s, exchange.status, len(read_ns), first_s, last_s))
    return rows


class UnderWayFile:
    """Holds the newest notes and no others; whole at any moment. To be written by one thread."""

    def __init__(self, path: Path) -> None:
        self.error: OSError | None = None
        self.path = path
        self._there = False

    def write(self, rows: list[Note]) -> None:
        """In place of those before. Once the disk has refused, nothing more is tried."""
        if self.error or not (rows or self._there):
            return
        columns = zip(*rows, strict=True) if rows else ((),) * len(UNDER_WAY)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, UNDER_WAY, strict=True)]
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            with pa.OSFile(os.fspath(temporary), "wb") as file, pa.ipc.new_stream(file, UNDER_WAY) as stream:
                stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=UNDER_WAY))
            temporary.replace(self.path)
            self._there = True
        except OSError as error:
            self.error = error
            temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Every request has its row."""
        self.path.unlink(missing_ok=True)
        self._there = False
