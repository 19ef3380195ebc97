"""A canary file says what is judged; what is wrong with it is told with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.canary.prometheus import PrometheusReader, selector
from kvbench.errors import InputError
from kvbench.spec.canary import load_canary
from tests.missing import need

CANARY = """\
name: kv-tier-canary
prometheus: {url: "http://127.0.0.1:9090"}
baseline: {match: {job: vllm, track: stable}}
candidate: {match: {job: vllm, track: canary}, profile: tiered.yaml}
rules:
  guardrails:
    - {id: sustained, metric: ttft, quantile: 0.99, max: 1s, sustained: {window: 30s, for: 120s}}
    - {id: ttft-p99, metric: ttft, quantile: 0.99, max_ratio: 1.10}
on_breach: {hook: [kubectl, rollout, undo, deployment/vllm], armed: true}
"""
PROFILE = """\
name: tiered
engine: {kind: emulated, model: tiny, args: {max-model-len: 4096}}
tiers: {device: {blocks: 64}, host: {size: 16MiB}, disk: {path: /mnt/kv}}
"""


def written(folder: Path, text: str = CANARY) -> Path:
    (folder / "tiered.yaml").write_text(PROFILE)
    file = folder / "canary.yaml"
    file.write_text(text)
    return file


def refused(folder: Path, old: str, new: str) -> str:
    assert old in CANARY
    with pytest.raises(InputError) as caught:
        load_canary(written(folder, CANARY.replace(old, new)))
    return str(caught.value)


class TestAFile:
    def test_with_a_number_beyond_its_bounds_is_one_error_at_its_line(self, tmp_path: Path) -> None:
        for old, new, line, key in (
            ('9090"}', '9090", timeout: 1e300}', 2, "prometheus.timeout"),
            ("window: 30s", "window: 1us", 7, "rules.guardrails[0].sustained.window"),
            ("armed: true", "within: 1e300", 9, "on_breach.within"),
        ):
            told = refused(tmp_path, old, new)
            assert told.startswith(f"{tmp_path}/canary.yaml:{line}: {key}: must ")
            assert len(told.splitlines()) == 1

    def test_is_read_with_its_profile_and_names_its_selections(self, tmp_path: Path) -> None:
        loaded = load_canary(written(tmp_path))
        assert loaded.candidate is not None
        assert loaded.candidate.tier_names == ("device", "host", "disk")
        assert loaded.names == ("job=vllm,track=stable", "job=vllm,track=canary")
        assert loaded.canary.on_breach.armed
        assert loaded.canary.rules.guardrails[0].sustained is not None

    def test_may_leave_the_baseline_out_and_name_shipped_rules(self, tmp_path: Path) -> None:
        text = "name: c\nprometheus: {url: 'http://p:9090/'}\ncandidate: {match: {job: x}}\nrules: r.yaml\n"
        (tmp_path / "r.yaml").write_text("guardrails: [{id: e, metric: error_rate, max: 1%}]\n")
        loaded = load_canary(written(tmp_path, text))
        assert not loaded.canary.has_baseline
        assert loaded.canary.prometheus is not None
        assert loaded.canary.prometheus.url == "http://p:9090"
        assert loaded.names[0] == "absolute budgets"

    def test_may_name_servers_instead_of_a_prometheus(self, tmp_path: Path) -> None:
        text = (
            "name: c\nscrape: {candidate: ['http://127.0.0.1:8000'], baseline: ['http://127.0.0.1:8001/metrics']}\n"
            "candidate: {}\nrules: {guardrails: [{id: e, metric: error_rate, max: 1%}]}\n"
        )
        loaded = load_canary(written(tmp_path, text))
        assert loaded.canary.has_baseline
        assert loaded.names == ("http://127.0.0.1:8001/metrics", "http://127.0.0.1:8000")

    @pytest.mark.parametrize("again", ["http://127.0.0.1:8000", "http://127.0.0.1:8000/metrics"])
    def test_may_not_name_a_server_twice(self, tmp_path: Path, again: str) -> None:
        text = (
            f"name: c\nscrape: {{candidate: ['http://127.0.0.1:8000/'], baseline: ['{again}']}}\n"
            "candidate: {}\nrules: {guardrails: [{id: e, metric: error_rate, max: 1%}]}\n"
        )
        with pytest.raises(InputError, match=r"http://127\.0\.0\.1:8000 is given twice"):
            load_canary(written(tmp_path, text))

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("{url:", "{urls:", "2: prometheus.urls: unknown key; did you mean 'url'?"),
            ("http://127.0.0.1:9090", "http://me:secret@h:1", "token_env"),
            ("{url:", "{token_env: 'hunter two', url:", "expected the NAME of an environment variable"),
            ("{url:", "{username_env: U, url:", "basic auth needs both"),
            ("track: stable", "track: canary", "4: candidate.match: selects the same series"),
            ("profile: tiered.yaml", "profile: other.yaml", "4: candidate.profile"),
            ("max: 1s", "max: 1kg", "7: rules.guardrails[0].max"),
            ("baseline: {match: {job: vllm, track: stable}}\n", "", "7: rules.guardrails[1].max_ratio: is against"),
            ("hook: [kubectl, rollout, undo, deployment/vllm], ", "", "there is nothing to arm"),
            ("armed: true", "secret_env: S", "secret_env: signs a post"),
            ('prometheus: {url: "http://127.0.0.1:9090"}\n', "", "needs either prometheus: {url} or scrape"),
        ],
    )
    def test_that_is_wrong_is_refused_with_the_line(self, tmp_path: Path, old: str, new: str, words: str) -> None:
        assert words in refused(tmp_path, old, new)

    def test_of_another_kind_is_recognised(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="this looks like a profile; expected a canary"):
            load_canary(written(tmp_path, PROFILE))


class TestReading:
    def test_asks_for_series_by_name_and_label_and_escapes_both(self) -> None:
        query = selector(("a:b_total", "up"), {"job": 'x"y\\z', "pod": "~canary-.*"})
        assert query == '{__name__=~"a:b_total|up",job="x\\"y\\\\z",pod=~"canary-.*"}'

    def test_refuses_a_secret_that_is_not_set(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        need("prometheus_api_client")
        monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
        loaded = load_canary(written(tmp_path, CANARY.replace("{url:", "{token_env: NO_SUCH_TOKEN, url:")))
        assert loaded.canary.prometheus is not None
        with pytest.raises(InputError, match="NO_SUCH_TOKEN is not set") as caught:
            PrometheusReader(loaded.canary, loaded.canary.prometheus, ("up",))
        assert "canary.yaml:2" in str(caught.value)

    def test_says_what_to_install_when_the_package_is_absent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "prometheus_api_client", None)
        loaded = load_canary(written(tmp_path))
        assert loaded.canary.prometheus is not None
        with pytest.raises(InputError, match=r"pip install 'kvbench\[prometheus\]'"):
            PrometheusReader(loaded.canary, loaded.canary.prometheus, ("up",))
