"""CPU of the client for 1,000 streamed events, everything included, beside the C reader's in the same run.

    python -m tests.benchmarks.bench_client_cpu [--runs 5] [--seconds 10] [--streams 200 600]

A closed loop of answers of 128 tokens, one each 10 ms: 200 streams are 19,000 events/s, 600 are 58,000. `all`
counts from time zero to the exit of the process: sending, reading, parsing, recording, Locust, Parquet; `loop`
without what comes after the last answer. Exits with 1 unless `all` is at most 5 times the C reader's at 200 streams
and 4 times at 600, with all taken that the server offers; medians of five runs, ratios in one. `bench_client_peers`
has the best peer beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import neutral
from tests.benchmarks.wanted import Wanted, median

TOKENS = 128
EACH_S = 0.05 + 0.01 * (TOKENS - 1)
OF_C = {200: 5.0, 600: 4.0}
TAKEN = 0.97
"""Of the pace that the server offers: what is missing is what lies between the end of one answer and the next."""


def measure(place: Path, streams: int, seconds: float) -> dict[str, float]:
    """ms for 1,000 events: C, everything of ours, our loop alone; and how our pace compares to the server's."""
    with neutral.server(place) as port:
        c = neutral.read_in_c(place, port, streams=streams, tokens=TOKENS, for_s=seconds)
    planned = neutral.closed_loop(streams, tokens=TOKENS, for_s=seconds, each_s=EACH_S)
    with neutral.server(place) as port:
        played = neutral.play(planned, port, place)
    events = played.figures["events"] or 0.0
    rows = pq.read_table(played.directory / "requests.parquet", columns=["status", "intended_s", "last_token_s"])
    answers = rows.to_pandas()
    answers = answers[answers["status"] == "ok"]
    # A slot is free when an answer ends, so this is how long one takes with what goes before it.
    each_s = float((answers["last_token_s"] - answers["intended_s"]).mean())
    all_ = played.cpu_s * 1e6 / events
    return {
        "c": c["cpu_ms_per_1000"],
        "all": all_,
        "loop": (played.figures["client_cpu_s"] or 0.0) * 1e6 / events,
        "all / c": all_ / c["cpu_ms_per_1000"],
        "taken": EACH_S / each_s,
    }


def judge(wanted: Wanted, streams: int, runs: Sequence[dict[str, float]]) -> None:
    limit = OF_C.get(streams, max(OF_C.values()))
    wanted.at_most(f"{streams} streams: CPU of all / C", median(runs, "all / c"), limit)
    wanted.at_least(f"{streams} streams: taken of what is offered", median(runs, "taken"), TAKEN)


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--streams", type=int, nargs="+", default=[200, 600])
    arguments = parser.parse_args()
    print(neutral.limits(), flush=True)
    wanted = Wanted(runs=arguments.runs)
    with neutral.workplace() as place:
        for streams in arguments.streams:
            runs = [measure(place, streams, arguments.seconds) for _ in range(arguments.runs)]
            c, all_, loop = (median(runs, name) for name in ("c", "all", "loop"))
            print(
                f"{streams} streams, {streams * TOKENS / EACH_S:,.0f} tokens/s offered, medians of {len(runs)}: C "
                f"{c:.1f}, all {all_:.1f}, loop {loop:.1f} ms per 1,000 events; runs "
                + " ".join(f"{run['c']:.1f}/{run['all']:.1f}" for run in runs),
                flush=True,
            )
            judge(wanted, streams, runs)
    return wanted.end()


if __name__ == "__main__":
    sys.exit(main())
