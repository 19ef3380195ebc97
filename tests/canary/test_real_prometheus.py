"""`kvbench gate` over a real Prometheus that scrapes real servers, and over the servers themselves.

Everything happens once: emulated engines under load at the same time, most of them with a known truth.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbench.engine.base import Launch
from kvbench.engine.create import create_engine
from kvbench.engine.environment import EngineEnvironment
from kvbench.spec.loading import load_profile
from tests.canary.field import ERRORS, LOAD_S, P90, SUSTAINED, Field, Track, driven, in_the_field, tokens
from tests.cli.invoke import Answer
from tests.embedded import embedded_engine
from tests.missing import need

need("prometheus_api_client")


@pytest.fixture(scope="module")
def field(prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with in_the_field(tmp_path_factory.mktemp("field")) as it:
        yield it


def rule(answer: Answer, id_: str) -> dict[str, object]:
    return next(each for each in json.loads(answer.out)["rules"] if each["rule"] == id_)


def status(answer: Answer, id_: str) -> object:
    return rule(answer, id_)["status"]


class TestOverAPrometheus:
    def test_a_healthy_canary_may_stay(self, field: Field) -> None:
        answer = field.gate("good", "--junit", str(field.folder / "gate.xml"))
        document = json.loads(answer.out)
        assert (answer.code, document["verdict"]) == (0, "GO"), document["reasons"]
        assert document["baseline"] == "job=vllm,track=stable"
        assert document["candidate"] == "job=vllm,track=good"
        assert document["window"]["end"] - document["window"]["start"] >= LOAD_S - 1
        assert document["sources"]["job=vllm,track=good"]["computed"] > 0
        assert (field.folder / "gate.xml").read_text().startswith("<?xml")

    def test_a_tail_that_is_broken_throughout_calls_for_rollback(self, field: Field) -> None:
        answer = field.gate("slow")
        assert answer.code == 1, json.loads(answer.out)["reasons"]
        assert status(answer, "sustained") == "fail"

    def test_one_spike_does_not(self, field: Field) -> None:
        answer = field.gate("spiking", guardrails=(SUSTAINED, ERRORS))
        assert answer.code == 0, json.loads(answer.out)["reasons"]
        worst = next(row for row in rule(answer, "sustained")["windows"] if row["at"] == "worst")  # type: ignore[attr-defined]
        assert worst["requests_over"] >= 5, "there was one"
        assert worst["for_share"] < 0.2

    def test_a_slow_one_beside_a_slow_baseline_is_no_reason_to_act(self, field: Field) -> None:
        answer = field.gate("slow", baseline="~slo.")
        assert answer.code == 3
        assert "sick itself" in answer.out

    def test_one_that_restarted_in_the_middle_is_inconclusive(self, field: Field) -> None:
        answer = field.gate("restarting")
        assert answer.code == 3, json.loads(answer.out)["reasons"]
        assert status(answer, "engine-restarted") == "unknown"

    @pytest.mark.parametrize(("track", "words"), [("idle", "no request since"), ("few", " requests since")])
    def test_one_without_enough_requests_is_inconclusive(self, field: Field, track: str, words: str) -> None:
        answer = field.gate(track)
        assert answer.code == 3
        assert status(answer, "too-few-requests") == "unknown"
        assert words in str(rule(answer, "too-few-requests")["text"])

    def test_labels_that_select_nothing_are_inconclusive(self, field: Field) -> None:
        answer = field.gate("nobody")
        assert answer.code == 3
        assert status(answer, "series-missing") == "unknown"

    def test_one_series_that_is_missing_among_all_others_is_inconclusive(self, field: Field) -> None:
        answer = field.gate("mute")
        assert answer.code == 3
        assert "time_to_first_token_seconds_bucket" in str(rule(answer, "series-missing")["text"])

    def test_one_of_three_replicas_that_is_bad_is_named_by_its_instance(self, field: Field) -> None:
        answer = field.gate("~stable|good|slow", baseline=None, name="three")
        document = json.loads(answer.out)
        bad = f"127.0.0.1:{field.ports['slow']}"
        assert {row["replica"]: row["odd"] for row in document["replicas"]} == {
            f"127.0.0.1:{field.ports[track]}": track == "slow" for track in ("stable", "good", "slow")
        }
        assert answer.code == 1, document["reasons"]
        assert f"by itself on {bad}" in str(rule(answer, "sustained")["text"])
        assert f"{bad} is the odd one out" in str(rule(answer, "replica-differs")["text"])

    def test_a_slow_burn_is_proven_by_the_long_window_alone(self, field: Field) -> None:
        field.wait_for(28)
        guardrails = (
            "{id: sustained, metric: ttft, quantile: 0.85, max: 100ms, sustained: {window: 3s, for: 12s}}",
            "{id: ttft-p90, metric: ttft, quantile: 0.9, max: 100ms}",
        )
        short = field.gate("burning", name="burning-short", guardrails=guardrails, since_s=7)
        assert short.code == 3, json.loads(short.out)["reasons"]
        answer = field.gate("burning", guardrails=guardrails)
        assert answer.code == 1, json.loads(answer.out)["reasons"]
        assert (status(answer, "sustained"), status(answer, "ttft-p90")) == ("pass", "fail")

    def test_what_a_server_refuses_is_said_with_exit_2(self, field: Field) -> None:
        answer = field.run(
            "lost",
            f'name: lost\nprometheus: {{url: "{field.prometheus.url}/elsewhere"}}\n'
            f"candidate: {{match: {{a: b}}}}\nrules: {{guardrails: [{P90}]}}\n",
            "--once",
        )
        assert answer.code == 2
        assert "has no query API at this address" in answer.out


class TestOverTheServersThemselves:
    def test_a_short_stretch_is_seen_and_not_enough(self, field: Field) -> None:
        text = (
            f'name: direct\nscrape: {{candidate: ["http://127.0.0.1:{field.ports["good"]}"]}}\n'
            f"candidate: {{}}\nwarm_up: false\nrules: {{guardrails: [{SUSTAINED}, {P90}, {ERRORS}]}}\n"
        )
        answer = field.run("direct", text, "--once", "--for", "3s", "--every", "1s")
        assert answer.code == 3
        assert status(answer, "series-missing") == "pass"
        assert status(answer, "too-few-requests") == "pass"
        assert status(answer, "sustained") == "unknown"


@pytest.mark.engine
class TestTheEmbeddedEngine:
    """Started while the watch over the other Prometheus goes on: it takes no time of its own."""

    SECONDS = 14.0

    @pytest.fixture(scope="class")
    @staticmethod
    def profile(engine_env: EngineEnvironment, field: Field) -> Iterator[Path]:
        """Of an engine with a host tier that has served for a while, with prefixes that its device cannot hold."""
        prefixes = [tokens(random.Random(n), 512) for n in range(20)]

        def repeated(rng: random.Random, number: int) -> list[int]:
            return prefixes[number % len(prefixes)] + tokens(rng, 32)

        engine = embedded_engine(engine_env, port=field.embedded_port)
        tiers = {"device": {"blocks": 40}, "host": {"size": "64MiB"}}
        file = field.folder / "embedded.json"
        file.write_text(json.dumps({"name": "embedded", "engine": engine, "tiers": tiers}))
        launched = create_engine(load_profile(file), Launch(field.folder, field.folder / "log", None, "embedded-1"))
        try:
            field.rest()
            launched.start(lambda _: None)
            with driven({field.embedded_port: Track(per_s=5.0, prompt=repeated)}):
                time.sleep(TestTheEmbeddedEngine.SECONDS)
                yield file
        finally:
            launched.stop()

    def look(self, field: Field, profile: Path, name: str, budget: str) -> Answer:
        guardrails = (
            f"{{id: sustained, metric: ttft, quantile: 0.5, max: {budget}, sustained: {{window: 5s, for: 8s}}}}",
            f"{{id: ttft-p50, metric: ttft, quantile: 0.5, max: {budget}}}",
            "{id: errors, metric: error_rate, max: 40%}",
        )
        return field.gate(
            "embedded", baseline=None, name=name, guardrails=guardrails, since_s=self.SECONDS, profile=profile
        )

    def test_within_its_budget_may_stay_and_its_sources_are_told(self, field: Field, profile: Path) -> None:
        answer = self.look(field, profile, "embedded-kept", "5s")
        document = json.loads(answer.out)
        assert (answer.code, document["verdict"]) == (0, "GO"), document["reasons"]
        (sources,) = document["sources"].values()
        assert sources["host"] > 0
        assert sources["computed"] > 0

    def test_beyond_its_budget_calls_for_its_tier_to_be_switched_off(self, field: Field, profile: Path) -> None:
        answer = self.look(field, profile, "embedded-broken", "1ms")
        document = json.loads(answer.out)
        assert (answer.code, status(answer, "sustained")) == (1, "fail"), document["reasons"]
        assert document["action"]["disable_tier"] == "host"
        assert "host" not in document["action"]["configuration"]["profile"]["tiers"]


class TestAPrometheusThatWentDown:
    def test_and_came_back_leaves_a_watch_its_verdict_and_the_gap_is_said(self, field: Field) -> None:
        out, said = field.outage.communicate(timeout=120)
        answer = Answer(field.outage.returncode, out, said)
        assert answer.code == 0, json.loads(out)["reasons"]
        assert status(answer, "metrics-unreachable") == "pass"
        assert "no scrapes for" in str(rule(answer, "scrape-gap")["text"])

    def test_and_is_down_leaves_a_look_inconclusive_with_the_reason(self, field: Field) -> None:
        field.prometheus.kill()
        answer = field.gate("good")
        assert answer.code == 3
        assert "cannot be reached" in answer.out
        assert status(answer, "metrics-unreachable") == "unknown"
