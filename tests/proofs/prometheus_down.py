"""A gate's watch outlives a Prometheus that is down for a minute: `python -m tests.proofs.prometheus_down`.

Two emulated servers under load, one real Prometheus: killed once a watch of thirteen minutes has begun, and
started again on its data a minute later (`--watch`, `--down`: seconds). With the 6 s that finding its targets takes
that is less than the tenth which a gate forgives; of eleven minutes it is more, and INCONCLUSIVE for the gap. The
tests do the same with six seconds of eighty.
Exits with 1 unless the healthy canary may stay, the outage is outlived, and the gap is said.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.canary.field import watched_through_an_outage

MARGIN_S = 120.0


def against(exit_code: int, verdict: dict[str, object]) -> list[str]:
    """What does not hold, in sentences."""
    rules = {rule["rule"]: rule for rule in verdict["rules"]}  # type: ignore[attr-defined]
    faults = []
    if (verdict["verdict"], exit_code) != ("GO", 0):
        faults.append(f"{verdict['verdict']} with exit code {exit_code}: {verdict['reasons']}")
    if rules["metrics-unreachable"]["status"] != "pass":
        faults.append(f"the outage was not outlived: {rules['metrics-unreachable']['text']}")
    if "no scrapes for" not in rules["scrape-gap"]["text"]:
        faults.append(f"the gap is not said: {rules['scrape-gap']['text']}")
    return faults


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watch", type=float, default=780.0, metavar="SECONDS")
    parser.add_argument("--down", type=float, default=60.0, metavar="SECONDS")
    given = parser.parse_args()
    print(f"a watch of {given.watch:g} s, of which Prometheus is down for {given.down:g} s", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="kvbench-proof-") as folder,
        watched_through_an_outage(Path(folder), watch_s=given.watch, down_s=given.down) as watch,
    ):
        out, said = watch.communicate(timeout=given.watch + MARGIN_S)
    try:
        verdict = json.loads(out)
    except json.JSONDecodeError:
        print(f"FAILS  no verdict: {said}")
        return 1
    faults = against(watch.returncode, verdict)
    gap = next(rule["text"] for rule in verdict["rules"] if rule["rule"] == "scrape-gap")
    print(f"{verdict['verdict']}, exit code {watch.returncode}; {gap}")
    for fault in faults:
        print(f"FAILS  {fault}")
    print(json.dumps({"holds": not faults}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
