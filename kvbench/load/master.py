"""The process that conducts a round of several workers: `python -m kvbench.load.master PLAN.json [--start]`.

To whoever started it, it is the load driver: the same lines on stdout, the same orders on stdin, the same files. It
plays nothing itself. What spoils a round is in the event `finished`, as `faults`; then there is no Parquet file.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from kvbench.load.conduct import Conductor, Outcome
from kvbench.load.crowd import LocalWorkers
from kvbench.load.door import Door
from kvbench.load.merge import merge_figures
from kvbench.load.orders import Orders, play_plan, say
from kvbench.load.plan import LoadPlan
from kvbench.load.recorder import Recorder
from kvbench.load.users import Environment, schedule_user
from kvbench.record.atomic import write_text
from kvbench.spec.crew import Address, worker_secret
from kvbench.workload.storage import read_schedule

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one round; the exit code as in `kvbench.errors`."""
    return play_plan(arguments, "kvbench.load.master", _conduct)


def _conduct(plan: LoadPlan, at_once: bool) -> None:
    orders = Orders()
    schedule = read_schedule(plan.schedule)
    recorder = Recorder(plan.out)
    try:
        conductor = Conductor(plan, schedule, recorder, orders, waits=not at_once)
        say({"event": "ready"})
        if not at_once:
            orders.wait_for_start()
        orders.on_stop(conductor.stop, go=conductor.go)
        outcome = _with_workers(plan, conductor, recorder)
    finally:
        recorder.close()
    orders.raise_if_interrupted()
    figures = _figures(outcome)
    about = figures | {"by_worker": [member.about() for member in outcome.members]}
    write_text(plan.out / "load.json", json.dumps(about, indent=1) + "\n")
    say(
        {
            "event": "finished",
            "complete": outcome.complete,
            "planned": len(schedule),
            "rows": recorder.rows,
            "figures": figures,
            "faults": list(outcome.faults),
        }
    )


def _with_workers(plan: LoadPlan, conductor: Conductor, recorder: Recorder) -> Outcome:
    """Play the round; the workers are gone, and its tables are whole unless it was spoiled, when this returns."""
    crew = plan.crew
    # With nobody to join from elsewhere no one else may: the secret is made up for this round.
    secret = worker_secret(crew.secret_env, crew.address, "--master-bind") if crew.joining else b""
    secret = secret or (b"" if crew.joining else secrets.token_hex(32).encode())
    environment = Environment(user_classes=[schedule_user(lambda _: None)])
    door = Door(
        environment,
        crew.address,
        secret,
        joined=conductor.joined,
        received=conductor.received,
        broken=conductor.broken,
    )
    environment.runner = door
    try:
        here = _as_seen_from_here(crew.address, door.port)
        local = LocalWorkers(crew.local, plan.out, here, secret, crew.secret_env)
        kept = False
        try:
            with _web_view(environment, crew.web_port):
                outcome = conductor.play(door, local)
            recorder.close()
            if not outcome.faults:
                recorder.complete()
                kept = True
            return outcome
        finally:
            conductor.say_over(kept=kept)
            door.quit()
            local.end(kept=kept)
    finally:
        door.shut()


def _web_view(environment: Environment, port: int | None) -> AbstractContextManager[None]:
    if port is None:
        return nullcontext()
    from kvbench.load.web import web_view  # its imports take half a second

    return web_view(environment, port)


def _as_seen_from_here(address: Address, port: int) -> Address:
    """Where this machine's own workers find the master."""
    every = address.host in ("*", "0.0.0.0", "::")  # noqa: S104  (compared with, not bound to)
    return Address("127.0.0.1" if every else address.host, port)


def _figures(outcome: Outcome) -> dict[str, float | None]:
    members = outcome.members
    figures = merge_figures([member.finished.figures for member in members if member.finished])
    figures["workers"] = float(len(members))
    joined = [member for member in members if not member.local]
    if joined:
        figures["worker_clock_offset_max_s"] = max(abs(member.clock.offset_ns) for member in joined) / 1e9
    figures["worker_clock_error_max_s"] = max((member.clock_error_s for member in joined), default=0.0)
    return figures


if __name__ == "__main__":
    sys.exit(main())
