"""`kvbench run`: one arm recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import (
    ROUNDS_OPTION,
    WORKLOAD_OPTION,
    ExpectWorkers,
    Json,
    MasterBind,
    Out,
    SecretEnv,
    Web,
    Workers,
)
from kvbench.load.spare import driver_ahead
from kvbench.report.streams import people
from kvbench.spec.crew import SECRET_ENV, Crew, make_crew
from kvbench.spec.shipped import DEFAULT_WORKLOAD

__all__ = ["EXAMPLES", "run"]

EXAMPLES = "[bold]Example[/bold]\n\nkvbench run profiles/cpu/baseline.yaml --workload demo --rounds 1"


def run(
    profile: Annotated[str, typer.Argument(help="The profile to record.")],
    workload: Annotated[str, WORKLOAD_OPTION] = DEFAULT_WORKLOAD,
    rounds: Annotated[int, ROUNDS_OPTION] = 1,
    out: Out = Path("results"),
    workers: Workers = None,
    expect_workers: ExpectWorkers = None,
    master_bind: MasterBind = None,
    worker_secret_env: SecretEnv = SECRET_ENV,
    web: Web = None,
    as_json: Json = False,
) -> None:
    """Record one arm; nothing is judged.

    Exit code 4 when its engine died, froze, served nothing or was not as asked. `kvbench compare --resume` goes on
    with it.
    """
    from kvbench.compare.request import read_arm

    crew = make_crew(workers, expect_workers, master_bind, worker_secret_env, web) or Crew()
    arm, load = read_arm(profile, workload)
    with driver_ahead(wanted=arm.engine.kind == "attached" and crew.single):
        from kvbench.compare import command

        command.run(arm, load, rounds, out, crew, console=people(), as_json=as_json)
