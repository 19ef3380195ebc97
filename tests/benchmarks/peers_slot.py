"""`kvbench run` in the slot that `peers/run.sh` has for another tool: one attached server, one load.

    peers/run.sh --phases ladder --only cmd --cmd "$PWD/.venv/bin/python -m tests.benchmarks.peers_slot \
        --url {url} --mode {mode} --conc {conc} --rate {rate} --secs {secs} --isl {isl} --out-len {out_len} \
        --outdir {outdir}"

What a user would run, nothing taken out of it: the spec is read, the server scraped, the host observed, every token
recorded. Quantiles are of what was recorded, in ms; a gap is between two tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml


def workload(asked: argparse.Namespace) -> dict[str, Any]:
    """One class, one phase; prompts that share nothing."""
    arrivals: dict[str, Any] = {"process": {"closed": {"concurrency": asked.conc}}}
    if asked.mode == "rate":
        arrivals = {"process": asked.arrival or "poisson", "rate": asked.rate}
    return {
        "name": "slot",
        "seed": 1,
        "arrivals": arrivals,
        "phases": [{"name": "steady", "for": asked.secs}],
        "classes": {"bench": {"suffix_tokens": asked.isl, "output_tokens": asked.out_len}},
    }


def results(run: Path) -> dict[str, Any]:
    """As the slot wants them."""
    (requests_file,) = run.glob("arms/*/round-1/requests.parquet")
    requests = pq.read_table(requests_file, columns=["id", "status", "intended_s", "first_token_s"]).to_pandas()
    tokens = pq.read_table(requests_file.with_name("tokens.parquet")).to_pandas()
    ok = requests[requests["status"] == "ok"]
    ids, times_s = tokens["id"].to_numpy(), tokens["t_s"].to_numpy()
    gaps_s = np.diff(times_s)[ids[1:] == ids[:-1]]
    found: dict[str, Any] = {"itl_kind": "token", "n": len(ok)}
    for name, values in (("ttft", (ok["first_token_s"] - ok["intended_s"]).to_numpy()), ("itl", gaps_s)):
        p50, p99 = np.quantile(values, (0.5, 0.99)) * 1e3
        found |= {f"{name}_p50_ms": p50, f"{name}_p99_ms": p99}
    return found


def main() -> int:
    """The exit code of `kvbench run`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--mode", choices=("conc", "rate"), required=True)
    parser.add_argument("--conc", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--arrival", choices=("constant", "poisson", ""), default="")
    parser.add_argument("--secs", type=float, required=True)
    parser.add_argument("--isl", type=int, required=True)
    parser.add_argument("--out-len", type=int, required=True)
    parser.add_argument("--outdir", type=Path, required=True)
    asked = parser.parse_args()
    profile = {"name": "neutral", "engine": {"kind": "attached", "base_url": asked.url, "model": "tiny"}}
    for name, content in (("profile", profile), ("workload", workload(asked))):
        (asked.outdir / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    command = [sys.executable, "-m", "kvbench", "run", str(asked.outdir / "profile.yaml"), "--json"]
    command += ["--workload", str(asked.outdir / "workload.yaml"), "--out", str(asked.outdir / "results")]
    done = subprocess.run(command, check=False)
    runs = sorted((asked.outdir / "results").glob("*/run.json"))
    if done.returncode == 0 and runs:
        (asked.outdir / "result.json").write_text(json.dumps(results(runs[-1].parent)), encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
