"""Emptying the tiers of a running vLLM: caches by its development routes, the disk tier by removing files."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import httpx

from kvbench.engine.remains import MARK

__all__ = ["blocks_on_disk", "empty_disk", "reset_caches"]

BLOCKS = ("*.bin", "*.data")
"""Files of vLLM's file tier, and of LMCache's."""

BUSY_S = 10.0
"""A reset is refused while blocks are in use; stores of the last requests are done within a second or two."""


def blocks_on_disk(directory: Path) -> int:
    """How many block files lie in a launch's own directory."""
    return sum(1 for pattern in BLOCKS for _ in directory.rglob(pattern))


def reset_caches(client: httpx.Client) -> tuple[str, ...]:
    """Empty the device and the host tier; returns what could not be emptied."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            answer = client.post("/reset_prefix_cache", params={"reset_external": "true"})
            if answer.status_code == 404:
                return ("device and host: the server does not offer a reset (it needs VLLM_SERVER_DEV_MODE=1)",)
            if answer.status_code != 200:
                return (f"device and host: the reset was answered with {answer.status_code}",)
            if not answer.content or answer.json().get("success") is True:
                return ()
        except (httpx.HTTPError, ValueError, AttributeError) as error:
            return (f"device and host: the reset failed: {error or type(error).__name__}",)
        if time.monotonic() > deadline:
            return ("device and host: blocks stayed in use, so the reset was refused",)
        time.sleep(0.2)


def empty_disk(directory: Path) -> tuple[str, ...]:
    """Remove every block file of a launch's own directory; vLLM then finds plain misses and makes it anew."""
    if not (directory / MARK).is_file():
        return (f"disk: {directory} is not marked as kvbench's, so nothing in it was removed",)
    for entry in directory.iterdir():
        if entry.name == MARK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    left = blocks_on_disk(directory)
    return (f"disk: {left} blocks are still there",) if left else ()
