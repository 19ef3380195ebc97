"""What can be seen of an engine that makes no progress, before it is ended: evidence for "frozen", not "slow"."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kvbench.engine.failures import plain
from kvbench.engine.processes import process_stat

__all__ = ["EVIDENCE_NAME", "gather"]

EVIDENCE_NAME = "frozen.txt"

LOG_LINES = 60
LOG_BYTES = 64 * 1024
STACKS_S = 10.0
"""For one process; py-spy takes about a second."""


def gather(directory: Path, *, log: Path, pids: Iterable[int], metrics: Mapping[str, float]) -> Path:
    """Write it beside the round's tables; returns the file. Nothing here stops or changes the engine."""
    file = directory / EVIDENCE_NAME
    file.write_text("\n".join(_lines(log, list(pids), metrics)) + "\n", encoding="utf-8")
    return file


def _lines(log: Path, pids: list[int], metrics: Mapping[str, float]) -> Iterator[str]:
    yield "== the newest metrics"
    yield from (f"{name} {value:g}" for name, value in sorted(metrics.items()))
    yield "" if metrics else "none were told"
    yield "== its processes: state, threads, and where they wait in the kernel"
    yield from (_process(pid) for pid in pids)
    yield "" if pids else "they cannot be seen from here"
    yield "== the stacks of its Python code"
    yield from _stacks(pids)
    yield f"== the end of {log.name}"
    yield from _tail(log)


def _process(pid: int) -> str:
    """`4711 S 12 threads, 3.1 s of CPU: futex_wait_queue 10, do_epoll_wait 2  python -m vllm...`."""
    stat = process_stat(pid)
    if stat is None:
        return f"{pid} is gone"
    waits: dict[str, int] = {}
    for task in _listed(Path(f"/proc/{pid}/task")):
        where = _read(task / "wchan").strip("\0\n") or "running"
        waits[where] = waits.get(where, 0) + 1
    places = ", ".join(f"{where} {count}" for where, count in sorted(waits.items(), key=lambda item: -item[1]))
    command = plain(_read(Path(f"/proc/{pid}/cmdline")).replace("\0", " "))
    return f"{pid} {stat.state} {sum(waits.values())} threads, {stat.cpu_s:.1f} s of CPU: {places}  {command}"


def _listed(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory)]  # noqa: PTH208 - names alone
    except OSError:
        return []


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _stacks(pids: list[int]) -> Iterator[str]:
    tool = shutil.which("py-spy")
    if tool is None:
        yield "not looked at: there is no py-spy on the PATH"
        return
    for pid in pids:
        try:
            answer = subprocess.run(
                [tool, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=STACKS_S, check=False
            )
            yield answer.stdout or f"{pid}: {plain(answer.stderr.strip())}"
        except (subprocess.TimeoutExpired, OSError) as error:
            yield f"{pid}: py-spy: {type(error).__name__}"


def _tail(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        yield "there is none"
        return
    yield from (plain(line) for line in text.splitlines()[-LOG_LINES:])
