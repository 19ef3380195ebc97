"""Numbers beyond every measurement: each is one error at its line, and what loads can be planned and written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.spec.loading import load_profile, load_workload
from kvbench.workload.build import build_schedule
from kvbench.workload.storage import write_schedule
from tests.spec.broken_values import LOADERS

P, W, R = "profile", "workload", "rules"
TIME, RATE = "must lie between 1us and 365d, got", "must lie between 0.000001/s and 1000000/s, got"
FACTOR, TOKENS = "must lie between 0.000001 and 1000000, got", "must lie between 1 and 1000000000, got"
COUNT, SIZE = "must lie between 1 and 1000000000, got", "must lie between 1B and 1024PiB, got"
ARRIVALS = "process: poisson, rate: 4/s"

# (kind, what the good file says, what the broken one says, line, key, words of the message)
BEYOND = [
    (W, "seed: 1", "seed: 1e30", 2, "seed", "must lie between 0 and 9223372036854775807, got 1e+30"),
    (W, "seed: 1", "think_scale: 1e-300", 2, "think_scale", FACTOR),
    (W, "seed: 1", "request_timeout: 1e9", 2, "request_timeout", TIME),
    (W, "seed: 1", "request_timeout: 1e-300", 2, "request_timeout", TIME),
    (W, "rate: 4/s", "rate: 1e9/s", 3, "arrivals.rate", RATE),
    (W, "rate: 4/s", "rate: 1e-300/s", 3, "arrivals.rate", RATE),
    (W, "poisson", "{gamma: {cv: 1e-300}}", 3, "arrivals.process.gamma.cv", "must lie between 0.01 and 100, got"),
    (W, "poisson", "{gamma: {cv: 1e300}}", 3, "arrivals.process.gamma.cv", "must lie between 0.01 and 100, got"),
    (W, ARRIVALS, "closed: {concurrency: 1e9}", 3, "arrivals.closed.concurrency", "between 1 and 1000000, got"),
    (W, ARRIVALS, "trace: {path: t, speed: 1e-300}", 3, "arrivals.trace.speed", FACTOR),
    (W, ARRIVALS, "trace: {path: t, scale: 1e300}", 3, "arrivals.trace.scale", FACTOR),
    (W, ARRIVALS, "trace: {path: t, block_tokens: 1e30}", 3, "arrivals.trace.block_tokens", TOKENS),
    (W, ARRIVALS, "trace: {path: t, limit: 1e30}", 3, "arrivals.trace.limit", COUNT),
    (W, "4/s", "{burst: {size: 1e12, every: 5s}}", 3, "arrivals.rate.burst.size", "between 1 and 1000000, got"),
    (W, "4/s", "{burst: {size: 9, every: 5s, over: 1e-300}}", 3, "arrivals.rate.burst.over", "must be 0 or lie"),
    (W, "4/s", "{on_off: {rate: 4, on: 1e-9, off: 1}}", 3, "arrivals.rate.on_off.on", TIME),
    (W, "4/s", "{sinusoid: {mean: 4, amplitude: 1, period: 1e99}}", 3, "arrivals.rate.sinusoid.period", TIME),
    (W, "for: 2m", "for: 1e300", 6, "phases[1].for", TIME),
    (W, "for: 2m", "for: 1e-300", 6, "phases[1].for", TIME),
    (W, "for: 2m", "for: 364.9999d", 4, "phases", "together they last longer than 365d"),
    (W, "{to: 12/s}", "{to: 1e300/s}", 7, "phases[2].rate.to", RATE),
    (W, "weight: 0.7", "weight: 1e308", 10, "classes.short.weight", "between 0.000000001 and 1000000000, got"),
    (W, "    prefix:", "    targets: {ttft: 1e300}\n    prefix:", 11, "classes.short.targets.ttft", TIME),
    (W, "tokens: 256", "tokens: 1e30", 11, "classes.short.prefix.tokens", TOKENS),
    (W, "pool: 4", "working_set: {of: host, times: 1e99}", 11, "classes.short.prefix.working_set.times", FACTOR),
    (W, "{zipf: 1.0}", "{zipf: 1e300}", 11, "classes.short.prefix.popularity.zipf", "must lie between 0 and 20"),
    (W, "p95: 256", "p95: 1e300", 12, "classes.short.suffix_tokens.lognormal.p95", "0.001 and 1000000000, got"),
    (W, "median: 64", "median: 1e-9", 12, "classes.short.suffix_tokens.lognormal.median", "between 0.001 and"),
    (W, "output_tokens: 32", "output_tokens: 1e30", 13, "classes.short.output_tokens", TOKENS),
    (W, "{mean: 5}", "{mean: 1e300}", 15, "classes.agent.turns.geometric.mean", TOKENS),
    (W, "{geometric: {mean: 5}}", "{geometric: {mean: 1e9}}", 15, "classes.agent.turns", "at most 10,000 turns"),
    (W, "{geometric: {mean: 5}}", "10001", 15, "classes.agent.turns", "at most 10,000 turns"),
    (W, "{geometric: {mean: 5}}", "{uniform: [1, 10001]}", 15, "classes.agent.turns", "at most 10,000 turns"),
    (W, "    turns:", "    branch: {share: 1, count: 1e9}\n    turns:", 15, "classes.agent.branch.count", "10,000"),
    (W, "    turns:", "    branch: {share: 1, turns: 1e9}\n    turns:", 15, "classes.agent.branch.turns", "10,000"),
    (
        W,
        "    turns:",
        "    abort: {share: 1, after: 1e99}\n    turns:",
        15,
        "classes.agent.abort.after",
        "and 365d",
    ),
    (W, "median: 30s", "median: 1e-300", 16, "classes.agent.think.lognormal.median", TIME),
    (W, "p95: 5m", "p95: 1e308", 16, "classes.agent.think.lognormal.p95", TIME),
    (W, "[8, 64]", "[8, 1e30]", 17, "classes.agent.suffix_tokens.uniform[1]", TOKENS),
    (R, "max_ratio: 1.10", "max_ratio: 1e300", 3, "guardrails[0].max_ratio", FACTOR),
    (R, "max: 2s", "max: 1e300", 7, "guardrails[1].max", "ttft is never above 365d, got 1e+300"),
    (R, "30s, for: 120s", "10us, for: 60s", 8, "guardrails[1].sustained.window", "must be 100 ms or longer"),
    (R, "30s, for: 120s", "1s, for: 1h", 8, "guardrails[1].sustained.window", "must be 3.6 s or longer"),
    (R, "for: 120s", "for: 1e300", 8, "guardrails[1].sustained.for", TIME),
    (R, "min_ratio: 1.1", "min_ratio: 1e300", 11, "benefits[0].min_ratio", FACTOR),
    (R, "min: 1}", "min: 1e300}", 13, "evidence[0].min", "promoted_tokens is never above 1e+15 tokens"),
    (R, "max: 12", "max: 1000000", 14, "rounds.max", "must lie between 1 and 1000, got 1000000"),
    (R, "20ms", "1e-300", 15, "validity.send_lag_p99", TIME),
    (R, "send_lag_p99: 20ms", "scrape_gap: 1e300", 15, "validity.scrape_gap", TIME),
    (R, "send_lag_p99: 20ms", "contention: 1e300", 15, "validity.contention", "between 0 and 1000000, got"),
    (P, "max-model-len: 4096", "max-model-len: 10000000000", 7, "engine.args.max-model-len", "1000000000 tokens"),
    (P, "max-model-len: 4096", "block-size: 0", 7, "engine.args.block-size", "between 1 and 1000000000 tokens"),
    (P, "10m", "1e300", 9, "engine.ready_timeout", TIME),
    (P, "10m", "1e-300", 9, "engine.ready_timeout", TIME),
    (P, "blocks: 256", "blocks: 1e30", 11, "tiers.device.blocks", "must lie between 2 and 1000000000, got"),
    (P, "64MiB", "1e30", 13, "tiers.host.size", SIZE),
    (P, "policy: lru", "throttle: 1e-300", 14, "tiers.host.throttle", "between 1B/s and 1024PiB/s, got"),
    (P, "policy: lru", "chunk_tokens: 1e30", 14, "tiers.host.chunk_tokens", COUNT),
    (P, "policy: lru", "blocks_per_chunk: 1e30", 14, "tiers.host.blocks_per_chunk", COUNT),
    (P, "policy: lru", "store_threshold: 1e30", 14, "tiers.host.store_threshold", "between 0 and 1000000000, got"),
    (P, "policy: lru", "max_tracker_size: 1e30", 14, "tiers.host.max_tracker_size", COUNT),
    (P, "path: /mnt/kv", "path: /kv, read_threads: 1e9", 15, "tiers.disk.read_threads", "between 1 and 4096, got"),
    (P, "path: /mnt/kv", "path: /kv, size_limit: 1e30", 15, "tiers.disk.size_limit", SIZE),
]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "line", "key", "words"), BEYOND, ids=[f"{b[0]}-{b[4]}-{b[2][:30]}" for b in BEYOND]
)
def test_a_number_beyond_its_bounds_is_one_error_at_its_line(
    tmp_path: Path, kind: str, good: str, bad: str, line: int, key: str, words: str
) -> None:
    text, load = LOADERS[kind]
    assert text.count(good) >= 1
    file = tmp_path / f"{kind}.yaml"
    file.write_text(text.replace(good, bad, 1))
    with pytest.raises(InputError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}:{line}: {key}: ")
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


EMULATED = "name: e\nengine:\n  kind: emulated\n  model: tiny\n"


@pytest.mark.parametrize(
    ("engine", "key", "words"),
    [
        ("emulation: {costs: {token: 1e300}}", "emulation.costs.token", "less than or equal to 31536000"),
        ("emulation: {costs: {block_bytes: 1e30}}", "emulation.costs.block_bytes", SIZE),
        ("emulation: {noise: {level: 1000}}", "emulation.noise.level", "less than or equal to 5"),
        ("emulation: {seed: 1e30}", "emulation.seed", "and 9223372036854775807, got"),
        ("inject: {slow_steps: {factor: 1e300}}", "inject.slow_steps.factor", FACTOR),
        ("inject: {stalls: {every: 1e-300, by: 1}}", "inject.stalls.every", TIME),
        ("inject: {death: {after: 1e30}}", "inject.death.after", "must lie between 0 and 1000000000, got"),
    ],
)
def test_so_is_one_of_an_emulated_engine(tmp_path: Path, engine: str, key: str, words: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"{EMULATED}  {engine}\n")
    with pytest.raises(InputError) as caught:
        load_profile(file)
    assert str(caught.value).startswith(f"{file}:5: engine.{key}: ")
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


WITHIN = [
    (W, "rate: 4/s", "rate: 1/h"),
    (W, "rate: 4/s", "rate: 20000/s"),
    (W, "poisson", "{gamma: {cv: 0.05}}"),
    (W, "poisson", "{gamma: {cv: 20}}"),
    (W, "for: 2m", "for: 7d"),
    (W, "for: 2m", "for: 100ms"),
    (W, "weight: 0.7", "weight: 12345678"),
    (W, "tokens: 256", "tokens: 10000000"),
    (W, "{zipf: 1.0}", "{zipf: 3}"),
    (W, "{geometric: {mean: 5}}", "{geometric: {mean: 500}}"),
    (W, "{lognormal: {median: 30s, p95: 5m}}", "0"),
    (W, "median: 30s", "median: 10us"),
    (R, "30s, for: 120s", "1s, for: 15m"),
    (R, "30s, for: 120s", "100ms, for: 10s"),
    (R, "max: 12", "max: 300"),
    (R, "send_lag_p99: 20ms", "contention: 512"),
    (P, "max-model-len: 4096", "max-model-len: -1"),
    (P, "max-model-len: 4096", "max-model-len: 32k"),
    (P, "10m", "6h"),
    (P, "64MiB", "64TiB"),
    (P, "path: /mnt/kv", "path: /kv, size_limit: 8PiB, read_threads: 256"),
]


@pytest.mark.parametrize(("kind", "good", "bolder"), WITHIN, ids=[f"{w[0]}-{w[2]}" for w in WITHIN])
def test_what_somebody_may_really_want_is_taken(tmp_path: Path, kind: str, good: str, bolder: str) -> None:
    text, load = LOADERS[kind]
    file = tmp_path / f"{kind}.yaml"
    file.write_text(text.replace(good, bolder, 1))
    load(file)


LOAD = """\
name: any
seed: {seed}
think_scale: {scale}
request_timeout: {timeout}
arrivals: {arrivals}
phases: [{{name: warm, for: 100ms, measured: false}}, {{name: steady, for: {span}}}]
classes:
  agent:
    weight: {weight}
    prefix: {prefix}
    turns: {turns}
    think: {think}
    suffix_tokens: {length}
    output_tokens: 3
    branch: {{share: 0.3, count: {count}, turns: 2, output_tokens: {length}}}
    abort: {{share: 0.3, after: {after}}}
  plain: {{suffix_tokens: 5, output_tokens: {length}}}
"""
USUAL = {
    "seed": "1", "scale": "1", "timeout": "9", "arrivals": "{process: poisson, rate: 20/s}", "span": "400ms",
    "weight": "1", "prefix": "{tokens: 32, pool: 2}", "turns": "3", "think": "10ms", "length": "7", "count": "2",
    "after": "20ms",
}  # fmt: skip
TIMES = ("A", "{lognormal: {median: A, p95: B}}")
LENGTHS = ("A", "{uniform: [A, B]}", "{lognormal: {median: A, p95: B}}", "{geometric: {mean: A}}")
FORMS = {
    **dict.fromkeys(("seed", "scale", "timeout", "span", "weight"), ("A",)),
    **dict.fromkeys(("think", "after"), TIMES),
    **dict.fromkeys(("length", "turns", "count"), LENGTHS),
    "prefix": (
        "{tokens: A, pool: 2}",
        "{tokens: 32, pool: 9, popularity: {zipf: A}}",
        "{tokens: A, working_set: {of: device, times: B}}",
    ),
    "arrivals": (
        "{process: poisson, rate: A}",
        "{process: constant, rate: A}",
        "{gamma: {cv: A}, rate: B}",
        "{gamma: {cv: A}, rate: 20/s}",
        "{closed: {concurrency: A}}",
        "{process: poisson, rate: {sinusoid: {mean: B, amplitude: A, period: C}}}",
        "{process: constant, rate: {on_off: {rate: 20, on: A, off: B}}}",
        "{process: constant, rate: {burst: {size: C, every: B, over: A}}}",
    ),
}
NUMBERS = st.one_of(
    st.floats(0, allow_infinity=False),
    st.integers(0, 10**30),
    st.floats(-9, 11).map(lambda power: 10.0**power),
    st.integers(0, 9).map(lambda power: 10**power),
    st.sampled_from([1e-300, 1e-6, 0.001, 0.01, 100, 10_000, 31_536_000, 1e9, 2**63 - 1, 1e16, 1e300]),
)


@st.composite
def loads(draw: st.DrawFn) -> str:
    """A workload with any numbers in one place."""
    place = draw(st.sampled_from(sorted(FORMS)))
    text = draw(st.sampled_from(FORMS[place]))
    for letter, number in zip("ABC", sorted(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS))), strict=True):
        text = text.replace(letter, repr(number))
    return LOAD.format(**{**USUAL, place: text})


@settings(max_examples=100, deadline=None)
@given(text=loads())
def test_what_loads_is_planned_and_written_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    """With fewer requests to a round than there may be, so that the largest are made in no time."""
    folder = tmp_path_factory.getbasetemp()
    (folder / "any.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patched:
        for name in ("arrivals.MOST_REQUESTS", "build.MOST_REQUESTS", "sidelines.MOST_REQUESTS"):
            patched.setattr(f"kvbench.workload.{name}", 1000)
        for name in ("pools._LARGEST_POOL", "rates._MOST_CYCLES"):
            patched.setattr(f"kvbench.workload.{name}", 1000)
        try:
            schedule = build_schedule(
                load_workload(folder / "any.yaml"),
                1,
                block_tokens=16,
                capacities_tokens={"device": 4096},
                max_model_len=None,
            )
        except InputError:
            return
    write_schedule(schedule, folder / "any.parquet")
