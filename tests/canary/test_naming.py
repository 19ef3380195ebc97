"""Series of every engine have one name each for the gate; what an engine does not tell stays untold."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from kvbench.canary.families import exposed_names, wanted_names
from kvbench.canary.judge import judge_canary
from kvbench.canary.naming import canonical_samples
from kvbench.canary.observed import Observed
from kvbench.canary.reading import History, Read
from kvbench.canary.scraping import ScrapeReader, samples_of
from kvbench.canary.series import Replica, Samples, key_of
from kvbench.judge.verdict import Outcome, RuleResult
from kvbench.spec.canary import load_canary
from kvbench.spec.rules import Rules
from tests.canary.build import ERRORS, SUSTAINED, rules

RULES = rules(SUSTAINED, ERRORS, {"id": "host", "metric": "source_share", "source": "host", "min": 0.1})
LABELS = 'engine_type="trtllm",model_name="m"'
STEP_S, PER_STEP = 5.0, 50
"""Requests between two scrapes, each of 200 tokens: 100 computed, 60 of the device, 40 of the host."""


def trtllm(steps: int) -> str:
    """What a TensorRT-LLM server of a newer release tells after so many steps."""
    n = steps * PER_STEP
    lines = ["# TYPE trtllm_time_to_first_token_seconds histogram"]
    for edge in ("0.25", "1.0", "+Inf"):
        lines.append(f'trtllm_time_to_first_token_seconds_bucket{{{LABELS},le="{edge}"}} {n}')
    lines += [f"trtllm_time_to_first_token_seconds_{part}{{{LABELS}}} {n}" for part in ("count", "sum")]
    counters = {
        "request_success": (n, ',finished_reason="stop"'),
        "prompt_tokens": (200 * n, ""),
        "generation_tokens": (16 * n, ""),
        "prompt_cached_tokens": (100 * n, ""),
        "kv_cache_offload_bytes": (1000 * n, ""),
    }
    for name, (value, more) in counters.items():
        lines += [f"# TYPE trtllm_{name}_total counter", f"trtllm_{name}_total{{{LABELS}{more}}} {value}"]
    lines.append("# TYPE trtllm_prompt_cache_hit_tokens_total counter")
    for level, (tier, tokens) in enumerate((("gpu", 60 * n), ("host", 40 * n))):
        labels = f'{LABELS},cache_level="{level}",cache_tier="{tier}"'
        lines.append(f"trtllm_prompt_cache_hit_tokens_total{{{labels}}} {tokens}")
    lines += ["# TYPE trtllm_num_requests_running gauge", f"trtllm_num_requests_running{{{LABELS}}} 1"]
    return "\n".join(lines) + "\n"


def of(samples: Samples, name: str) -> float:
    """The values of a canonical series together."""
    return float(sum(values[-1] for (each, _), (_, values) in samples.items() if each == name))


def one(name: str, value: float, **labels: str) -> Samples:
    return {key_of(name, labels): (np.array([0.0]), np.array([value]))}


class TestTensorRtLlm:
    def watched(self, seconds: float, asked: Rules) -> Observed:
        history = History()
        for step in range(int(seconds / STEP_S) + 1):
            at_s = 1e9 + step * STEP_S
            samples = samples_of(trtllm(step), wanted_names(asked), at_s)
            history.add(Read({"candidate": {"t": samples}}), at_s)
        return Observed(
            names=("absolute budgets", "trtllm"),
            rules=asked,
            candidate=history.group("candidate", "trtllm"),
            baseline=None,
            start_s=1e9,
            end_s=1e9 + seconds,
            planned_end_s=1e9 + seconds,
            once=True,
            newest_tier="host",
            warm_up=False,
        )

    def rule(self, id_: str, asked: Rules = RULES) -> RuleResult:
        verdict = judge_canary(self.watched(300.0, asked))
        return next(rule for rule in verdict.rules if rule.rule == id_)

    def test_may_stay_by_its_ttft_and_its_sources(self) -> None:
        asked = rules(SUSTAINED, {"id": "host", "metric": "source_share", "source": "host", "min": 0.1})
        verdict = judge_canary(self.watched(300.0, asked))
        assert verdict.verdict is Outcome.GO, verdict.reasons
        sources = verdict.sources["trtllm"]
        requests = 60 * PER_STEP
        assert sources == {
            "device": 60.0 * requests,
            "host": 40.0 * requests,
            "disk": None,
            "computed": 100.0 * requests,
        }

    def test_does_not_count_what_failed_so_an_error_rate_is_not_known(self) -> None:
        assert self.rule("errors").status == "unknown"
        assert "do not count what failed" in self.rule("errors").text

    def test_tells_no_itl_and_what_would_tell_it_is_said(self) -> None:
        asked = rules({"id": "itl", "metric": "itl", "quantile": 0.99, "max": 0.1})
        assert self.rule("itl", asked).status == "unknown"
        assert "vllm:inter_token_latency_seconds_bucket" in self.rule("series-missing", asked).text

    def test_counters_that_fall_are_said_where_no_start_is_told(self) -> None:
        seen = self.watched(300.0, RULES)
        fallen = {
            key: (t_s, np.where(t_s > 1e9 + 150, values * 0.1, values))
            for key, (t_s, values) in seen.candidate.replicas[0].samples.items()
        }
        assert Replica("t", fallen).resets_s.tolist() == [1e9 + 155]


class TestVllm:
    def test_sources_are_told_apart_where_it_tells_them_apart(self) -> None:
        both = {
            **one("vllm:prompt_tokens_by_source_total", 10, source="local_compute"),
            **one("vllm:prompt_tokens_by_source_total", 7, source="local_cache_hit"),
            **one("vllm:prompt_tokens_by_source_total", 5, source="external_kv_transfer"),
        }
        told = {dict(labels)["source"]: values[-1] for (_, labels), (_, values) in canonical_samples(both).items()}
        assert told == {"computed": 10, "device": 7, "elsewhere": 5}
        apart = {
            **both,
            **one("vllm:prompt_tokens_cached_by_source_total", 6, source="device"),
            **one("vllm:prompt_tokens_cached_by_source_total", 4, source="disk"),
        }
        told = {dict(labels)["source"]: values[-1] for (_, labels), (_, values) in canonical_samples(apart).items()}
        assert told == {"computed": 10, "device": 6, "disk": 4}

    def test_names_of_old_releases_count_unless_the_new_ones_are_there(self) -> None:
        old = one("vllm:kv_offload_total_bytes_total", 5, transfer_type="GPU_to_CPU")
        assert of(canonical_samples(old), "host_store_bytes") == 5
        assert of(canonical_samples(old), "host_load_bytes") == 0
        new = {**old, **one("vllm:kv_offload_store_bytes_total", 5)}
        assert of(canonical_samples(new), "host_store_bytes") == 5

    def test_the_host_tier_is_not_counted_as_one_behind_itself(self) -> None:
        tiers = {
            **one("vllm:kv_offload_tiering_chunk_queries_total", 9, tier="0:primary"),
            **one("vllm:kv_offload_tiering_chunk_queries_total", 2, tier="1:fs"),
        }
        assert of(canonical_samples(tiers), "disk_chunk_queries") == 2


@pytest.mark.parametrize("metric", ["engine_ttft", "prompt_tokens", "kv_cache_usage", "host_store_bytes"])
def test_everything_that_is_asked_for_is_understood(metric: str) -> None:
    for name in exposed_names(metric):
        labels = {"transfer_type": "GPU_to_CPU"} if "total_bytes" in name else {}
        (found,) = canonical_samples(one(name, 1.0, **labels))
        assert found[0].startswith(metric)


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = trtllm(3).encode() if self.path == "/prometheus/metrics" else b"[]"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@contextmanager
def scraping(folder: Path, url: str) -> Iterator[ScrapeReader]:
    file = folder / "canary.yaml"
    file.write_text(
        f'name: c\nscrape: {{candidate: ["{url}"]}}\ncandidate: {{}}\n'
        "rules: {guardrails: [{id: e, metric: error_rate, max: 1%}]}\n"
    )
    canary = load_canary(file).canary
    assert canary.scrape is not None
    reader = ScrapeReader(canary, canary.scrape, wanted_names(canary.rules))
    try:
        yield reader
    finally:
        reader.close()


def test_tensorrt_llm_is_scraped_where_it_tells_its_metrics(tmp_path: Path, server: str) -> None:
    url = f"{server}/prometheus/metrics"
    with scraping(tmp_path, url) as reader:
        found = reader.read(0.0, 0.0, lambda: None).samples["candidate"][url]
    assert of(found, "engine_ttft_count") == 3 * PER_STEP
    assert of(found, "prompt_tokens_by_source") == 100 * 3 * PER_STEP


def moment(found: Read, url: str) -> float:
    """The time of the one scrape."""
    (t_s,) = {float(times[-1]) for times, _ in found.samples["candidate"][url].values()}
    return t_s


def test_a_clock_that_is_set_back_stops_no_watch(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapes of an hour would be taken for known ones, and then what grew in it for the growth of one step."""
    url = f"{server}/prometheus/metrics"
    with scraping(tmp_path, url) as reader:
        before = moment(reader.read(0.0, 0.0, lambda: None), url)
        set_back = time.time() - 3600.0
        monkeypatch.setattr(time, "time", lambda: set_back)
        after = moment(reader.read(0.0, 0.0, lambda: None), url)
        assert 0 < after - before < 60
        assert 0 <= reader.now() - after < 60
    with scraping(tmp_path, url) as again:  # as of a gate that was started again meanwhile
        again.not_before(after)
        assert 0 < moment(again.read(0.0, 0.0, lambda: None), url) - after < 60
