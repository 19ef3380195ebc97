"""Small valid files, as a user would write them; tests change what they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.standin.server import stand_in

WORKLOAD = """\
name: quick
seed: 3
arrivals: {process: poisson, rate: 40/s}
phases:
  - {name: warm, for: 1s, measured: false}
  - {name: steady, for: 2s}
classes:
  short: {weight: 0.7, prefix: {tokens: 256, pool: 4}, suffix_tokens: 64, output_tokens: 8}
  long: {weight: 0.3, prefix: {tokens: 1024, pool: 6}, suffix_tokens: 64, output_tokens: 8}
request_timeout: 10s
"""

RULES = """\
guardrails:
  - {id: ttft-p90, metric: ttft, quantile: 0.9, max_ratio: 3}
  - {id: errors, metric: error_rate, max: 5%}
  - {id: parity, metric: output_parity}
benefits:
  - {id: long-ttft, metric: ttft, class: long, quantile: 0.5, max_ratio: 0.8}
rounds: {min: 2, max: 2}
validity: {send_lag_p99: 200ms, contention: 4}
"""


def attached_profile(name: str, base_url: str, **engine: object) -> str:
    """A profile of a server that is already running."""
    lines = [f"name: {name}", "engine:", "  kind: attached", f"  base_url: {base_url}"]
    lines += [f"  {key}: {value}" for key, value in ({"model": "stand-in"} | engine).items()]
    return "\n".join(lines) + "\n"


CPU_PROFILE = """\
name: {name}
engine: {{kind: vllm, environment: vllm-cpu, model: tiny, args: {{max-model-len: 4096}}}}
tiers: {{device: {{blocks: 64}}}}
"""


def write(folder: Path, **files: str) -> dict[str, Path]:
    """Write `name=content` as `<folder>/<name>.yaml`."""
    paths = {}
    for name, content in files.items():
        paths[name] = folder / f"{name}.yaml"
        paths[name].write_text(content, encoding="utf-8")
    return paths


@contextmanager
def two_stand_ins(folder: Path) -> Iterator[list[str | Path]]:
    """Arguments that compare two servers by a short workload; the servers go on running until the end."""
    with stand_in() as (one, _), stand_in() as (other, _):
        files = write(
            folder,
            base=attached_profile("base", one),
            other=attached_profile("other", other),
            workload=WORKLOAD.replace("1s", "500ms").replace("2s", "1s"),
            rules=RULES.replace("max: 5%", "max: 20%"),
        )
        yield [files["base"], files["other"], "-w", files["workload"], "-r", files["rules"]]
