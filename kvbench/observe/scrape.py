"""Scrapes an engine's metrics once a second while a round runs, on a thread of its own.

The hot path fetches, stores the text and parses a handful of names; the rest is parsed when the round is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from kvbench.errors import RecordError
from kvbench.judge.evidence import ScrapeSummary
from kvbench.observe.attempts import Attempt, Result, summarise
from kvbench.observe.beginnings import Beginnings
from kvbench.observe.canonical import parse_engine, summed, totals
from kvbench.observe.continuity import Beginning
from kvbench.observe.exposition import parse
from kvbench.observe.fetch import Fetched, client, fetch
from kvbench.observe.grid import beats
from kvbench.observe.iteration_stats import IterationStats, looks_like_iteration_stats
from kvbench.observe.metric_table import PROCESS_START
from kvbench.observe.raw import RAW_NAME, append_scrape, read_scrapes
from kvbench.observe.rows import metric_rows
from kvbench.record.atomic import write_table
from kvbench.spec.access import NO_ACCESS, Access

__all__ = ["PERIOD_S", "Scraper", "scrape_once"]

PERIOD_S = 1.0
TIMEOUT_S = 5.0
"""Longer than any healthy answer (milliseconds; a busy two-core engine took up to a second)."""

_LIVE = frozenset(
    {
        PROCESS_START,
        "vllm:prompt_tokens",
        "vllm:prompt_tokens_created",
        "vllm:generation_tokens",
        "vllm:prompt_tokens_cached",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "trtllm_prompt_tokens",
        "trtllm_generation_tokens",
        "trtllm_prompt_cached_tokens",
        "trtllm_num_requests_running",
        "trtllm_num_requests_waiting",
        "trtllm_kv_cache_utilization",
        "kvbench_requests_running",
        "kvbench_requests_waiting",
    }
)


def scrape_once(url: str, *, access: Access = NO_ACCESS, timeout_s: float = TIMEOUT_S) -> dict[str, float]:
    """Canonical counters and gauges by name, summed over labels; empty when the server exposes none.

    Iteration records that are asked for here are seen by nobody else.
    """
    with client(timeout_s, access) as http:
        fetched = fetch(http, url, timeout_s)
    if looks_like_iteration_stats(fetched.text):
        records = IterationStats()
        records.add(fetched.text)
        return summed(records.samples())
    return totals(parse_engine(fetched.text, buckets=False))


class Scraper:
    """One round's scraping. `start`, then `stop` (which writes) or `close` (which does not)."""

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        access: Access = NO_ACCESS,
        period_s: float = PERIOD_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`directory` is the round's; `metrics.raw.jsonl.gz` grows there, `metrics.parquet` follows at the end."""
        self._url = url
        self._directory = directory
        self._raw = directory / RAW_NAME
        self._http = client(timeout_s, access)
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._attempts: list[Attempt] = []
        self._latest: dict[str, float] = {}
        self._successions = Beginnings()
        self._beginnings: list[Beginning] = []
        self._records = IterationStats()
        self._failure: Exception | None = None
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvbench-scraper", daemon=True)

    def start(self) -> None:
        """Begin; the first scrape is made at once."""
        self._raw.unlink(missing_ok=True)
        self._thread.start()

    def latest(self) -> dict[str, float]:
        """Newest values of the names that progress and the watch need; empty before the first scrape."""
        return self._latest

    def beginnings(self) -> Sequence[Beginning]:
        """Every time that the server's counters began anew so far, in order."""
        return self._beginnings

    def scrape_now(self) -> None:
        """One scrape out of turn, from the caller's thread: the counters between priming and time zero."""
        if self._failure is None and not self._http.is_closed:
            self._scrape()

    def stop(
        self, origin: float, *, measured: tuple[float, float], answered_until_s: float | None = None
    ) -> ScrapeSummary:
        """Scrape a last time, write `metrics.parquet` and say how it went.

        `origin` is the round's time zero on the monotonic clock; `measured` and `answered_until_s` (when a request
        was last answered) are seconds from it. RecordError when the disk refused.
        """
        self._end_thread()
        self.scrape_now()
        self.close()
        if isinstance(self._failure, OSError):
            raise RecordError(
                f"cannot write {self._raw}: {self._failure.strerror or self._failure}",
                do="free space, then --resume",
            )
        if self._failure is not None:
            raise self._failure
        scrapes = read_scrapes(self._raw) if self._raw.exists() else iter(())
        write_table(self._directory / "metrics.parquet", metric_rows(scrapes, origin))
        return summarise(
            self._attempts,
            span=(origin + measured[0], origin + measured[1]),
            period_s=self._period_s,
            answered_until=None if answered_until_s is None else origin + answered_until_s,
        )

    def close(self) -> None:
        """End the thread and the connection; what was stored stays."""
        self._end_thread()
        self._http.close()

    def __enter__(self) -> Scraper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_thread(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()  # at most one time-out

    def _run(self) -> None:
        try:
            for _ in beats(self._period_s, self._stop):
                self._scrape()
                if self._failure is not None:
                    return
        except Exception as error:  # noqa: BLE001 - raised again by `stop`, on the thread that can act on it
            self._failure = error

    def _scrape(self) -> None:
        with self._one_at_a_time:
            fetched = fetch(self._http, self._url, self._timeout_s)
            try:
                append_scrape(self._raw, fetched)
            except OSError as error:
                self._failure = error
            self._attempts.append(fetched.attempt)
            if fetched.attempt.result is Result.OK:
                self._latest = self._live(fetched)
            else:
                self._successions.missed(fetched.attempt.result)

    def _live(self, fetched: Fetched) -> dict[str, float]:
        if looks_like_iteration_stats(fetched.text):
            self._records.add(fetched.text)
            return summed(self._records.samples())
        exposition = parse(fetched.text, _LIVE)
        began = self._successions.seen(exposition, time.time())
        if began is not None:
            self._beginnings.append(began)
        return totals(exposition)
