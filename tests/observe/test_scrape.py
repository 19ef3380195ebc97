"""Scraping a real loopback server: what it does wrong is attributed to whom it belongs."""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError, RecordError
from kvbench.observe.attempts import Attempt, Result, summarise
from kvbench.observe.fetch import Fetched, client, fetch
from kvbench.observe.grid import beats
from kvbench.observe.raw import RAW_NAME, read_scrapes
from kvbench.observe.rows import metric_rows
from kvbench.observe.scrape import Scraper, scrape_once
from kvbench.spec.access import Access

PERIOD_S = 0.05
TIMEOUT_S = 0.3
EXPOSITION = """\
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0"}} {prompt}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} 2
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{{source="local_compute"}} {prompt}
vllm:prompt_tokens_by_source_total{{source="external_kv_transfer"}} {elsewhere}
# TYPE vllm:prompt_tokens_cached_by_source_total counter
vllm:prompt_tokens_cached_by_source_total{{source="host"}} 0
vllm:prompt_tokens_cached_by_source_total{{source="external_unspecified"}} {elsewhere}
"""


class Server(ThreadingHTTPServer):
    """Answers `/metrics` as `mode` says; counts."""

    daemon_threads = True
    mode = "ok"
    requests = 0
    prompt = 0
    elsewhere = 0
    authorization: str | None = None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.requests += 1
        server.prompt += 10
        server.authorization = self.headers.get("Authorization")
        bodies = {"404": "{}", "500": "oops", "html": "<html>hello</html>"}
        if server.mode == "hang":
            time.sleep(TIMEOUT_S * 1.5)
        if server.mode == "drip":
            self._drip()
            return
        text = bodies.get(server.mode, EXPOSITION.format(prompt=server.prompt, elsewhere=server.elsewhere))
        if server.mode == "records":
            text = f'[{{"iter": {server.requests}, "numActiveRequests": 2, "numCompletedRequests": 1}}]'
        body = text.encode()
        self.send_response({"404": 404, "500": 500}.get(server.mode, 200))
        if "gzip" in server.mode:
            assert "gzip" in self.headers["Accept-Encoding"]
            body = gzip.compress(body)
            body = body[1:] if server.mode == "damaged gzip" else body
            self.send_header("Content-Encoding", "gzip")
        missing = 100 if server.mode == "cut off" else 0
        self.close_connection = bool(missing)
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(20):
            self.wfile.write(b"# TYPE a counter\n")
            time.sleep(TIMEOUT_S / 4)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/metrics"


def scraper_of(server: Server, folder: Path, **more: object) -> Scraper:
    return Scraper(url_of(server), folder, period_s=PERIOD_S, timeout_s=TIMEOUT_S, **more)  # type: ignore[arg-type]


def until(condition: object, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_a_round_is_scraped_stored_raw_and_written_as_rows(server: Server, tmp_path: Path) -> None:
    scraper = scraper_of(server, tmp_path)
    scraper.start()
    until(lambda: server.requests >= 3)
    origin = time.monotonic()
    until(lambda: server.requests >= 8)
    assert scraper.latest()["requests_running"] == 2
    summary = scraper.stop(origin, measured=(0.0, time.monotonic() - origin))
    assert summary.supported
    assert not summary.vanished
    assert summary.engine_stalled == 0
    assert summary.succeeded >= 3
    scrapes = list(read_scrapes(tmp_path / RAW_NAME))
    assert len(scrapes) == server.requests, "the last scrape is made by stop"
    table = pd.read_parquet(tmp_path / "metrics.parquet")
    prompt = table[table["name"] == "prompt_tokens"]
    assert list(prompt["value"]) == [10.0 * n for n in range(1, server.requests + 1)]
    assert prompt["t_s"].is_monotonic_increasing
    assert prompt["t_s"].iloc[0] < 0 < prompt["t_s"].iloc[-1]
    assert '{"source": "host"}' in set(table["labels"])


@pytest.mark.parametrize(
    ("mode", "result"),
    [
        ("ok", Result.OK),
        ("records", Result.OK),
        ("404", Result.NO_METRICS),
        ("html", Result.NO_METRICS),
        ("500", Result.STALLED),
        ("hang", Result.STALLED),
        ("drip", Result.STALLED),
        ("gzip", Result.OK),
        ("damaged gzip", Result.STALLED),
        ("cut off", Result.STALLED),
    ],
)
def test_what_a_server_answers_is_classified(server: Server, mode: str, result: Result) -> None:
    server.mode = mode
    with client(TIMEOUT_S) as http:
        fetched = fetch(http, url_of(server), TIMEOUT_S)
    assert fetched.attempt.result is result
    assert bool(fetched.text) == (result is Result.OK)
    assert fetched.attempt.ended - fetched.attempt.started < 10 * TIMEOUT_S


def test_a_page_that_comes_compressed_is_the_same_page(server: Server) -> None:
    plain = scrape_once(url_of(server))
    server.mode, server.prompt = "gzip", 0
    assert scrape_once(url_of(server)) == plain != {}


def test_nothing_that_listens_is_unreachable(server: Server) -> None:
    server.server_close()
    server.shutdown()
    with client(TIMEOUT_S) as http:
        assert fetch(http, url_of(server), TIMEOUT_S).attempt.result is Result.UNREACHABLE
        assert fetch(http, "nonsense://x", TIMEOUT_S).attempt.result is Result.UNREACHABLE
    assert scrape_once(url_of(server)) == {}


def test_an_endless_answer_is_not_metrics(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.observe.fetch.MAX_BYTES", 100)
    with client(TIMEOUT_S) as http:
        assert fetch(http, url_of(server), TIMEOUT_S).attempt.result is Result.NO_METRICS


def test_metrics_that_vanish_while_the_server_answers_are_told(server: Server, tmp_path: Path) -> None:
    scraper = scraper_of(server, tmp_path)
    scraper.start()
    until(lambda: server.requests >= 3)
    origin = time.monotonic()
    server.mode = "404"
    before = server.requests
    until(lambda: server.requests >= before + 4)
    summary = scraper.stop(origin, measured=(0.0, 1.0))
    assert summary.supported
    assert summary.vanished


def test_a_server_without_metrics_is_unsupported_not_empty(server: Server, tmp_path: Path) -> None:
    server.mode = "404"
    scraper = scraper_of(server, tmp_path)
    scraper.start()
    until(lambda: server.requests >= 2)
    summary = scraper.stop(time.monotonic(), measured=(0.0, 1.0))
    assert not summary.supported
    assert not summary.vanished
    assert scraper.latest() == {}
    assert len(pd.read_parquet(tmp_path / "metrics.parquet")) == 0
    assert scrape_once(url_of(server)) == {}


def test_a_stalled_engine_is_not_our_gap(server: Server, tmp_path: Path) -> None:
    scraper = scraper_of(server, tmp_path)
    origin = time.monotonic()
    scraper.start()
    until(lambda: server.requests >= 3)
    server.mode = "hang"
    until(lambda: any(s.attempt.result is Result.STALLED for s in read_scrapes(tmp_path / RAW_NAME)))
    server.mode = "ok"
    now = server.requests
    until(lambda: server.requests >= now + 3)
    summary = scraper.stop(origin, measured=(0.0, time.monotonic() - origin))
    assert summary.engine_stalled >= TIMEOUT_S / PERIOD_S - 1
    assert summary.longest_gap_ours_s < TIMEOUT_S


def test_iteration_records_are_scraped_each_once(server: Server, tmp_path: Path) -> None:
    server.mode = "records"
    scraper = scraper_of(server, tmp_path)
    scraper.start()
    until(lambda: server.requests >= 3)
    assert scraper.latest()["requests_running"] == 2
    assert scraper.latest()["requests_finished"] >= 1
    assert scraper.stop(time.monotonic(), measured=(0.0, 1.0)).supported
    rows = pd.read_parquet(tmp_path / "metrics.parquet").query("name == 'requests_finished'")
    assert list(rows["value"]) == [float(n) for n in range(1, server.requests + 1)]
    before = server.requests
    assert scrape_once(url_of(server)) == {"requests_running": 2, "requests_finished": 1}
    assert server.requests == before + 1


def test_a_page_cut_into_pieces_by_a_proxy_is_no_scrape_of_zeros() -> None:
    """Given a page whose last line was cut, then its family is unknown and the others are known."""
    text = EXPOSITION.format(prompt=10, elsewhere=0)
    whole = Fetched(Attempt(0, 0, Result.OK), 200, text + 'vllm:num_requests_running{engine="1"')
    table = metric_rows([whole], 0.0).to_pandas()
    assert "requests_running" not in set(table["name"])
    assert table.query("name == 'prompt_tokens'")["value"].to_list() == [10.0]


def test_a_server_that_hides_its_tiers_leaves_them_unknown(server: Server, tmp_path: Path) -> None:
    scraper = scraper_of(server, tmp_path)
    scraper.start()
    until(lambda: server.requests >= 2)
    server.elsewhere = 5
    until(lambda: server.requests >= 4)
    scraper.stop(time.monotonic(), measured=(0.0, 1.0))
    table = pd.read_parquet(tmp_path / "metrics.parquet")
    sources = set(table[table["name"] == "prompt_tokens_by_source"]["labels"])
    assert sources == {'{"source": "computed"}', '{"source": "device"}', '{"source": "elsewhere"}'}


def test_the_key_is_taken_from_the_environment_by_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "abc")
    assert scrape_once(url_of(server), access=Access(api_key_env="SOME_KEY"))["prompt_tokens"] == 10
    assert server.authorization == "Bearer abc"
    with pytest.raises(InputError, match="the environment has no ANOTHER_KEY"):
        scrape_once(url_of(server), access=Access(api_key_env="ANOTHER_KEY"))
    scrape_once(url_of(server))
    assert server.authorization is None


def test_a_scrape_out_of_turn_is_one_more_row_at_its_moment(server: Server, tmp_path: Path) -> None:
    """Time zero lies between two beats; what was counted before it must not count as measured."""
    scraper = Scraper(url_of(server), tmp_path, period_s=30.0, timeout_s=TIMEOUT_S)
    scraper.start()
    until(scraper.latest)
    server.prompt = 7
    scraper.scrape_now()
    zero = time.monotonic()
    server.prompt = 50
    scraper.stop(zero, measured=(0.0, 1.0))
    rows = pd.read_parquet(tmp_path / "metrics.parquet").query("name == 'prompt_tokens'")
    assert list(rows["value"])[1:] == [17.0, 60.0]  # the server adds 10 a scrape
    assert list(rows["t_s"] <= 0.0) == [True, True, False]


def test_closing_ends_the_thread_and_keeps_what_was_stored(server: Server, tmp_path: Path) -> None:
    with scraper_of(server, tmp_path):
        until(lambda: server.requests >= 2)
    count = server.requests
    time.sleep(3 * PERIOD_S)
    assert server.requests == count
    assert not any(thread.name == "kvbench-scraper" for thread in threading.enumerate())
    assert list(read_scrapes(tmp_path / RAW_NAME))
    assert not (tmp_path / "metrics.parquet").exists()


def test_a_disk_that_refuses_is_an_error_of_the_run(server: Server, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    scraper = scraper_of(server, tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    scraper.start()
    until(lambda: server.requests >= 1)
    with pytest.raises(RecordError, match=r"cannot write .*metrics\.raw\.jsonl\.gz: No such file"):
        scraper.stop(time.monotonic(), measured=(0.0, 1.0))


def test_a_crash_loses_at_most_the_last_scrape(server: Server, tmp_path: Path) -> None:
    with scraper_of(server, tmp_path):
        until(lambda: server.requests >= 4)
    file = tmp_path / RAW_NAME
    whole = list(read_scrapes(file))
    os.truncate(file, file.stat().st_size - 10)
    assert list(read_scrapes(file)) == whole[:-1]
    assert metric_rows(read_scrapes(file), 0.0).num_rows > 0


OK, STALLED, GONE, REFUSED = Result.OK, Result.STALLED, Result.NO_METRICS, Result.UNREACHABLE


def attempts(*moments: tuple[float, float, Result]) -> list[Attempt]:
    return [Attempt(*moment) for moment in moments]


def test_a_gap_is_ours_when_nobody_was_asking() -> None:
    late = attempts((0, 0.1, OK), (1, 1.1, OK), (6, 6.1, OK), (7, 7.1, OK))
    summary = summarise(late, span=(0, 8), period_s=1)
    assert summary.longest_gap_ours_s == pytest.approx(5.0)
    assert (summary.expected, summary.succeeded, summary.engine_stalled) == (8, 4, 0)


def test_beats_that_pass_while_the_engine_is_silent_are_the_engines() -> None:
    slow = attempts((0, 0.1, OK), (1, 6.0, STALLED), (7, 7.1, OK))
    summary = summarise(slow, span=(0, 8), period_s=1)
    assert (summary.succeeded, summary.engine_stalled) == (2, 6)
    assert summary.longest_gap_ours_s <= 2.0


def test_metrics_have_vanished_only_when_requests_went_on_being_answered() -> None:
    dead = attempts((0, 0, OK), *((t, t, REFUSED) for t in range(1, 6)))
    assert not summarise(dead, span=(0, 6), period_s=1).vanished
    assert not summarise(dead, span=(0, 6), period_s=1, answered_until=1.5).vanished
    assert summarise(dead, span=(0, 6), period_s=1, answered_until=6.0).vanished
    back = attempts((0, 0, OK), *((t, t, GONE) for t in range(1, 6)), (6, 6, OK))
    assert not summarise(back, span=(0, 7), period_s=1).vanished


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.sampled_from(list(Result))), max_size=30),
    st.floats(1, 60),
)
def test_any_history_has_a_sane_summary(steps: list[tuple[float, float, Result]], length: float) -> None:
    now, history = 0.0, []
    for wait, duration, result in steps:
        history.append(Attempt(now + wait, now + wait + duration, result))
        now += wait + duration
    summary = summarise(history, span=(0.0, length), period_s=1.0)
    assert summary.expected >= 1
    assert 0 <= summary.succeeded <= len(history)
    assert summary.longest_gap_ours_s <= length + 1
    assert summary.supported == any(a.result is Result.OK for a in history)


def test_missed_beats_are_skipped_not_made_up_for() -> None:
    stop = threading.Event()
    seen = []
    for beat in beats(0.02, stop):
        seen.append(beat)
        if len(seen) == 2:
            time.sleep(0.07)
        if len(seen) == 4:
            stop.set()
    steps = [round((b - seen[0]) / 0.02) for b in seen]
    assert steps[:2] == [0, 1]
    assert steps[2] >= 5
    assert len(set(steps)) == len(steps)
