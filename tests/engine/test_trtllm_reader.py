"""The one reader of TensorRT-LLM's statistics, at a server that gives each of its answers out once."""

from __future__ import annotations

import gzip
import http.server
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvbench.engine.trtllm_ledger import TrtllmLedger
from kvbench.engine.trtllm_reader import RECORDS_NAME, TrtllmReader
from tests.engine.answering import Answering
from tests.engine.test_keeper import wait_for
from tests.engine.test_trtllm_ledger import ODD_EVENTS, created, record, told_so_far

LONG_S = 30.0
"""Far more than it takes: each route is asked four times a second."""


@contextmanager
def reading(
    folder: Path, answers: Mapping[str, list[str]], ledger: TrtllmLedger | None = None
) -> Iterator[TrtllmReader]:
    """At a server that has these answers by path, and then nothing new."""
    left = {path: list(texts) for path, texts in answers.items()}

    class Statistics(Answering):
        def do_GET(self) -> None:
            waiting = left.get(self.path)
            self.answer(404 if waiting is None else 200, waiting.pop(0) if waiting else "[]")

        do_POST = do_GET

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Statistics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reader = TrtllmReader(f"http://127.0.0.1:{server.server_port}", folder, ledger or TrtllmLedger(64))
        try:
            yield reader
        finally:
            reader.close()
            server.shutdown()


def kept(folder: Path) -> dict[str, list[Any]]:
    """The records on disk, by what they are."""
    found: dict[str, list[Any]] = {}
    if (folder / RECORDS_NAME).exists():
        with gzip.open(folder / RECORDS_NAME, "rt") as lines:
            for entry in map(json.loads, lines):
                found.setdefault(entry["kind"], []).extend(entry["records"])
    return found


PUBLISHED = ("/metrics", "/perf_metrics", "/kv_cache_events")


@pytest.fixture
def published(shared_dir: Path) -> dict[str, Any]:
    """The example of each route that the notes give."""
    text = (shared_dir / "facts" / "trtllm.md").read_text()
    found = {}
    for path in PUBLISHED:
        example = re.search(rf"^### (?:POST )?{path}\b.*?```json\n(.*?)```", text, re.DOTALL | re.MULTILINE)
        assert example is not None, path
        found[path] = json.loads(example[1])
    return found


@pytest.mark.shared
def test_the_published_examples_are_told_and_kept(published: dict[str, Any], tmp_path: Path) -> None:
    """Given 4 reused and 3,121 missed blocks of 32 tokens, and one block that went from the device to the host."""
    by_source = {"device": 4 * 32, "host": 0, "disk": 0, "computed": 3121 * 32, "elsewhere": 0}
    with reading(tmp_path, {path: [json.dumps(example)] for path, example in published.items()}) as reader:
        assert reader.wait_for(lambda _: set(kept(tmp_path)) == {path[1:] for path in PUBLISHED}, LONG_S)
        assert reader.wait_for(lambda ledger: told_so_far(ledger) == by_source, LONG_S), told_so_far(reader.ledger)
        ledger = reader.ledger
        assert (ledger.levels, ledger.host_blocks, ledger.tokens_per_block) == ((101256, 1024), 1024, 32)
        assert (ledger.events, ledger.events_lost, ledger.offloaded, ledger.onboarded) == (4, 0, 1, 0)
        assert reader.page()[0] == 200
    records = kept(tmp_path)
    assert records["metrics"] == published["/metrics"]
    assert records["perf_metrics"] == published["/perf_metrics"]
    (request,) = records["perf_metrics"]
    assert request["perf_metrics"]["kv_cache_metrics"] == {
        "num_total_allocated_blocks": 5,
        "num_new_allocated_blocks": 2,
        "num_reused_blocks": 3,
        "num_missed_blocks": 2,
    }


@pytest.mark.shared
def test_events_are_kept_without_the_tokens_of_their_blocks(published: dict[str, Any], tmp_path: Path) -> None:
    events = published["/kv_cache_events"]
    with reading(tmp_path, {"/kv_cache_events": [json.dumps(events)]}) as reader:
        assert reader.wait_for(lambda _: "kv_cache_events" in kept(tmp_path), LONG_S)
    assert [event["data"]["type"] for event in events] == ["created", "stored", "updated", "removed"]
    for block in events[1]["data"]["blocks"]:
        del block["tokens"]
    assert kept(tmp_path)["kv_cache_events"] == events


def test_odd_answers_end_nothing(tmp_path: Path) -> None:
    answers = {
        "/metrics": ['{"iter": 1}', "[[1], 2, null]", '[{"kvCacheStats": [1]}]', json.dumps([record(3, 5, 10)])],
        "/kv_cache_events": ["nonsense", "[" * 5000, json.dumps(ODD_EVENTS), json.dumps([created(64, 256)])],
        "/perf_metrics": ["{}", json.dumps([{"request_id": [7]}])],
    }
    with reading(tmp_path, answers) as reader:
        assert reader.wait_for(lambda ledger: ledger.levels == (64, 256) and ledger.iterations == 2, LONG_S)
        status, text = reader.page()
    assert status == 200
    assert "kvbench_cache_blocks_missed_total 10.0\n" in text


class Broken(TrtllmLedger):
    def take_events(self, events: Iterable[Any]) -> None:
        if list(events):
            raise RuntimeError("no such level")


def test_a_reader_that_ended_says_so_on_its_page(tmp_path: Path) -> None:
    """Given a fault of kvbench's own, then nobody scrapes sums that stand still for ever."""
    with reading(tmp_path, {"/kv_cache_events": [json.dumps([created(64, 256)])]}, Broken(64)) as reader:
        assert wait_for(lambda: reader.page()[0] == 500, LONG_S)
        answer = httpx.get(reader.url, trust_env=False)
    said = "POST /kv_cache_events is not read any more: RuntimeError: no such level\n"
    assert (answer.status_code, answer.text) == (500, said)


def test_records_that_cannot_be_kept_are_said_on_the_page(tmp_path: Path) -> None:
    (tmp_path / RECORDS_NAME).mkdir()
    with reading(tmp_path, {"/metrics": [json.dumps([record(1, 5, 10)])]}) as reader:
        assert wait_for(lambda: reader.page()[0] == 500, LONG_S)
        assert reader.page()[1] == "the records cannot be kept: Is a directory\n"


GAUGES = "".join(
    f"# TYPE trtllm_kv_cache_{name} gauge\ntrtllm_kv_cache_{name} 0.5\n"
    for name in ("utilization", "host_utilization", "iter_reuse_rate", "hit_rate")
)


def test_gauges_of_an_iteration_that_is_kvbenchs_own_are_left_out(tmp_path: Path) -> None:
    """What was found since the start stays; it is of all requests."""
    answers = {"/metrics": [json.dumps([record(1, 5, 10)])], "/prometheus/metrics": [GAUGES] * 2}
    with reading(tmp_path, answers) as reader:
        assert reader.wait_for(lambda ledger: ledger.iterations > 0, LONG_S)
        assert GAUGES in reader.page()[1]
        reader.forget_moment()
        own = [line for line in reader.page()[1].splitlines() if line.startswith("trtllm_")]
    assert own == ["trtllm_kv_cache_hit_rate 0.5"]
