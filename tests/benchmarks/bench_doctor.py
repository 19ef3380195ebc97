"""Seconds of `kvbench doctor`, from the command to its end: `python -m tests.benchmarks.bench_doctor [--runs 3]`.

Wanted: under 20 s on a host without a GPU, everything measured (memory, disk tier), for each of the profiles, in
each of the runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.wanted import Wanted

REPOSITORY = Path(__file__).resolve().parents[2]
PROFILES = ("cpu/host-and-disk", "vllm/host-and-disk", "tensorrt-llm/host")
LIMIT_S = 20.0


def here(name: str, folder: Path) -> Path:
    """The shipped profile with a disk tier, if it has one, in a folder of ours."""
    spec = yaml.safe_load((REPOSITORY / "profiles" / f"{name}.yaml").read_text(encoding="utf-8"))
    if "disk" in spec["tiers"]:
        spec["tiers"]["disk"]["path"] = str(folder / "kv")
    file = folder / f"{name.replace('/', '-')}.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


def diagnosed(profile: Path) -> tuple[float, dict[str, int]]:
    """Seconds, and checks by status."""
    command = [sys.executable, "-m", "kvbench", "doctor", str(profile), "--json"]
    began = time.monotonic()
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    checks = json.loads(answer.stdout)["checks"]
    statuses = [check["status"] for check in checks]
    return took, {status: statuses.count(status) for status in ("ok", "warn", "fail", "skipped")}


def judge(wanted: Wanted, longest_s: dict[str, float]) -> None:
    """By profile, the longest of its runs."""
    for profile, took in longest_s.items():
        wanted.at_most(f"{profile}: the whole of `kvbench doctor`", took, LIMIT_S, " s")


def main() -> int:
    """Print one line a profile; 0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    longest: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="kvbench-doctor-") as name:
        (Path(name) / "kv").mkdir()
        for profile in PROFILES:
            file = here(profile, Path(name))
            told = [diagnosed(file) for _ in range(runs)]
            seconds = [took for took, _ in told]
            longest[profile] = max(seconds)
            checks = ", ".join(f"{count} {status}" for status, count in told[-1][1].items())
            print(
                f"{profile}: {statistics.median(seconds):.1f} s, {max(seconds):.1f} s at most ({checks})",
                flush=True,
            )
    wanted = Wanted()
    judge(wanted, longest)
    return wanted.end()


if __name__ == "__main__":
    sys.exit(main())
