"""The load driver's process: `python -m kvbench.load.driver PLAN.json|- [--start]`.

Speaks JSON lines: events on stdout (`ready`, `prime`, `primed`, `started`, `progress`, `finished`, `error`); on
stdin the line `start` begins the round, `go` answers `primed` and lets time zero come, and `stop` ends the round
early with its rows. With `--start` neither is waited for. The end of stdin and signals end it at once: rows that
have come stay in the part files, and no Parquet file is made. It never outlives whoever holds its stdin.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Sequence

from kvbench.load.orders import Orders, play_plan, say
from kvbench.load.plan import LoadPlan
from kvbench.load.player import LEAD_NS
from kvbench.load.prepare import prepare_player, prepare_process
from kvbench.load.start_line import StartLine
from kvbench.load.users import Share, play_with_locust
from kvbench.record.atomic import write_text
from kvbench.workload.storage import read_schedule

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one round; the exit code as in `kvbench.errors`."""
    return play_plan(arguments, "kvbench.load.driver", _drive)


def _drive(plan: LoadPlan, at_once: bool) -> None:
    precedence = prepare_process()
    orders = Orders()
    share = Share(say)
    schedule = read_schedule(plan.schedule)
    line = StartLine()

    def begin() -> int:
        share.report({"event": "primed"})
        return line.wait()

    def go() -> None:
        line.open(time.monotonic_ns() + LEAD_NS)

    def stop() -> None:
        share.stop()
        line.open(None)

    player, recorder = prepare_player(plan, schedule, share, begin=None if at_once else begin)
    try:
        say({"event": "ready"})
        if not at_once:
            orders.wait_for_start()
        orders.on_stop(stop, go=go)
        complete = play_with_locust(share)
    finally:
        recorder.close()
    orders.raise_if_interrupted()
    recorder.complete()
    figures = player.summary() | {"real_time_scheduling": float(precedence)}
    write_text(plan.out / "load.json", json.dumps(figures, indent=1) + "\n")
    say(
        {
            "event": "finished",
            "complete": complete,
            "planned": len(schedule),
            "rows": recorder.rows,
            "figures": figures,
        }
    )
    gc.freeze()  # the process ends: to look through all that is left for garbage would take a quarter of a second


if __name__ == "__main__":
    sys.exit(main())
