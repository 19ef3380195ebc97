"""A schedule on disk: one Parquet table of requests, with the rest of the schedule as JSON in its metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.errors import RecordError
from kvbench.record.atomic import write_table
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment

__all__ = ["read_schedule", "schedule_digest", "write_schedule"]

_VERSION = 1
_METADATA = b"kvbench.schedule"
_TABLE = pa.schema(
    [
        ("prime", pa.bool_()),
        ("id", pa.int64()),
        ("phase", pa.string()),
        ("measured", pa.bool_()),
        ("class_", pa.string()),
        ("session", pa.int64()),
        ("turn", pa.int32()),
        ("intended_s", pa.float64()),
        ("think_s", pa.float64()),
        ("continues", pa.int64()),
        ("identities", pa.list_(pa.int64())),
        ("tokens", pa.list_(pa.int64())),
        ("output_tokens", pa.int64()),
        ("prefix", pa.int64()),
        ("repeat_of", pa.int64()),
        ("carries", pa.bool_()),
        ("waits_for", pa.list_(pa.int64())),
        ("branch", pa.int64()),
        ("abort_after_tokens", pa.int64()),
        ("abort_after_s", pa.float64()),
        ("holdout", pa.bool_()),
        ("tenant", pa.int64()),
    ]
)
"""`identities` and `tokens` are the segments of a request."""
_PLAIN = tuple(
    field.name for field in fields(PlannedRequest) if field.default is MISSING and field.name != "segments"
)
_OPTIONS = {field.name: field.default for field in fields(PlannedRequest) if field.default is not MISSING}
"""What most requests do not have. Digests leave it out there: a schedule keeps its digest when an option is new."""


def write_schedule(schedule: Schedule, path: Path) -> None:
    """Write the schedule; the file is there whole or not at all. RecordError when the disk refuses."""
    requests = list(schedule.in_order())
    columns: dict[str, list[object]] = {
        name: [getattr(request, name) for request in requests] for name in (*_PLAIN, *_OPTIONS)
    }
    columns["prime"] = [index < len(schedule.prime) for index in range(len(requests))]
    columns["identities"] = [[segment.identity for segment in request.segments] for request in requests]
    columns["tokens"] = [[segment.tokens for segment in request.segments] for request in requests]
    table = pa.table(columns, schema=_TABLE.with_metadata({_METADATA: json.dumps(_head(schedule))}))
    write_table(path, table)


def read_schedule(path: Path) -> Schedule:
    """Read what `write_schedule` wrote. RecordError when the file is missing, damaged or of another version."""
    try:
        table = pq.read_table(path)
        head = json.loads((table.schema.metadata or {})[_METADATA])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise RecordError(f"{path} is not a schedule that can be read: {error}", do="start the run anew") from error
    if head.pop("version") != _VERSION:
        raise RecordError(f"{path} is a schedule of another kvbench version", do="use that version, or start anew")
    phases = tuple(PhaseSpan(**phase) for phase in head.pop("phases"))
    primes: list[bool] = table.column("prime").to_pylist()
    canaries = head.pop("canaries", [])
    requests = list(_requests(table, canaries))
    count = sum(primes)
    return Schedule(
        phases=phases,
        prime=tuple(requests[:count]),
        requests=tuple(requests[count:]),
        canaries=tuple(canaries),
        **head,
    )


def schedule_digest(schedule: Schedule) -> str:
    """64 hex digits that are equal exactly when two schedules are: SHA-256 over every value, floats bit for bit."""
    digest = hashlib.sha256(json.dumps(_head(schedule), sort_keys=True).encode())
    for request in schedule.in_order():
        contents = [(segment.identity, segment.tokens) for segment in request.segments]
        options = {name: getattr(request, name) for name in _OPTIONS if getattr(request, name) != _OPTIONS[name]}
        values = [contents, *(getattr(request, name) for name in _PLAIN), *([options] if options else ())]
        digest.update(json.dumps(values).encode())
    return digest.hexdigest()


def _head(schedule: Schedule) -> dict[str, object]:
    """Everything but the requests. JSON keeps floats exactly: Python writes the text that reads back the same."""
    return {
        "version": _VERSION,
        "workload": schedule.workload,
        "seed": schedule.seed,
        "round": schedule.round,
        "phases": [asdict(phase) for phase in schedule.phases],
        "concurrency": schedule.concurrency,
        "request_timeout_s": schedule.request_timeout_s,
        **({"canaries": list(schedule.canaries)} if schedule.canaries else {}),
    }


def _requests(table: pa.Table, canaries: Sequence[int]) -> Iterator[PlannedRequest]:
    """A request's segments have its tenant's canary, all of them, so the file does not repeat it."""
    contents = zip(table.column("identities").to_pylist(), table.column("tokens").to_pylist(), strict=True)
    options = _options(table)
    rows = zip(*(table.column(name).to_pylist() for name in _PLAIN), strict=True)
    for (identities, lengths), row in zip(contents, rows, strict=True):
        own = next(options)
        tenant = own.get("tenant")
        canary = None if tenant is None else canaries[tenant]
        segments = tuple(Segment(*one, canary) for one in zip(identities, lengths, strict=True))
        yield PlannedRequest(segments=segments, **dict(zip(_PLAIN, row, strict=True)), **own)


def _options(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Of each request what it has of the options that the file knows; an older file knows fewer."""
    names = [name for name in _OPTIONS if name in table.column_names]
    if not names:
        yield from ({} for _ in range(table.num_rows))
    for row in table.select(names).to_pylist():
        yield {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
