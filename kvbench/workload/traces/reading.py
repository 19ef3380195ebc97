"""Reads a trace: tells its format from its content, then line by line or, a recorded run, from its schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from kvbench.errors import InputError, Where
from kvbench.workload.traces import lengths_only, recorded_run, request_log, weka
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.block_size import infer_block_tokens
from kvbench.workload.traces.fields import parse_json
from kvbench.workload.traces.jsonl import READERS, read_lines
from kvbench.workload.traces.lines import lines_of
from kvbench.workload.traces.opening import opened
from kvbench.workload.traces.trace import MOST_TOKENS, Columns, Trace

__all__ = ["FORMATS", "read_trace"]

FORMATS = ("mooncake", "sessions", "bailian", "weka", "azure", "burstgpt", "requests", "kvbench")
"""`sessions` is Mooncake's form with a `session_id`: LMCache's ids, flattened WEKA files, generators. `requests`
are logs as of OpenAI's and vLLM's servers: messages, texts or token ids. `kvbench` is a recorded run.
"""

_OTHER_NAMES = {
    "lmcache": "sessions",
    "weka-overlay": "sessions",
    "weka-native": "weka",
    "qwen-bailian": "bailian",
    "openai": "requests",
    "vllm": "requests",
}
_HEAD_LINES = 20
"""Lines in which a format is looked for, where bad ones may be skipped."""

_LONGEST_S = 366 * 86_400.0
"""From the first request to any other: beyond it, times of two kinds (since 1970, since a start) are mixed."""


def read_trace(
    path: Path, *, format_: str | None = None, block_tokens: int | None = None, bad_lines: BadLines | None = None
) -> Trace:
    """The whole trace in columns.

    `format_` is one of `FORMATS` (None: told from the content); `block_tokens` is the size of the block that an id
    stands for, or that contents are cut into (None: the file says, or it follows from the lengths). As many bad
    lines as `bad_lines` allows are left out and noted there, else the first is an InputError with file and line.
    """
    bad = bad_lines or BadLines()
    chosen = _chosen(format_, path)
    if block_tokens is not None and not 1 <= block_tokens <= MOST_TOKENS:
        raise InputError(f"an id cannot stand for {block_tokens} tokens", where=Where(path))
    if _is_folder(path) or chosen == "kvbench":
        return _some(recorded_run.read_run(path, block_tokens), bad)
    if chosen is None:
        with opened(path) as stream:
            chosen = _detected(lines_of(stream), path, bad)
    unit_s = READERS[chosen][1] if chosen in READERS else 1.0
    columns = Columns(path, _LONGEST_S / unit_s)
    width = 0.0
    if chosen == "requests":
        with opened(path) as stream:
            width = request_log.bytes_a_token(lines_of(stream), path)
    with opened(path) as stream:
        said = None
        if chosen == "weka":
            said = weka.read_document(stream, path, columns, bad)
        elif chosen in lengths_only.LAYOUTS:
            lengths_only.read_rows(lines_of(stream), path, columns, lengths_only.LAYOUTS[chosen], bad)
        elif chosen == "requests":
            said = block_tokens or request_log.BLOCK_TOKENS
            request_log.read_requests(lines_of(stream), path, columns, said, width, bad)
        else:
            read_lines(stream, path, columns, READERS[chosen][0], bad)
    trace = _some(columns.trace(chosen, unit_s, block_tokens or said), bad)
    if not trace.references or trace.block_tokens is not None:
        return trace
    found = infer_block_tokens(trace.input_tokens, trace.offsets[1:] - trace.offsets[:-1])
    if found is None:
        raise InputError(
            "how many tokens an id stands for cannot be told from the lengths of requests and id lists",
            where=Where(path),
            do="say it: block_tokens: 512 beside path in a workload, --block-tokens 512 on the command line",
        )
    return replace(trace, block_tokens=found)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise InputError(f"this trace cannot be read: {error.strerror}", where=Where(path)) from None


def _some(trace: Trace, bad: BadLines) -> Trace:
    if len(trace):
        return trace
    if bad.first:
        line, what = bad.first[0]
        raise InputError(f"no request in this trace can be read: {what}", where=Where(trace.path, line))
    raise InputError("no requests in this trace", where=Where(trace.path))


def _chosen(format_: str | None, path: Path) -> str | None:
    if format_ is None or format_ == "auto":
        return None
    name = _OTHER_NAMES.get(format_, format_)
    if name not in FORMATS:
        raise InputError(
            f"no trace format is called {format_!r}", where=Where(path), do=f"choose one of {', '.join(FORMATS)}"
        )
    return name


def _detected(stream: Iterable[bytes], path: Path, bad: BadLines) -> str:
    """From the first line that says something; where bad lines may be skipped, from one of the first."""
    refused: InputError | None = None
    for line_number, line in enumerate(islice(stream, _HEAD_LINES if bad.limit else None), start=1):
        if line.isspace():
            continue
        try:
            return _format_of_line(line, Where(path, line_number))
        except InputError as error:
            refused = refused or error
            if not bad.limit:
                break
    raise refused or InputError("this trace is empty", where=Where(path))


def _format_of_line(line: bytes, where: Where) -> str:
    table = lengths_only.layout_of(line)
    if table is not None:
        return table
    if line.strip() == b"{" or (b'"requests"' in line and b'"block_size"' in line):
        return "weka"
    record = parse_json(line, where)
    if isinstance(record, dict) and "timestamp" in record and "hash_ids" in record:
        if "parent_chat_id" in record:
            return "bailian"
        return "sessions" if "session_id" in record else "mooncake"
    if isinstance(record, dict) and request_log.looks_like(record):
        return "requests"
    if isinstance(record, dict) and "timestamp" in record:
        return "mooncake"  # which then says what it lacks
    raise InputError(
        "this is no trace in a format that is known",
        where=where,
        do=f"the formats are {', '.join(FORMATS)}; see the documentation of traces for their fields",
    )
