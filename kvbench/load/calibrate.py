"""What the client can do on this host: measured against a loopback server of its own, kept per host.

The load driver plays Poisson arrivals with everything that it does in a round; its CPU per event gives its
capacity, the server's own send times its timestamp error. Answers of one token tell what a request costs by itself,
and what prompts cost is measured beside it. Needs some seconds, once per host, kernel, Python and kvbench.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from kvbench import __version__
from kvbench.engine.environment import kvbench_home
from kvbench.engine.scratch import Scratch, scratch
from kvbench.errors import LoadError, RecordError
from kvbench.load.bodies import Bodies
from kvbench.load.plan import LoadPlan
from kvbench.load.run import LoadResult, run_load
from kvbench.record.atomic import write_text
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment
from kvbench.workload.storage import write_schedule

__all__ = ["Calibration", "calibrate", "calibrated"]

RATE = 120.0
TOKENS = 128
SECONDS = 3.0
"""120 requests/s of 128 tokens are 15,000 events/s, with 160 answers under way, for three seconds."""
SHORT_RATE = 1000.0
SHORT_SECONDS = 2.5
"""Then 1,000 requests/s of one token, on connections that are kept alive."""
SHORT_FIRST_ID = 1_000_000
"""The server's truth has both, by their ids."""
PROMPTS, PROMPT_TOKENS = 64, 8192
"""Prompts whose making is timed; half a million tokens take some hundredths of a second."""
_WORDS = tuple(f" w{number}" for number in range(256))
_VERSION = 2
_STOP_S = 10.0


class Calibration(BaseModel):
    """What was measured, in the units of the names. Kept as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    capacity_events_per_s: float
    """Streamed events that one worker can take: the inverse of its CPU per event, all threads together."""
    prompt_tokens_per_s: float
    """Tokens of unique prompts that one worker can make, sent as token ids: the inverse of its CPU for each."""
    text_prompt_tokens_per_s: float
    """The same, as text."""
    request_cpu_s: float | None = None
    """CPU of a request beside its tokens and its prompt: sending, the answer's head, its row. None: kept by a
    kvbench that did not measure it."""
    timestamp_error_p50_s: float
    timestamp_error_p99_s: float
    """Recorded receive time minus the server's send time."""
    send_lag_p50_s: float
    send_lag_p99_s: float
    events: int
    measured_unix_s: float

    def figures(self) -> dict[str, float]:
        """What is kept with a round's figures about the instrument."""
        return {
            "calibrated_capacity_events_per_s": self.capacity_events_per_s,
            "calibrated_timestamp_error_p99_s": self.timestamp_error_p99_s,
            "calibrated_send_lag_p99_s": self.send_lag_p99_s,
        }


def calibrated(
    progress: Callable[[str], None], *, directory: Path | None = None, again: bool = False
) -> Calibration:
    """The calibration of this host, measured now unless it was before. LoadError when it cannot be.

    `directory`: where it is kept; the default is `<KVBENCH_HOME>/calibration`. `again`: measure in any case and
    keep the better one, since other work on the host makes the client look slower than it is.
    """
    path = (directory or kvbench_home() / "calibration") / f"{_host_key()}.json"
    kept: Calibration | None = None
    with suppress(OSError, ValidationError):
        kept = Calibration.model_validate_json(path.read_bytes())
        if not again and kept.request_cpu_s is not None:
            return kept
    progress("calibrating the client against a loopback server (kept for this host, some seconds)")
    measured = calibrate()
    if kept:
        measured = _better(kept, measured)
    progress(
        f"calibrated: {measured.capacity_events_per_s:,.0f} events/s a worker, timestamp error p99 "
        f"{measured.timestamp_error_p99_s * 1e3:.2f} ms, send lag p99 {measured.send_lag_p99_s * 1e3:.2f} ms"
    )
    with suppress(OSError, RecordError):  # then it is measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, measured.model_dump_json(indent=1) + "\n")
    return measured


def _better(kept: Calibration, measured: Calibration) -> Calibration:
    """The one with the larger capacity, with the lower cost of a request."""
    better = max(measured, kept, key=lambda each: each.capacity_events_per_s)
    costs_s = [each.request_cpu_s for each in (kept, measured) if each.request_cpu_s is not None]
    return better.model_copy(update={"request_cpu_s": min(costs_s, default=None)})


def _host_key() -> str:
    """Changes with whatever the client's speed depends on."""
    machine = ""
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_text("ascii", "replace").strip()
    parts = (_VERSION, __version__, machine, *platform.uname()[:5], platform.python_version(), os.cpu_count())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def calibrate() -> Calibration:
    """Measure now: some seconds with the machine as busy as it is."""
    with scratch("calibration") as place:
        with _server(place) as port:
            plan = _plan(place.directory / "streams", port)
            streams = _played(plan, _schedule(RATE, SECONDS, tokens=TOKENS, prompt=256))
            short = _played(
                _plan(place.directory / "short", port),
                _schedule(SHORT_RATE, SHORT_SECONDS, tokens=1, prompt=8, first_id=SHORT_FIRST_ID),
            )
        assert streams.started_monotonic is not None  # noqa: S101  (for the type checker; `_played` has looked)
        errors_s = _timestamp_errors_s(place.directory / "truth.npz", plan.out, streams.started_monotonic)
    return _measured(streams.figures, short.figures, errors_s, plan)


def _plan(out: Path, port: int) -> LoadPlan:
    out.mkdir()
    return LoadPlan(
        schedule=out / "schedule.parquet",
        out=out,
        arm="calibration",
        round=1,
        base_url=f"http://127.0.0.1:{port}",
        model="calibration",
        token_id_range=(32, 255),
    )


def _played(plan: LoadPlan, schedule: Schedule) -> LoadResult:
    """LoadError when any of it failed."""
    write_schedule(schedule, plan.schedule)
    result = run_load(plan, on_event=lambda _: None, should_stop=lambda: False)
    failed = result.figures.get("failed", 0.0)
    if failed or not result.complete or not result.figures.get("client_cpu_s") or result.started_monotonic is None:
        raise LoadError(
            f"the client could not be calibrated: {failed:.0f} of {result.planned} requests to its own loopback "
            "server failed",
            do="look whether something forbids connections to 127.0.0.1",
        )
    return result


def _prompt_tokens_per_s(plan: LoadPlan) -> float:
    """How many tokens of prompts a second of CPU is enough for."""
    bodies = Bodies(plan)
    bodies.make((Segment(-1, PROMPT_TOKENS),), 1)  # what is made once is not to be counted
    before_s = time.thread_time()
    for identity in range(PROMPTS):
        bodies.make((Segment(identity, PROMPT_TOKENS),), 1)
    return PROMPTS * PROMPT_TOKENS / (time.thread_time() - before_s)


def _schedule(rate: float, seconds: float, *, tokens: int, prompt: int, first_id: int = 0) -> Schedule:
    rng = random.Random(1)  # noqa: S311  (arrivals, not secrets)
    times: list[float] = []
    at_s = rng.expovariate(rate)
    while at_s < seconds:
        times.append(at_s)
        at_s += rng.expovariate(rate)
    requests = tuple(
        PlannedRequest(
            id=index,
            phase="calibration",
            measured=True,
            class_="calibration",
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
        for index, at_s in enumerate(times, start=first_id)
    )
    return Schedule("calibration", 1, 1, (PhaseSpan("calibration", 0.0, seconds, True),), (), requests, None, 30.0)


@contextmanager
def _server(place: Scratch) -> Iterator[int]:
    """The calibration server's port; its truth is there afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbench.load.calibration_server", os.fspath(place.directory / "truth.npz")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **place.environment},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None  # noqa: S101  (for the type checker)
        line = process.stdout.readline().strip()
        if not line.isdigit():
            raise LoadError("the calibration server did not start")
        yield int(line)
        assert process.stdin is not None  # noqa: S101  (for the type checker)
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


def _measured(
    streams: dict[str, float], short: dict[str, float], errors_s: NDArray[np.float64], plan: LoadPlan
) -> Calibration:
    """From the drivers' figures of long answers and of those of one token."""
    capacity_events_per_s = streams["events"] / streams["client_cpu_s"]
    return Calibration(
        capacity_events_per_s=capacity_events_per_s,
        prompt_tokens_per_s=_prompt_tokens_per_s(plan),
        text_prompt_tokens_per_s=_prompt_tokens_per_s(plan.model_copy(update={"words": _WORDS})),
        request_cpu_s=max(0.0, short["client_cpu_s"] / short["requests"] - 1 / capacity_events_per_s),
        timestamp_error_p50_s=float(np.quantile(errors_s, 0.5)),
        timestamp_error_p99_s=float(np.quantile(errors_s, 0.99)),
        send_lag_p50_s=streams["send_lag_p50_s"],
        send_lag_p99_s=streams["send_lag_p99_s"],
        events=int(streams["events"]),
        measured_unix_s=time.time(),
    )


def _timestamp_errors_s(truth_file: Path, out: Path, zero_s: float) -> NDArray[np.float64]:
    """Absolute differences between true times and those recorded in `out`, of all tokens."""
    with np.load(truth_file) as truth:
        ends = np.cumsum(truth["counts"])
        true_s = {
            int(request): truth["sent_ns"][end - count : end] / 1e9 - zero_s
            for request, count, end in zip(truth["ids"], truth["counts"], ends, strict=True)
        }
    tokens = pq.read_table(out / "tokens.parquet").to_pandas().sort_values(["id", "index"], kind="stable")
    told_s = {int(str(request)): rows.to_numpy(np.float64) for request, rows in tokens.groupby("id")["t_s"]}
    pairs = [
        (told_s[request], sent) for request, sent in true_s.items() if len(told_s.get(request, ())) == len(sent)
    ]
    if not pairs:
        raise LoadError("the calibration server and the client agree on no answer")
    errors_s: NDArray[np.float64] = np.abs(np.concatenate([told - sent for told, sent in pairs]))
    return errors_s
