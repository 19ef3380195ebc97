"""How often two-hour watches call for rollback: `python -m tests.proofs.gate_watches [N [CELL...]]`.

Exits with 1 when a judged cell is not as it must be. `docs/gate.md` quotes the table.

Virtual time. TTFT is log-normal around a level that drifts; its spread is fitted to the emulated engine played in
virtual time. The rules are those of the gate itself: the rollback rule on scrapes every 15 s (p99, window 30 s, for
120 s), and the share over budget tested every two minutes: segments of 30 s as units, and requests beside them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import signal, special

from kvbench.canary.segments import SegmentCounts
from kvbench.canary.sequential import FEWEST_SEGMENTS, Plan, boundary
from kvbench.canary.shares import Levels, share_of
from kvbench.engine.emulated.virtual import simulate
from kvbench.judge.sustained import FEWEST_OVER, Exceedances, watch
from kvbench.selftest.setting import BLOCK_TOKENS, MAX_MODEL_LEN, profile
from kvbench.spec.rules import Sustained
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule

Floats = npt.NDArray[np.float64]

WATCH_S = 7200.0
SCRAPE_S = 15.0
SEGMENT_S = 30.0
LOOK_SEGMENTS = 4
QUANTILE = 0.99
PER_S = 2.0
CORRELATION_S = 30.0
RULE = Sustained.model_validate({"window": "30s", "for": "120s"})
CALLED_WITHIN_S = 300.0
LEVELS = Levels(0.025, 0.025)


@dataclass(frozen=True)
class Cell:
    """`times`: the share over budget as a multiple of what p99 allows. `drift`: sd of the log level."""

    times: float
    drift: float
    judged: bool


@dataclass(frozen=True)
class Counted:
    """Of so many watches of a cell: those in which the rollback rule fired, at all and in time, those in which the
    test by segments found a breach, those with either, and those in which a test by requests would have."""

    watches: int
    fired: int
    soon: int
    segments: int
    either: int
    requests: int

    def per_cent(self, count: int) -> float:
        return 100 * count / self.watches


FEW, MANY = 0.2, 10.0
"""Times the allowed share: what must not be called for, and what must be, soon."""
FALSE_AT_MOST = 0.01
CALLED_AT_LEAST = 0.95


def against(cell: Cell, found: Counted) -> str | None:
    """What stands against a judged cell; None: nothing."""
    if not cell.judged:
        return None
    if cell.times <= FEW and found.either > FALSE_AT_MOST * found.watches:
        return f"{found.per_cent(found.either):.1f} % called for rollback; at most {FALSE_AT_MOST:.0%} may"
    if cell.times >= MANY and found.soon < CALLED_AT_LEAST * found.watches:
        return f"{found.per_cent(found.soon):.1f} % called for it within 5 min; at least {CALLED_AT_LEAST:.0%} must"
    return None


CELLS = (
    *(Cell(times, 0.25, judged=times in (FEW, MANY)) for times in (0.2, 0.5, 1.0, 2.0, 10.0)),
    *(Cell(times, 0.5, judged=False) for times in (0.2, 0.5, 1.0, 2.0, 10.0)),
)


def over_by_scrape(cell: Cell, spread: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Requests, and how many of them are over budget, in each scrape interval of one watch."""
    steps = int(WATCH_S)
    keep = math.exp(-1.0 / CORRELATION_S)
    kicks = rng.standard_normal(steps) * cell.drift * math.sqrt(1 - keep**2)
    kicks[0] = rng.standard_normal() * cell.drift
    level = np.asarray(signal.lfilter([1.0], [1.0, -keep], kicks), dtype=np.float64)
    # The budget lies where the whole distribution, drift included, has the wanted share beyond it.
    budget = special.ndtri(1 - cell.times * (1 - QUANTILE)) * math.hypot(spread, cell.drift)
    share = special.ndtr(-(budget - level) / spread)
    requests = rng.poisson(PER_S, steps)
    over = rng.binomial(requests, share)
    each = int(SCRAPE_S)
    return tuple(values.reshape(-1, each).sum(axis=1).astype(float) for values in (requests, over))  # type: ignore[return-value]


def rollback_at(requests: Floats, over: Floats) -> float | None:
    """When the rollback rule fires."""
    t_s = SCRAPE_S * np.arange(1, len(requests) + 1)
    watched = watch(Exceedances(t_s, requests, over, requests, over), RULE, QUANTILE, 0.0, WATCH_S)
    return None if watched.fired is None else watched.fired.t_s


def breach_by_segments(requests: Floats, over: Floats) -> bool:
    """Whether the gate's own test ever calls a breach."""
    each = int(SEGMENT_S / SCRAPE_S)
    n, k = (values.reshape(-1, each).sum(axis=1) for values in (requests, over))
    plan = Plan(once=False, segments=len(n))
    for end in range(FEWEST_SEGMENTS, len(n) + 1, LOOK_SEGMENTS):
        counts = SegmentCounts(n[:end], n[:end], k[:end], k[:end])
        if share_of(counts, 1 - QUANTILE, LEVELS, plan, SEGMENT_S).status == "fail":
            return True
    return False


def breach_by_requests(requests: Floats, over: Floats) -> bool:
    """The same boundary with requests as units, looked at as often: what the gate does not do."""
    allowed = 1 - QUANTILE
    n, k = np.cumsum(requests), np.cumsum(over)
    planned = int(PER_S * WATCH_S)
    step = LOOK_SEGMENTS * int(SEGMENT_S / SCRAPE_S)
    for total, beyond in zip(n[step - 1 :: step].astype(int), k[step - 1 :: step], strict=True):
        limit = boundary(LEVELS.broken, max(int(total), FEWEST_SEGMENTS), Plan(once=False, segments=planned))
        if limit is None or beyond < FEWEST_OVER:
            continue
        if beyond - allowed * total > limit * math.sqrt(total * allowed * (1 - allowed)):
            return True
    return False


def fitted_spread() -> float:
    """Standard deviation of log TTFT of the emulated engine for prompts of one length, at the watches' load."""
    long = {
        "prefix": {"tokens": 1536, "pool": 24, "popularity": "uniform"},
        "suffix_tokens": 64,
        "output_tokens": 16,
    }
    asked = Workload.model_validate(
        {
            "name": "watched",
            "seed": 1,
            "arrivals": {"process": "poisson", "rate": PER_S},
            "phases": [{"name": "steady", "for": 600.0}],
            "classes": {"long": {"weight": 1.0, **long}},
        }
    )
    schedule = build_schedule(
        asked, 1, block_tokens=BLOCK_TOKENS, capacities_tokens=None, max_model_len=MAX_MODEL_LEN
    )
    rows = simulate(schedule, profile("fit", (), {})).requests.to_pandas()
    return float(np.std(np.log((rows["first_token_s"] - rows["intended_s"]).dropna())))


def counted(cell: Cell, spread: float, watches: int) -> Counted:
    """All the watches of a cell; the same whenever it is asked for."""
    rng = np.random.default_rng([20240607, round(100 * cell.times), round(100 * cell.drift)])
    fired = soon = segments = either = single = 0
    for _ in range(watches):
        requests, over = over_by_scrape(cell, spread, rng)
        at = rollback_at(requests, over)
        breach = breach_by_segments(requests, over)
        fired += at is not None
        soon += at is not None and at <= CALLED_WITHIN_S
        segments += breach
        either += at is not None or breach
        single += breach_by_requests(requests, over)
    return Counted(watches, fired, soon, segments, either, single)


def main(arguments: list[str]) -> int:
    """Print the table, or some lines of it; the exit code."""
    watches = int(arguments[0]) if arguments else 500
    cells = [CELLS[int(place)] for place in arguments[1:]] or CELLS
    faults = []
    spread = fitted_spread()
    print(f"{watches} watches of two hours a cell; p99, {PER_S:g} requests/s; log TTFT spread {spread:.2f}")
    print("x allowed  drift   rollback  within 5 min   breach by segments   by requests")
    for cell in cells:
        found = counted(cell, spread, watches)
        shares = [found.per_cent(count) for count in (found.fired, found.soon, found.segments, found.requests)]
        fault = against(cell, found)
        mark = "" if not cell.judged else f" judged: {fault or 'as it must be'}"
        faults += [fault] if fault else []
        print(
            f"{cell.times:9g}  {cell.drift:5g}  {shares[0]:7.1f} %  {shares[1]:10.1f} %  {shares[2]:17.1f} %  "
            f"{shares[3]:10.1f} %{mark}",
            flush=True,
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
