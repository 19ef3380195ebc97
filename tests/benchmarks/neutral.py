"""Playing schedules at the neutral C server, which records its own truth, and reading with the C reader beside it.

Needs gcc and `peers/src/` under KVBENCH_SHARED (by default beside the repository). The server has the first CPU,
the client the last one. All three get real-time scheduling where it is permitted, so that other work on the machine
disturbs them alike and little.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kvbench.load.plan import LoadPlan
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment
from kvbench.workload.storage import write_schedule

CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, CLIENT_CPU = CPUS[0], CPUS[-1]
PRIORITY = 50
ABOVE = 20
"""More than the client's own threads differ by."""


@dataclass(frozen=True)
class Played:
    """What one run of the driver came to. CPU is the whole process's, from time zero to its exit."""

    figures: dict[str, float | None]
    zero_s: float
    cpu_s: float
    start_cpu_s: float
    """CPU before time zero: imports, the schedule, the first prompts."""
    start_s: float
    """From the start of the process to time zero."""
    peak_bytes: int
    directory: Path


@dataclass(frozen=True)
class Truth:
    """What the server did, by request id of the load (`kvbench-1-<id>`) or number on the server; ns."""

    arrived_ns: dict[str, int]
    sent_ns: dict[str, NDArray[np.int64]]


def schedule(
    times_s: Sequence[float | None], *, tokens: int, prompt: int, for_s: float, concurrency: int | None = None
) -> Schedule:
    """One request for each of `times_s`."""
    requests = tuple(
        PlannedRequest(
            id=index,
            phase="steady",
            measured=True,
            class_="bench",
            session=None,
            turn=0,
            intended_s=at_s,
            think_s=0.0,
            continues=None,
            segments=(Segment(index + 1, prompt),),
            output_tokens=tokens,
            prefix=None,
            repeat_of=None,
        )
        for index, at_s in enumerate(times_s)
    )
    return Schedule("bench", 1, 1, (PhaseSpan("steady", 0.0, for_s, True),), (), requests, concurrency, 120.0)


def closed_loop(streams: int, *, tokens: int, for_s: float, each_s: float) -> Schedule:
    """`streams` answers under way all the time, each taking `each_s`."""
    count = streams * (int(for_s / each_s) + 2)
    return schedule([None] * count, tokens=tokens, prompt=32, for_s=for_s, concurrency=streams)


def poisson(rate: float, *, tokens: int, for_s: float, prompt: int = 32, seed: int = 1) -> Schedule:
    """Poisson arrivals."""
    rng = random.Random(seed)
    times: list[float | None] = []
    at_s = rng.expovariate(rate)
    while at_s < for_s:
        times.append(at_s)
        at_s += rng.expovariate(rate)
    return schedule(times, tokens=tokens, prompt=prompt, for_s=for_s)


def build(directory: Path) -> None:
    """Compile `mockserver` and `creader` into `directory`."""
    shared = Path(os.environ.get("KVBENCH_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    compiler = shutil.which("gcc")
    for name in ("mockserver", "creader"):
        source = shared / "peers" / "src" / f"{name}.c"
        if compiler is None or not source.is_file():
            sys.exit(f"needs gcc and {source}")
        subprocess.run([compiler, "-O2", "-w", "-o", directory / name, source], check=True)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary directory with the compiled programs."""
    with tempfile.TemporaryDirectory(prefix="kvbench-bench-") as name:
        build(Path(name))
        yield Path(name)


@contextlib.contextmanager
def server(place: Path, *, ttft_ms: float = 50.0, itl_ms: float = 10.0, step_ms: float = 0.0) -> Iterator[int]:
    """A running server's port. Its truth is in `place` once it has ended."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    timing = ["--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms), "--step-ms", str(step_ms)]
    truth_files = ["--log", place / "truth.csv", "--tokens", place / "truth.bin"]
    process = subprocess.Popen(
        [place / "mockserver", "--port", str(port), *timing, *truth_files], stderr=subprocess.DEVNULL
    )
    try:
        os.sched_setaffinity(process.pid, {SERVER_CPU})
        prefer(process.pid)
        for _ in range(200):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def truth(place: Path) -> Truth:
    """What the server that ran last in `place` did."""
    table = np.atleast_1d(
        np.genfromtxt(place / "truth.csv", delimiter=",", names=True, dtype=None, encoding="ascii")
    )
    sent = np.fromfile(place / "truth.bin", np.int64)
    ends = np.cumsum(table["sent"])
    names = [str(row["xid"]).strip() or str(row["id"]) for row in table] if table["xid"].dtype.kind == "U" else None
    if names is None:
        names = [str(row["id"]) for row in table]
    return Truth(
        dict(zip(names, map(int, table["t_req"]), strict=True)),
        {name: sent[end - count : end] for name, end, count in zip(names, ends, table["sent"], strict=True)},
    )


def play(planned: Schedule, port: int, place: Path, *, stop_after_s: float | None = None, **plan: object) -> Played:
    """Run the driver's process on the client's CPU; `stop_after_s` ends the round so long after its time zero."""
    out = Path(tempfile.mkdtemp(prefix="round-", dir=place))
    write_schedule(planned, out / "schedule.parquet")
    values: dict[str, object] = {
        "schedule": out / "schedule.parquet",
        "out": out,
        "arm": "bench",
        "round": 1,
        "base_url": f"http://127.0.0.1:{port}",
        "model": "tiny",
        "token_id_range": (32, 255),
    }
    (out / "plan.json").write_text(LoadPlan.model_validate(values | plan).model_dump_json())
    begun = time.monotonic()
    process = subprocess.Popen(
        [*_pinned(CLIENT_CPU), sys.executable, "-m", "kvbench.load.driver", out / "plan.json", "--start"],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    clock = (~process.pid << 3) | 2  # CPU clock of another process, see clock_getcpuclockid(3)
    zero_s = start_cpu_s = start_s = 0.0
    figures: dict[str, float | None] = {}
    assert process.stdout is not None
    assert process.stdin is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "ready":
            prefer(process.pid)
        elif event["event"] == "started":
            zero_s, start_cpu_s, start_s = event["monotonic"], time.clock_gettime(clock), event["monotonic"] - begun
        elif event["event"] == "progress" and stop_after_s is not None and event["t_s"] >= stop_after_s:
            stop_after_s = None
            os.write(process.stdin.fileno(), b"stop\n")
        elif event["event"] == "finished":
            figures = event["figures"]
        elif event["event"] == "error":
            sys.exit(event["what"])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"the driver ended with exit code {process.returncode}")
    cpu_s = usage.ru_utime + usage.ru_stime - start_cpu_s
    return Played(figures, zero_s, cpu_s, start_cpu_s, start_s, usage.ru_maxrss * 1024, out)


def read_in_c(place: Path, port: int, *, streams: int, tokens: int, for_s: float) -> dict[str, float]:
    """The C epoll reader on the client's CPU: its own figures. Its times are in `reader.bin`."""
    options = ("--port", port, "--conc", streams, "--secs", for_s, "--out-len", tokens)
    process = subprocess.Popen(
        [*_pinned(CLIENT_CPU), place / "creader", *map(str, options), "--out", place / "reader.bin"],
        stdout=subprocess.PIPE,
    )
    prefer(process.pid)
    told, _ = process.communicate()
    return {name: value for name, value in json.loads(told).items() if isinstance(value, int | float)}


def _pinned(cpu: int) -> list[str]:
    return ["taskset", "-c", str(cpu)]


def prefer(pid: int, *, above_client: bool = False) -> None:
    """Before other work of the machine, other load drivers included; or before the client, too. Where that is not
    permitted, nothing is changed."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            ahead = os.sched_getparam(int(thread.name)).sched_priority  # of its own, kept among its threads
            priority = PRIORITY + ABOVE if above_client else PRIORITY + ahead
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(priority))


def reader_errors_ms(place: Path, true: Truth) -> NDArray[np.float64]:
    """C reader's time of each event minus the server's, ms."""
    values = np.fromfile(place / "reader.bin", np.int64)
    errors, at = [], 0
    while at < len(values):
        number, _, count = values[at : at + 3]
        sent = true.sent_ns[str(number)]
        told = values[at + 3 : at + 3 + count][: len(sent)]  # the usage event is no token
        errors.append(told - sent[: len(told)])
        at += 3 + int(count)
    return np.concatenate(errors) / 1e6


@dataclass(frozen=True)
class Compared:
    """Reported times against the server's own; ms."""

    errors_ms: NDArray[np.float64]
    ttft_ms: NDArray[np.float64]
    true_ttft_ms: NDArray[np.float64]
    itl_ms: NDArray[np.float64]
    true_itl_ms: NDArray[np.float64]
    answers: int


def compare(played: Played, true: Truth) -> Compared:
    """TTFT is counted from the intended time, on both sides."""
    requests = pq.read_table(played.directory / "requests.parquet", columns=["id", "status", "intended_s"])
    tokens = pq.read_table(played.directory / "tokens.parquet")
    ids, times_s = tokens["id"].to_numpy(), tokens["t_s"].to_numpy()
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    told = dict(zip(ids[starts].tolist(), np.split(times_s, starts[1:]), strict=True))
    errors, ttft, true_ttft, itl, true_itl = [], [], [], [], []
    for row in requests.to_pylist():
        if row["status"] != "ok":
            continue
        sent_s = true.sent_ns[f"kvbench-1-{row['id']}"] / 1e9 - played.zero_s
        own_s = told[row["id"]]
        errors.append(own_s - sent_s)
        ttft.append(own_s[0] - row["intended_s"])
        true_ttft.append(sent_s[0] - row["intended_s"])
        itl.append(np.diff(own_s))
        true_itl.append(np.diff(sent_s))
    return Compared(
        np.concatenate(errors) * 1e3,
        np.array(ttft) * 1e3,
        np.array(true_ttft) * 1e3,
        np.concatenate(itl) * 1e3,
        np.concatenate(true_itl) * 1e3,
        len(errors),
    )


def limits() -> str:
    """What a figure was measured on."""
    soft, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
    permitted = os.geteuid() == 0 or soft != 0
    return (
        f"server on CPU {SERVER_CPU}, client on CPU {CLIENT_CPU}, Python {sys.version.split()[0]}, kernel "
        f"{os.uname().release}, real-time scheduling {'permitted' if permitted else 'not permitted'}"
    )
