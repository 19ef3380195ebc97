"""Loading: every documented form is accepted and comes out in one shape; the place of each key stays known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.spec.loading import (
    Experiment,
    load_experiment,
    load_profile,
    load_rules,
    load_workload,
    where,
)
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.shipped import shipped_names, shipped_path
from kvbench.spec.workload import Arrivals, Empirical, Gamma, Workload, Zipf
from tests.spec.test_broken_spec_files import PROFILE, RULES, WORKLOAD


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_profile_is_loaded_in_base_units(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, "p.yaml", PROFILE))
    assert profile.name == "tiered"
    assert profile.engine.ready_timeout == 600
    assert profile.engine.args == {"max-model-len": 4096}
    assert profile.engine.env == {"OMP_NUM_THREADS": "2"}
    assert profile.tiers.host is not None
    assert profile.tiers.host.size == 64 * 2**20
    assert profile.tier_names == ("device", "host", "disk")
    assert profile.served_name == "tiny"


FULL_PROFILE = """\
name: everything
engine:
  kind: vllm
  image: vllm/vllm-openai@sha256:0123
  version: 0.32.0
  model: org/model
  revision: main
  served_name: m
  args: {--max_model_len: 16384, enforce-eager: true, hf-overrides: {a: {b: [1, 2.5, x]}}, middleware: [a, b]}
  ready_timeout: 600
tiers:
  device: {memory_utilization: 85%, kv_dtype: fp8}
  host: {size: 16GiB, policy: arc, via: offloading, chunk_tokens: 256, offload_prompt_only: no}
  disk: {path: kv, read_threads: 32, write_threads: 16, size_limit: 200GiB}
"""


def test_every_key_of_a_profile_is_accepted_and_flags_get_one_spelling(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, "p.yaml", FULL_PROFILE))
    assert list(profile.engine.args) == ["max-model-len", "enforce-eager", "hf-overrides", "middleware"]
    assert profile.tiers.device.memory_utilization == 0.85
    assert profile.tiers.host is not None
    assert profile.tiers.host.offload_prompt_only is False


def test_a_profile_for_tensorrt_llm_spells_flags_its_way(tmp_path: Path) -> None:
    text = (
        "name: t\nengine: {kind: tensorrt-llm, command: [trtllm-serve], model: /m, args: {max-batch-size: 8}}\n"
        "tiers: {device: {memory_utilization: 0.5}, host: {size: 1GiB, min_priority: 35}}\n"
    )
    assert load_profile(write(tmp_path, "p.yaml", text)).engine.args == {"max_batch_size": 8}
    with pytest.raises(InputError, match="is a setting of vLLM; tensorrt-llm has no such thing"):
        load_profile(write(tmp_path, "p.yaml", text.replace("min_priority: 35", "policy: arc")))


@pytest.mark.parametrize("url", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"])
def test_a_base_url_loses_its_v1(tmp_path: Path, url: str) -> None:
    text = f"name: a\nengine: {{kind: attached, base_url: '{url}', model: m, token_id_range: [32, 255]}}\n"
    engine = load_profile(write(tmp_path, "p.yaml", text)).engine
    assert engine.base_url == "http://h:8000"
    assert engine.token_id_range == (32, 255)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("base_url: h:8000", "expected a URL such as http://127.0.0.1:8000"),
        ("base_url: 'http://'", "expected a URL such as http://127.0.0.1:8000"),
        ("base_url: 'http://h:99999'", "is not a URL"),
        ("base_url: 'http://[::1'", "is not a URL"),
        ("base_url: 'http://a..b'", "is not a URL"),
        ("base_url: 'http://h/\u00e4'", "expected a URL such as http://127.0.0.1:8000"),
        ("base_url: 'http://h/v1?key=1'", "expected a server's address"),
        ("base_url: 'http://me:secret@h'", "does not belong in an address; name the key's variable in api_key_env"),
        ("base_url: 'http://h', metrics_url: 'http://h:x/metrics'", "is not a URL"),
        ("base_url: 'http://h', token_id_range: [9, 3]", "expected [first, last]"),
        ("base_url: 'http://h', args: {a: 1}", "an attached server is started by somebody else"),
        ("base_url: 'http://h', revision: abc", "an attached server is started by somebody else"),
    ],
)
def test_impossible_attached_servers(tmp_path: Path, keys: str, words: str) -> None:
    file = write(tmp_path, "p.yaml", f"name: a\nengine: {{kind: attached, model: m, {keys}}}\n")
    with pytest.raises(InputError, match=r"p\.yaml:2: engine") as caught:
        load_profile(file)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("keys", ["model: ~nobody-of-this-name/m", "model: tiny"])
def test_a_home_directory_that_nobody_has_is_told(tmp_path: Path, keys: str) -> None:
    tiers = "tiers: {host: {size: 1MiB}, disk: {path: ~nobody-of-this-name/kv}}\n"
    file = write(tmp_path, "p.yaml", f"name: a\nengine: {{kind: vllm, environment: vllm-cpu, {keys}}}\n{tiers}")
    with pytest.raises(InputError, match="there is no home directory for '~nobody-of-this-name'"):
        load_profile(file)


def test_throttles_are_for_the_embedded_engine(tmp_path: Path) -> None:
    text = PROFILE.replace("policy: lru", "throttle: 1MiB/s").replace("/mnt/kv}", "/mnt/kv, throttle: 2MiB/s}")
    profile = load_profile(write(tmp_path, "p.yaml", text))
    assert profile.tiers.disk is not None
    assert profile.tiers.disk.throttle == 2 * 2**20
    with pytest.raises(InputError, match="works on the embedded engine only") as caught:
        load_profile(write(tmp_path, "p.yaml", text.replace("environment: vllm-cpu", "command: [vllm]")))
    assert len(str(caught.value).splitlines()) == 2


def test_block_size_and_version_settle_what_can_be_known(tmp_path: Path) -> None:
    text = PROFILE.replace("max-model-len: 4096", "max-model-len: 4096, block-size: 32")
    with pytest.raises(InputError, match="needs 129 blocks of 32 tokens"):
        load_profile(write(tmp_path, "p.yaml", text.replace("blocks: 256", "blocks: 128")))
    future = PROFILE.replace("blocks: 256", "kv_dtype: fp2").replace("version: 0.32.0", "version: 0.99.0")
    assert load_profile(write(tmp_path, "p.yaml", future)).tiers.device.kv_dtype == "fp2"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("~/kv", Path.home() / "kv"),
        ("kv", Path("{folder}/kv")),
        ("../kv", Path("{folder}/../kv")),
        ("/mnt/kv", Path("/mnt/kv")),
    ],
)
def test_paths_in_a_file_are_relative_to_it(tmp_path: Path, written: str, meant: Path) -> None:
    text = PROFILE.replace("/mnt/kv", written).replace("model: tiny", f"model: ./{written.strip('~/.')}")
    profile = load_profile(write(tmp_path, "p.yaml", text))
    assert profile.tiers.disk is not None
    folder = tmp_path.resolve()
    assert profile.tiers.disk.path == Path(os.path.normpath(str(meant).replace("{folder}", str(folder))))
    assert profile.engine.model == str(folder / written.strip("~/."))


ARRIVALS = [
    ("{process: poisson, rate: 4/s}", "poisson", 4.0, None),
    ("{process: constant, rate: 240/m}", "constant", 4.0, None),
    ("{process: gamma, rate: 4/s, gamma: {cv: 2}}", "gamma", 4.0, Gamma(cv=2)),
    ("{process: {gamma: {cv: 2}}, rate: 4}", "gamma", 4.0, Gamma(cv=2)),
    ("{gamma: {cv: 2}, rate: 4}", "gamma", 4.0, Gamma(cv=2)),
    ("{process: closed, closed: {concurrency: 4}}", "closed", None, None),
    ("{closed: {concurrency: 4}}", "closed", None, None),
]


@pytest.mark.parametrize(("written", "process", "rate", "gamma"), ARRIVALS)
def test_every_spelling_of_arrivals_comes_out_the_same(
    tmp_path: Path, written: str, process: str, rate: float | None, gamma: Gamma | None
) -> None:
    text = WORKLOAD.replace("{process: poisson, rate: 4/s}", written).replace(", rate: {to: 12/s}", "")
    arrivals = load_workload(write(tmp_path, "w.yaml", text)).arrivals
    assert (arrivals.process, arrivals.rate, arrivals.gamma) == (process, rate, gamma)
    assert (arrivals.closed is not None) == (process == "closed")
    assert Arrivals.model_validate(arrivals.model_dump()) == arrivals


@pytest.mark.parametrize(
    "written",
    [
        "{process: trace, trace: {path: t.jsonl, format: mooncake, speed: 2}}",
        "{process: {trace: {path: t.jsonl, format: mooncake, speed: 2}}}",
        "{trace: {path: t.jsonl, format: mooncake, speed: 2}}",
    ],
)
def test_every_spelling_of_a_trace_comes_out_the_same(tmp_path: Path, written: str) -> None:
    text = f"name: w\narrivals: {written}\nphases: [{{name: p, for: 10s}}]\n"
    arrivals = load_workload(write(tmp_path, "w.yaml", text)).arrivals
    assert arrivals.process == "trace"
    assert arrivals.trace is not None
    assert (arrivals.trace.path, arrivals.trace.speed) == (tmp_path.resolve() / "t.jsonl", 2.0)
    assert Arrivals.model_validate(arrivals.model_dump()) == arrivals


def test_a_workload_is_loaded_in_base_units(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, "w.yaml", WORKLOAD))
    assert [phase.for_s for phase in workload.phases] == [20, 120, 30]
    assert [phase.measured for phase in workload.phases] == [False, True, True]
    prefix = workload.classes["short"].prefix
    assert prefix is not None
    assert prefix.popularity == Zipf(zipf=1.0)


def test_yaml_1_1_words_and_anchors_mean_what_people_mean(tmp_path: Path) -> None:
    text = WORKLOAD.replace("measured: false", "measured: no").replace("name: small", "name: 'no'")
    text = text.replace("for: 2m", "for: 1.2e2").replace("  agent:\n", "  agent:\n    <<: *s\n")
    text = text.replace("  short:\n", "  short: &s\n")
    workload = load_workload(write(tmp_path, "w.yaml", text))
    assert workload.name == "no"
    assert workload.phases[0].measured is False
    assert workload.phases[1].for_s == 120
    agent = workload.classes["agent"]
    assert (agent.weight, agent.output_tokens) == (0.7, 16)
    file = where(workload, "classes", "agent")
    assert file is not None
    assert file.line == 14


def test_merged_lists_of_anchors_keep_the_first_mention(tmp_path: Path) -> None:
    text = "a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc:\n  <<: [*a, *b]\n"
    with pytest.raises(InputError, match="unknown key"):
        load_rules(write(tmp_path, "r.yaml", text + "guardrails: []\n"))


def test_empirical_lengths_are_read_from_beside_the_workload(tmp_path: Path) -> None:
    write(tmp_path, "lengths.txt", "# tokens\n12\n\n30 # long\n12\n")
    text = WORKLOAD.replace("output_tokens: 32", "output_tokens: {empirical: lengths.txt}").replace(
        "tokens: 256, pool", "tokens: {empirical: lengths.txt}, pool"
    )
    workload = load_workload(write(tmp_path, "w.yaml", text))
    short = workload.classes["short"]
    assert isinstance(short.output_tokens, Empirical)
    assert short.output_tokens.values == (12, 30, 12)
    assert short.prefix is not None
    assert isinstance(short.prefix.tokens, Empirical)
    assert short.prefix.tokens.values == (12, 30, 12)
    assert Workload.model_validate_json(workload.model_dump_json(by_alias=True)) == workload


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        (b"12\ntwelve\n", "lengths.txt:2", "expected a whole number of tokens, got 'twelve'"),
        (b"12\n0\n", "lengths.txt:2", "expected a whole number"),
        (b"12\n-3\n", "lengths.txt:2", "expected a whole number"),
        (b"# none\n", "lengths.txt", "no lengths in this file"),
        (b"\xff\n", "lengths.txt", "not UTF-8 text"),
        (b"1\n" * 100_001, "lengths.txt", "more than 100000"),
        (None, "lengths.txt", "lengths cannot be read: No such file"),
    ],
)
def test_broken_files_of_lengths_are_named(tmp_path: Path, content: bytes | None, place: str, words: str) -> None:
    if content is not None:
        (tmp_path / "lengths.txt").write_bytes(content)
    text = WORKLOAD.replace("output_tokens: 32", "output_tokens: {empirical: lengths.txt}")
    with pytest.raises(InputError) as caught:
        load_workload(write(tmp_path, "w.yaml", text))
    assert place in str(caught.value)
    assert words in str(caught.value)


def test_limits_are_in_the_unit_of_their_metric(tmp_path: Path) -> None:
    text = """\
guardrails:
  - {id: a, metric: ttft, quantile: 99%, max: 250ms}
  - {id: b, metric: error_rate, max: 0.1%}
  - {id: c, metric: host_memory, max: 16GiB}
  - {id: d, metric: goodput, min: 5/s}
  - {id: e, metric: throughput_tokens, min: 100 tokens/s}
  - {id: f, metric: promoted_tokens, source: disk, min: 10}
  - {id: g, metric: source_share, source: host, max: 40%}
  - {id: h, metric: output_parity}
  - {id: i, metric: host_load_bytes, max: 1GiB}
"""
    rules = load_rules(write(tmp_path, "r.yaml", text))
    assert [rule.max if rule.max is not None else rule.min for rule in rules.guardrails] == [
        *(0.25, 0.001, 16 * 2**30, 5.0, 100.0, 10.0, 0.4, None, 2**30)
    ]
    assert rules.guardrails[0].quantile == 0.99
    assert Rules.model_validate_json(rules.model_dump_json(by_alias=True)) == rules


def test_the_place_of_every_key_stays_known_and_is_no_part_of_the_value(tmp_path: Path) -> None:
    one = load_profile(write(tmp_path, "one.yaml", PROFILE))
    two = load_profile(write(tmp_path, "two.yaml", "# moved down\n" + PROFILE))
    assert one == two
    assert str(where(one, "tiers.disk.path")) == f"{tmp_path}/one.yaml:15: tiers.disk.path"
    assert str(where(two, "tiers", "disk", "path")) == f"{tmp_path}/two.yaml:16: tiers.disk.path"
    assert str(where(one, "tiers.host.throttle")) == f"{tmp_path}/one.yaml:12: tiers.host.throttle"
    assert str(where(one)) == f"{tmp_path}/one.yaml:1"
    assert where(one.model_copy(update={"name": "b"}), "name") is not None
    assert where(Profile.model_validate(one.model_dump()), "name") is None
    assert hash(one._origin) == hash(two._origin)


def test_an_experiment_holds_members_inline_by_path_and_by_name(tmp_path: Path) -> None:
    write(tmp_path, "tiered.yaml", PROFILE)
    write(tmp_path, "rules.yaml", RULES)
    inline = "\n".join("    " + line for line in WORKLOAD.splitlines())
    file = write(
        tmp_path,
        "e.yaml",
        "experiment:\n  baseline: cpu/baseline\n  candidates: [tiered.yaml, cpu/host]\n"
        f"  rules: rules.yaml\n  workload:\n{inline}\n",
    )
    experiment = load_experiment(file)
    assert [arm.name for arm in experiment.arms] == ["baseline", "tiered", "host"]
    assert experiment.workload.name == "small"
    assert str(where(experiment.workload, "classes.short")) == f"{file}:14: experiment.workload.classes.short"
    assert experiment.with_rules(Rules()).rules == Rules()


def test_an_experiment_uses_the_shipped_workload_and_rules_unless_it_names_others(tmp_path: Path) -> None:
    file = write(tmp_path, "e.yaml", "experiment: {baseline: cpu/baseline, candidates: cpu/host}\n")
    assert load_experiment(file) == Experiment(
        baseline=load_profile("cpu/baseline"),
        candidates=(load_profile("cpu/host"),),
        workload=load_workload("mixed"),
        rules=load_rules("default"),
    )


@pytest.mark.parametrize("kind", ["profile", "workload", "rules"])
def test_everything_shipped_loads_and_survives_the_manifest(kind: str) -> None:
    names = shipped_names(kind)  # type: ignore[arg-type]
    assert names
    for name in names:
        if name == "tensorrt-llm/disk":  # shipped to say that there is no such tier
            with pytest.raises(InputError, match="has no disk tier"):
                load_profile(name)
            continue
        load = {"profile": load_profile, "workload": load_workload, "rules": load_rules}[kind]
        spec = load(name)
        assert type(spec).model_validate_json(spec.model_dump_json(by_alias=True)) == spec
        assert shipped_path(kind, name).is_file()  # type: ignore[arg-type]


KEYS = st.sampled_from(
    [
        *(
            "name",
            "engine",
            "kind",
            "vllm",
            "model",
            "tiers",
            "device",
            "host",
            "disk",
            "size",
            "path",
            "blocks",
            "args",
        ),
        *("arrivals", "process", "rate", "gamma", "closed", "phases", "for", "classes", "prefix", "tokens", "pool"),
        *(
            "suffix_tokens",
            "output_tokens",
            "turns",
            "think",
            "lognormal",
            "median",
            "p95",
            "uniform",
            "popularity",
        ),
        *(
            "guardrails",
            "benefits",
            "evidence",
            "id",
            "metric",
            "quantile",
            "max",
            "min",
            "sustained",
            "window",
            "class",
        ),
        *("experiment", "baseline", "candidates", "workload", "rules", "rounds", "validity", "confidence", "<<"),
    ]
)
SCALARS = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | KEYS) | st.sampled_from(
    ["1s", "4/s", "16GiB", "0.1%", "poisson", "ttft", "vllm-cpu", "tiny", "1:30", "yes"]
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)
LOADERS = st.sampled_from([load_profile, load_workload, load_rules, load_experiment])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(tree=TREES, load=LOADERS)
def test_any_tree_of_values_gives_a_model_or_an_input_error(tmp_path: Path, tree: object, load: object) -> None:
    file = write(tmp_path, "any.yaml", yaml.safe_dump(tree))
    _load_or_refuse(file, load)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    text=st.sampled_from([PROFILE, WORKLOAD, RULES]),
    start=st.integers(0, 600),
    length=st.integers(0, 40),
    put=st.text(max_size=6) | st.sampled_from(["{", "[", ": ", "\n", "&a ", "*a", "!!x ", "- ", "'", "null", "\t"]),
    load=LOADERS,
)
def test_any_damage_to_a_good_file_gives_a_model_or_an_input_error(
    tmp_path: Path, text: str, start: int, length: int, put: str, load: object
) -> None:
    file = tmp_path / "damaged.yaml"
    file.write_bytes((text[:start] + put + text[start + length :]).encode("utf-8", "surrogatepass"))
    _load_or_refuse(file, load)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(content=st.binary(max_size=200), load=LOADERS)
def test_any_bytes_give_an_input_error(tmp_path: Path, content: bytes, load: object) -> None:
    file = tmp_path / "bytes.yaml"
    file.write_bytes(content)
    _load_or_refuse(file, load)


def _load_or_refuse(file: Path, load: object) -> None:
    refusal: InputError | None = None
    try:
        load(file)  # type: ignore[operator]
    except InputError as error:
        refusal = error
    assert refusal is None or (refusal.where is not None and refusal.what)
