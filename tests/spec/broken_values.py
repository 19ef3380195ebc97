"""Good spec files, and one broken value after the other: what to put where, and what the message must say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvbench.spec.loading import load_profile, load_rules, load_workload

PROFILE = """\
name: tiered
engine:
  kind: vllm
  environment: vllm-cpu
  version: 0.32.0
  model: tiny
  args: {max-model-len: 4096}
  env: {OMP_NUM_THREADS: 2}
  ready_timeout: 10m
tiers:
  device: {blocks: 256}
  host:
    size: 64MiB
    policy: lru
  disk: {path: /mnt/kv}
"""
WORKLOAD = """\
name: small
seed: 1
arrivals: {process: poisson, rate: 4/s}
phases:
  - {name: warm, for: 20s, measured: false}
  - {name: steady, for: 2m}
  - {name: ramp, for: 30s, rate: {to: 12/s}}
classes:
  short:
    weight: 0.7
    prefix: {tokens: 256, pool: 4, popularity: {zipf: 1.0}}
    suffix_tokens: {lognormal: {median: 64, p95: 256}}
    output_tokens: 32
  agent:
    turns: {geometric: {mean: 5}}
    think: {lognormal: {median: 30s, p95: 5m}}
    suffix_tokens: {uniform: [8, 64]}
    output_tokens: 16
"""
RULES = """\
confidence: 0.95
guardrails:
  - {id: ttft-p99, metric: ttft, quantile: 0.99, max_ratio: 1.10}
  - id: sustained
    metric: ttft
    quantile: 0.99
    max: 2s
    sustained: {window: 30s, for: 120s}
  - {id: errors, metric: error_rate, max: 0.1%}
benefits:
  - {id: goodput, metric: goodput, min_ratio: 1.1}
evidence:
  - {id: promoted, metric: promoted_tokens, min: 1}
rounds: {min: 3, max: 12}
validity: {send_lag_p99: 20ms}
"""
LOADERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "profile": (PROFILE, load_profile),
    "workload": (WORKLOAD, load_workload),
    "rules": (RULES, load_rules),
}

# (kind, what the good file says, what the broken one says, line, key, words of the message)
P, W, R = "profile", "workload", "rules"
BROKEN = [
    # unknown keys, and the nearest valid one
    (
        P,
        "    size: 64MiB",
        "    szie: 64MiB",
        13,
        "tiers.host.szie",
        "unknown key; did you mean 'size'? valid keys:",
    ),
    (P, "  ready_timeout: 10m", "  ready_time: 10m", 9, "engine.ready_time", "did you mean 'ready_timeout'?"),
    (P, "tiers:\n", "tier:\n", 10, "tier", "did you mean 'tiers'? valid keys: engine, name, tiers"),
    (P, "  disk: {path", "  dsk: {path", 15, "tiers.dsk", "did you mean 'disk'?"),
    (P, "{blocks: 256}", "{block: 256}", 11, "tiers.device.block", "did you mean 'blocks'?"),
    (W, "p95: 256", "p99: 256", 12, "classes.short.suffix_tokens.lognormal.p99", "did you mean 'p95'?"),
    (W, "pool: 4", "pol: 4", 11, "classes.short.prefix.pol", "did you mean 'pool'?"),
    (W, "pool: 4", "pool: 4000000", 11, "classes.short.prefix.pool", "must be less than or equal to 1000000"),
    (
        W,
        "{lognormal: {median: 64, p95: 256}}",
        "{empirical: ~nobodyx/f}",
        12,
        "classes.short.suffix_tokens.empirical",
        "no home directory",
    ),
    (W, "for: 2m", "For: 2m", 6, "phases[1].For", "did you mean 'for'?"),
    (W, "for: 2m", "for_s: 2m", 6, "phases[1].for_s", "did you mean 'for'?"),
    (W, "{geometric: {mean: 5}}", "{geometrical: {mean: 5}}", 15, "classes.agent.turns", "{geometric: {mean}}"),
    (R, "max_ratio: 1.10", "max_ration: 1.10", 3, "guardrails[0].max_ration", "did you mean 'max_ratio'?"),
    (R, "window: 30s", "windows: 30s", 8, "guardrails[1].sustained.windows", "did you mean 'window'?"),
    (R, "send_lag_p99", "send_lag", 15, "validity.send_lag", "did you mean 'send_lag_p99'?"),
    # missing keys
    (P, "  model: tiny\n", "", 2, "engine", "needs the key 'model'"),
    (P, "    size: 64MiB\n", "", 12, "tiers.host", "needs the key 'size'"),
    (W, "rate: 4/s", "", 3, "arrivals.process", "process poisson needs rate, such as 4/s"),
    (R, "id: errors, ", "", 9, "guardrails[2]", "needs the key 'id'"),
    # units and quantities
    (P, "64MiB", "64MiBs", 13, "tiers.host.size", "'64MiBs' has no unit of bytes; valid units: B, kB"),
    (P, "64MiB", "64s", 13, "tiers.host.size", "has no unit of bytes"),
    (P, "64MiB", "lots", 13, "tiers.host.size", "is not a quantity: write a number with a unit such as 16GiB"),
    (P, "64MiB", "-1GiB", 13, "tiers.host.size", "must be greater than 0"),
    (P, "10m", "1:30", 9, "engine.ready_timeout", "a number with a unit, not colons"),
    (P, "64MiB", "1e999", 13, "tiers.host.size", "is not a finite number"),
    (W, "rate: 4/s", "rate: 4s", 3, "arrivals.rate", "has no unit of per second; valid units: /s, /m"),
    (W, "for: 20s", "for: 20/s", 5, "phases[0].for", "has no unit of seconds"),
    (R, "max: 2s", "max: 2%", 7, "guardrails[1].max", "'2%' has no unit of seconds"),
    (R, "max: 0.1%", "max: 10", 9, "guardrails[2].max", "error_rate lies between 0 and 1"),
    (R, "min: 1}", "min: 1s}", 13, "evidence[0].min", "promoted_tokens is a number of tokens, got '1s'"),
    (R, "confidence: 0.95", "confidence: 95", 1, "confidence", "must be less than 1"),
    (R, "quantile: 0.99, max_ratio", "quantile: 99, max_ratio", 3, "guardrails[0].quantile", "must be less than 1"),
    # wrong kinds of values
    (P, "blocks: 256", "blocks: true", 11, "tiers.device.blocks", "expected a whole number, got true"),
    (P, "blocks: 256", "blocks: 256.5", 11, "tiers.device.blocks", "expected a whole number, got 256.5"),
    (P, "policy: lru", "policy: fifo", 14, "tiers.host.policy", "'fifo' is not known here; valid values: arc, lru"),
    (P, "version: 0.32.0", "version: 0.32", 5, "engine.version", 'put quotes around it: "0.32"'),
    (P, "name: tiered", "name: my tier", 1, "name", "'my tier' is not a name; use letters"),
    (P, "kind: vllm", "kind: vlm", 3, "engine.kind", "did you mean 'vllm'?"),
    (
        P,
        "{OMP_NUM_THREADS: 2}",
        "{OMP_NUM_THREADS: true}",
        8,
        "engine.env.OMP_NUM_THREADS",
        "expected text, got true",
    ),
    (P, "{OMP_NUM_THREADS: 2}", "{'A B': 2}", 8, "engine.env.A B", "the NAME of an environment variable"),
    (
        P,
        "  device: {blocks: 256}",
        "  device: 256",
        11,
        "tiers.device",
        "expected keys with values beneath, got 256",
    ),
    (P, "max-model-len: 4096", "enforce-eager: yes", 7, "engine.args.enforce-eager", "write true or false"),
    (P, "max-model-len: 4096", "enforce-eager: ", 7, "engine.args.enforce-eager", "a switch takes true or false"),
    (W, "measured: false", "measured: maybe", 5, "phases[0].measured", "expected true or false, got 'maybe'"),
    (W, "output_tokens: 32", "output_tokens: some", 13, "classes.short.output_tokens", "a whole number"),
    (W, "output_tokens: 32", "output_tokens: [1, 2]", 13, "classes.short.output_tokens", "{uniform: [a, b]}"),
    (W, "{lognormal: {median: 30s, p95: 5m}}", "[30s]", 16, "classes.agent.think", "a time such as 30s"),
    (W, "{zipf: 1.0}", "zipf", 11, "classes.short.prefix.popularity", "'zipf' is not known here"),
    (W, "{zipf: 1.0}", "1.0", 11, "classes.short.prefix.popularity", "expected uniform, or {zipf: EXPONENT}"),
    (W, "rate: {to: 12/s}", "rate: [12]", 7, "phases[2].rate", "or {to: 12/s} for a ramp"),
    (W, "  agent:\n", "  my agent:\n", 14, "classes.my agent", "'my agent' is not a name"),
    (R, "metric: goodput", "metric: goodputs", 11, "benefits[0].metric", "did you mean 'goodput'?"),
    # impossible values
    (P, "blocks: 256", "blocks: 20", 11, "tiers.device.blocks", "needs 33 blocks of 128 tokens"),
    (P, "blocks: 256", "blocks: 256, memory_utilization: 0.8", 11, "tiers.device.blocks", "not both"),
    (P, "blocks: 256", "kv_dtype: int8", 11, "tiers.device.kv_dtype", "vLLM has no KV type 'int8'"),
    (P, "policy: lru", "store_threshold: 2", 14, "tiers.host.store_threshold", "vLLM refuses store_threshold"),
    (P, "policy: lru", "chunk_tokens: 100", 14, "tiers.host.chunk_tokens", "multiple of the KV block, 128 tokens"),
    (P, "policy: lru", "blocks_per_chunk: 2\n    chunk_tokens: 256", 14, "tiers.host.blocks_per_chunk", "not both"),
    (P, "policy: lru", "min_priority: 40", 14, "tiers.host.min_priority", "a setting of tensorrt-llm"),
    (P, "policy: lru", "cpu_offload_gb: 4", 14, "tiers.host.cpu_offload_gb", "moves model weights to the host"),
    (P, "max-model-len", "cpu-offload-gb", 7, "engine.args.cpu-offload-gb", "moves model weights to the host"),
    (P, "max-model-len", "--kv_offloading_size", 7, "engine.args", "use the profile's tiers.host.size"),
    (P, "max-model-len", "host", 7, "engine.args.host", "engines listen on loopback only"),
    (P, "max-model-len", "api-key", 7, "engine.args.api-key", "secrets do not belong in a profile"),
    (P, "max-model-len: 4096", "disable-log-stats: true", 7, "engine.args.disable-log-stats", "every metric"),
    (P, "{max-model-len: 4096}", "{a-b: 1, a_b: 2}", 7, "engine.args.a_b", "the flag a-b is given twice"),
    (P, "  host:\n    size: 64MiB\n    policy: lru\n", "", 12, "tiers.disk", "stands behind the host tier"),
    (P, "path: /mnt/kv", "path: $HOME/kv", 15, "tiers.disk.path", "environment variables are not replaced"),
    (P, "path: /mnt/kv", "path: /mnt/kv, locality: LOCAL", 15, "tiers.disk.locality", "on the embedded engine"),
    (P, "model: tiny", "model: tinny", 6, "engine.model", "did you mean 'tiny'?"),
    (P, "kind: vllm", "kind: attached", 2, "engine", "kind attached needs base_url"),
    (P, "  version", "  image: vllm:latest\n  version", 5, "engine.image", "give one of environment, image"),
    (P, "environment: vllm-cpu", "image: vllm:latest", 4, "engine.image", "REF@sha256:..."),
    (P, "  version", "  base_url: http://x\n  version", 5, "engine.base_url", "belongs to kind: attached"),
    (P, "kind: vllm", "kind: tensorrt-llm", 15, "tiers.disk", "tensorrt-llm 1.2 has no disk tier"),
    (W, "rate: 4/s", "rate: 4/s, closed: {concurrency: 2}", 3, "arrivals.closed", "no effect with process poisson"),
    (W, "process: poisson", "process: gamma", 3, "arrivals.process", "process gamma needs gamma: {cv: 2}"),
    (
        W,
        "process: poisson, rate: 4/s",
        "closed: {concurrency: 2}",
        7,
        "phases[2].rate",
        "no effect with process closed",
    ),
    (W, "process: poisson", "process: {gamma: {cv: -1}}", 3, "arrivals.process.gamma.cv", "greater than 0"),
    (W, "process: poisson", "process: {gama: {cv: 1}}", 3, "arrivals.process", "expected one process"),
    (W, "process: poisson", "process: {gamma: {cv: 1}}, gamma: {cv: 1}", 3, "arrivals.gamma", "given twice"),
    (W, "process: poisson", "closed: {concurrency: 2}", 3, "arrivals.rate", "a request follows another"),
    (
        W,
        "rate: 4/s",
        "rate: {sinusoid: {mean: 4/s, amplitude: 5/s, period: 60s}}",
        3,
        "arrivals.rate.sinusoid.amplitude",
        "a rate cannot fall below zero: at most the mean, 4/s",
    ),
    (W, "rate: 4/s", "rate: {sinusoid: {mean: 4/s, amplitude: 1/s}}", 3, "arrivals.rate.sinusoid", "'period'"),
    (W, "rate: 4/s", "rate: {to: 4/s}", 3, "arrivals.rate", "expected a rate such as 4/s, {sinusoid:"),
    (
        W,
        "{to: 12/s}",
        "{on_off: {rate: 2/s, on: 5s, of: 5s}}",
        7,
        "phases[2].rate.on_off.of",
        "did you mean 'off'?",
    ),
    (
        W,
        "{to: 12/s}",
        "{on_off: {rate: 2/s, on: 5s, off: 5s, base: 2/s}}",
        7,
        "phases[2].rate.on_off.base",
        "below the rate while on, 2/s",
    ),
    (
        W,
        "{to: 12/s}",
        "{burst: {size: 0, every: 5s}}",
        7,
        "phases[2].rate.burst.size",
        "greater than or equal to 1",
    ),
    (
        W,
        "{to: 12/s}",
        "{burst: {size: 9, every: 5s, over: 5s}}",
        7,
        "phases[2].rate.burst.over",
        "over before the next begins, after 5 s",
    ),
    (W, "{to: 12/s}", "{bursts: {size: 9}}", 7, "phases[2].rate", "{burst: {size, every}}; got {bursts}"),
    (W, "    prefix:", "    branch: {share: 1%}\n    prefix:", 11, "classes.short.branch", "add turns"),
    (W, "    turns:", "    branch: {}\n    turns:", 15, "classes.agent.branch", "needs the key 'share'"),
    (W, "    turns:", "    branch: {share: 0}\n    turns:", 15, "classes.agent.branch.share", "greater than 0"),
    (W, "    turns:", "    branch: {share: 1, turn: 2}\n    turns:", 15, "classes.agent.branch.turn", "'turns'?"),
    (
        W,
        "    turns:",
        "    compact: {after_tokens: 100, to_tokens: 100}\n    turns:",
        15,
        "classes.agent.compact.to_tokens",
        "must be shorter than after_tokens, 100",
    ),
    (
        W,
        "    turns:",
        "    prefix: {tokens: 64, pool: 2}\n    compact: {after_tokens: 100, to_tokens: 64}\n    turns:",
        16,
        "classes.agent.compact.to_tokens",
        "must hold the prefix, 64 tokens, and more",
    ),
    (
        W,
        "    prefix:",
        "    compact: {after_tokens: 9, to_tokens: 5}\n    prefix:",
        11,
        "classes.short.compact",
        "add turns",
    ),
    (
        W,
        "    prefix:",
        "    abort: {share: 5%}\n    prefix:",
        11,
        "classes.short.abort",
        "give one of after_tokens",
    ),
    (
        W,
        "    prefix:",
        "    abort: {share: 5%, after_tokens: 3, after: 2s}\n    prefix:",
        11,
        "classes.short.abort",
        "give one of after_tokens",
    ),
    (
        W,
        "    prefix:",
        "    abort: {share: 105%, after: 2s}\n    prefix:",
        11,
        "classes.short.abort.share",
        "or equal to 1",
    ),
    (
        W,
        "    prefix:",
        "    abort: {share: 5%, after: 2/s}\n    prefix:",
        11,
        "classes.short.abort.after",
        "no unit of seconds",
    ),
    (W, "name: ramp", "name: steady", 7, "phases[2].name", "another phase is called steady"),
    (W, "name: warm", "name: prime", 5, "phases[0].name", "prime is the name of the filling"),
    (
        W,
        "pool: 4",
        "pool: 4, working_set: {of: device, times: 3}",
        11,
        "classes.short.prefix.working_set",
        "not both",
    ),
    (W, " pool: 4,", "", 11, "classes.short.prefix", "needs a size: pool: N, or working_set"),
    (
        W,
        "median: 64",
        "median: 640",
        12,
        "classes.short.suffix_tokens.lognormal.p95",
        "cannot lie below the median",
    ),
    (W, "[8, 64]", "[64, 8]", 17, "classes.agent.suffix_tokens.uniform", "the smaller number comes first"),
    (W, "[8, 64]", "[8]", 17, "classes.agent.suffix_tokens.uniform", "expected more values, got [8]"),
    (W, "    turns: {geometric: {mean: 5}}\n", "", 15, "classes.agent.think", "think time lies between turns"),
    (W, "  short:\n", "  all:\n", 9, "classes.all", "choose another name"),
    (W, "weight: 0.7", "weight: 0", 10, "classes.short.weight", "must be greater than 0"),
    (R, "quantile: 0.99, max_ratio", "max_ratio", 3, "guardrails[0].metric", "add quantile: 0.99"),
    (R, "max: 2s", "max_ratio: 2", 8, "guardrails[1].sustained", "add max: 2s"),
    (R, "window: 30s", "window: 130s", 8, "guardrails[1].sustained.window", "cannot be longer than for"),
    (R, "id: errors", "id: sustained", 9, "guardrails[2].id", "another rule has the id sustained"),
    (R, "id: errors", "id: stability", 9, "guardrails[2].id", "stability is the guardrail that every run has"),
    (R, "max: 0.1%", "quantile: 0.5, max: 0.1%", 9, "guardrails[2].quantile", "error_rate has no quantiles"),
    (R, "max: 0.1%", "min: 0.1%", 9, "guardrails[2].min", "lower is better for error_rate; use max"),
    (R, ", max: 0.1%", "", 9, "guardrails[2]", "has no limit"),
    (R, "max: 0.1%", "max: 0.1%, sustained: {window: 1s, for: 2s}", 9, "guardrails[2].sustained", "is no latency"),
    (R, "metric: error_rate", "metric: source_share", 9, "guardrails[2].metric", "source_share needs source"),
    (R, "max: 0.1%", "max: 0.1%, source: host", 9, "guardrails[2].source", "error_rate has no source"),
    (R, "min_ratio: 1.1", "min_ratio: 0.9", 11, "benefits[0].min_ratio", "no improvement; a benefit lies above 1"),
    (
        R,
        "min_ratio: 1.1",
        "max_ratio: 0.9",
        11,
        "benefits[0].max_ratio",
        "higher is better for goodput; use min_ratio",
    ),
    (R, "min_ratio: 1.1", "min: 5/s", 11, "benefits[0].min", "measured against the baseline; use min_ratio"),
    (R, "min: 1}", "min_ratio: 2}", 13, "evidence[0].min_ratio", "about the candidate alone; use min"),
    (
        W,
        "{process: poisson, rate: 4/s}",
        "poisson",
        3,
        "arrivals",
        "expected keys with values beneath, got 'poisson'",
    ),
    (P, "model: tiny", "model: ''", 6, "engine.model", "must not be empty"),
    (P, "environment: vllm-cpu", "command: vllm", 4, "engine.command", "expected a list, got 'vllm'"),
    (
        R,
        "metric: goodput, min_ratio: 1.1",
        "metric: e2e, quantile: 0.5, max_ratio: 1",
        11,
        "benefits[0].max_ratio",
        "below 1",
    ),
    (R, "min: 3,", "min: 13,", 14, "rounds.min", "min (13) is larger than max (12)"),
]
