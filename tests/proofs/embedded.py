"""One arm with a host and a disk tier on the embedded engine, recorded by `kvbench run`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["ARM", "host_and_disk", "recorded"]

ARM = "host-and-disk"


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
