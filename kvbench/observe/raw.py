"""Raw scrapes on disk, as they came: one gzip member a scrape, so that a crash loses at most the last one."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from kvbench.observe.attempts import Attempt, Result
from kvbench.observe.fetch import Fetched

__all__ = ["RAW_NAME", "append_scrape", "read_scrapes"]

RAW_NAME = "metrics.raw.jsonl.gz"
"""Lines of JSON: started, ended (monotonic seconds), result, status, error, text. `zcat` reads it."""


def append_scrape(file: Path, scrape: Fetched) -> None:
    """Level 1: half a millisecond for vLLM's 80 kB, which shrink to a tenth."""
    entry = {
        "started": scrape.attempt.started,
        "ended": scrape.attempt.ended,
        "result": scrape.attempt.result,
        "status": scrape.status,
        "error": scrape.error,
        "text": scrape.text,
    }
    with file.open("ab") as stream:
        stream.write(gzip.compress((json.dumps(entry) + "\n").encode(), compresslevel=1))


def read_scrapes(file: Path) -> Iterator[Fetched]:
    """Every scrape in order; a last one that was cut off is left out. OSError when there is no file."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        try:
            for line in stream:
                yield _scrape(json.loads(line))
        except (EOFError, zlib.error, gzip.BadGzipFile, json.JSONDecodeError):
            return  # a crash cut the last member


def _scrape(entry: dict[str, object]) -> Fetched:
    attempt = Attempt(float(str(entry["started"])), float(str(entry["ended"])), Result(str(entry["result"])))
    status = entry["status"]
    return Fetched(attempt, status if isinstance(status, int) else None, str(entry["text"]), str(entry["error"]))
