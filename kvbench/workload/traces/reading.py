"""Opens a trace file, tells its format from its content, and reads it line by line. Gzip is recognised as well."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from kvbench.errors import InputError, Where
from kvbench.workload.traces import azure, weka
from kvbench.workload.traces.block_size import infer_block_tokens
from kvbench.workload.traces.fields import parse_json
from kvbench.workload.traces.jsonl import READERS, read_lines
from kvbench.workload.traces.trace import Columns, Trace

__all__ = ["FORMATS", "read_trace"]

FORMATS = ("mooncake", "sessions", "bailian", "weka", "azure")
"""`sessions` is Mooncake's form with a `session_id`: LMCache's ids, flattened WEKA files, generators."""

_OTHER_NAMES = {"lmcache": "sessions", "weka-overlay": "sessions", "weka-native": "weka", "qwen-bailian": "bailian"}
_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 4096


def read_trace(path: Path, *, format_: str | None = None, block_tokens: int | None = None) -> Trace:
    """The whole trace in columns.

    `format_` is one of `FORMATS` (None: told from the content); `block_tokens` is the size of the block that an id
    stands for (None: the file says, or it follows from the lengths). InputError names file and line.
    """
    columns = Columns(path)
    with _opened(path) as stream:
        chosen = _chosen(format_, path) or _detected(stream, path)
        said = None
        unit_s = 1.0
        if chosen == "weka":
            said = weka.read_document(stream.read(), path, columns)
        elif chosen == "azure":
            azure.read_rows(stream, path, columns)
        else:
            reader, unit_s = READERS[chosen]
            read_lines(stream, path, columns, reader)
    trace = columns.trace(chosen, unit_s, block_tokens or said)
    if not len(trace):
        raise InputError("no requests in this trace", where=Where(path))
    if len(trace.blocks) == 0 or trace.block_tokens is not None:
        return trace
    found = infer_block_tokens(trace.input_tokens, trace.offsets[1:] - trace.offsets[:-1])
    if found is None:
        raise InputError(
            "how many tokens an id stands for cannot be told from the lengths of requests and id lists",
            where=Where(path),
            do="say it: block_tokens: 512 beside path in a workload, --block-tokens 512 on the command line",
        )
    return columns.trace(chosen, unit_s, found)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed; whatever the system says about reading becomes an InputError."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError("the compressed file is damaged or cut short", where=Where(path)) from None
    except OSError as error:
        raise InputError(f"this trace cannot be read: {error.strerror or error}", where=Where(path)) from None


def _chosen(format_: str | None, path: Path) -> str | None:
    if format_ is None or format_ == "auto":
        return None
    name = _OTHER_NAMES.get(format_, format_)
    if name not in FORMATS:
        raise InputError(
            f"no trace format is called {format_!r}", where=Where(path), do=f"choose one of {', '.join(FORMATS)}"
        )
    return name


def _detected(stream: IO[bytes], path: Path) -> str:
    """From the first line that says something; the stream is back at its start afterwards."""
    head = stream.read(_HEAD_BYTES)
    stream.seek(0)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(azure.HEADER[0].encode()):
        return "azure"
    for line_number, line in enumerate(stream, start=1):
        if line.isspace():
            continue
        name = _format_of_line(line, Where(path, line_number))
        stream.seek(0)
        return name
    raise InputError("this trace is empty", where=Where(path))


def _format_of_line(line: bytes, where: Where) -> str:
    if line.strip() == b"{" or (b'"requests"' in line and b'"block_size"' in line):
        return "weka"
    record = parse_json(line, where)
    if isinstance(record, dict) and "timestamp" in record:
        if "parent_chat_id" in record:
            return "bailian"
        return "sessions" if "session_id" in record else "mooncake"
    raise InputError(
        "this is no trace in a format that is known",
        where=where,
        do=f"the formats are {', '.join(FORMATS)}; see the documentation of traces for their fields",
    )
