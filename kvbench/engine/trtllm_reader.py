"""The one reader of a TensorRT-LLM server's statistics, and a metrics page of its own that everybody may scrape.

`/metrics`, `/perf_metrics` and `/kv_cache_events` give each record to whoever asks first, so nobody else may ask.
What was read is kept as it came; the page adds the sums to the server's own Prometheus metrics. Times in seconds.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from pydantic_core import from_json

from kvbench.engine.metrics_page import MetricsPage
from kvbench.engine.trtllm_ledger import TrtllmLedger
from kvbench.load.outcome import encodable

__all__ = ["RECORDS_NAME", "TrtllmReader"]

RECORDS_NAME = "trtllm-records.jsonl.gz"
"""Lines of JSON: t_s (monotonic), kind, records. `zcat` reads it."""

POLL_S = 0.25
"""The server keeps a thousand iterations (max_stats_len): at 5 ms each they last five seconds."""

ANSWER_S = 10.0
"""A call waits up to two seconds for news by itself."""

PAGE_S = 4.0
"""For the server's own Prometheus page; less than whoever scrapes waits for the whole."""


_MOMENT = re.compile(r"(# (HELP|TYPE) )?trtllm_kv_cache_(host_utilization|utilization|iter_reuse_rate)\b")
"""Gauges of the last iteration, however long that is ago."""


class TrtllmReader:
    """Reads from its making on until `close`."""

    def __init__(self, base_url: str, directory: Path, ledger: TrtllmLedger) -> None:
        """`directory`: where the records are kept."""
        self.ledger = ledger
        self._base_url = base_url
        self._file = directory / RECORDS_NAME
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failure: str | None = None
        """Why the page has no sums any more."""
        self._missing: set[str] = set()
        surfaces: tuple[tuple[str, str, Callable[[list[Any]], None]], ...] = (
            ("GET", "/metrics", ledger.take_iterations),
            ("POST", "/kv_cache_events", ledger.take_events),
            ("GET", "/perf_metrics", lambda _: None),  # kept for whoever looks at single requests
        )
        self._threads = [
            threading.Thread(target=self._read, args=surface, name=f"kvbench{surface[1]}", daemon=True)
            for surface in surfaces
        ]
        self._http = httpx.Client(base_url=base_url, timeout=PAGE_S, trust_env=False)
        self._page = MetricsPage(self.page)
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        """The page to scrape."""
        return self._page.url

    @property
    def missing(self) -> tuple[str, ...]:
        """Statistics that this server does not have."""
        return tuple(sorted(self._missing))

    def wait_for(self, told: Callable[[TrtllmLedger], bool], seconds: float) -> bool:
        """Whether the server tells something in time."""
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:
                if told(self.ledger):
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)

    def forget_moment(self) -> None:
        """See the ledger."""
        with self._lock:
            self.ledger.forget_moment()

    def close(self) -> None:
        """End reading; what is under way is waited for no longer than one answer takes."""
        self._stop.set()
        self._page.close()
        self._http.close()
        for thread in self._threads:
            thread.join(ANSWER_S + 1.0)

    def _read(self, method: str, path: str, take: Callable[[list[Any]], None]) -> None:
        try:
            with httpx.Client(base_url=self._base_url, trust_env=False, timeout=ANSWER_S) as client:
                while not self._stop.wait(POLL_S):
                    self._take(self._ask(client, method, path), path, take)
        except Exception as error:  # noqa: BLE001 - the page says it to whoever scrapes: this thread has nobody else
            self._failure = f"{method} {path} is not read any more: {type(error).__name__}: {encodable(str(error))}"

    def _take(self, records: list[Any] | None, path: str, take: Callable[[list[Any]], None]) -> None:
        if records is None:
            return
        with self._lock:
            take(records)
            if records:
                self._keep(path, records)

    def _ask(self, client: httpx.Client, method: str, path: str) -> list[Any] | None:
        """Records, if there are any; None when the server did not say."""
        try:
            answer = client.request(method, path)
            if answer.status_code in (404, 405):
                self._missing.add(path)
                self._stop.wait(5.0)
            found = from_json(answer.content) if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None
        return [record for record in found if isinstance(record, dict)] if isinstance(found, list) else None

    def _keep(self, path: str, records: list[Any]) -> None:
        """One gzip member a batch, so that a crash loses at most the last; without the tokens of stored blocks."""
        if path == "/kv_cache_events":
            records = [_without_tokens(record) for record in records]
        entry = {"t_s": time.monotonic(), "kind": path.removeprefix("/"), "records": records}
        try:
            with self._file.open("ab") as stream:
                stream.write(gzip.compress((json.dumps(entry) + "\n").encode(), compresslevel=1))
        except OSError as error:
            self._failure = f"the records cannot be kept: {error.strerror}"

    def page(self) -> tuple[int, str]:
        """Status and text: the server's own page and the sums. 503 when the server does not answer, 500 when its
        statistics are not read or kept any more: sums that stand still would pass for those of an idle server."""
        if self._failure is not None:
            return 500, f"{self._failure}\n"
        try:
            answer = self._http.get("/prometheus/metrics", follow_redirects=True)
        except httpx.HTTPError as error:
            return 503, f"the server does not answer: {type(error).__name__}\n"
        if answer.status_code >= 500:
            return 503, f"the server answers {answer.status_code}\n"
        own = answer.text.splitlines() if answer.status_code == 200 else []
        with self._lock:
            if not self.ledger.has_moment:
                own = [line for line in own if not _MOMENT.match(line)]
            return 200, "".join(f"{line}\n" for line in own) + self.ledger.exposition()


def _without_tokens(event: dict[str, Any]) -> dict[str, Any]:
    data = event.get("data")
    blocks = data.get("blocks") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(blocks, list):
        return event
    kept = [{k: v for k, v in block.items() if k != "tokens"} for block in blocks if isinstance(block, dict)]
    return {**event, "data": {**data, "blocks": kept}}
