"""`kvbench worker`: a share of the load of a run elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench.commands.options import SecretEnv
from kvbench.errors import InputError
from kvbench.report.streams import people, say
from kvbench.spec.bounds import LONGEST_S, Range, check_option
from kvbench.spec.crew import SECRET_ENV
from kvbench.spec.quantity import parse_quantity

__all__ = ["EXAMPLES", "worker"]

WAIT = Range(0, LONGEST_S, "0 and 365d")
"""0: no further round is waited for."""

EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench worker --master 10.0.0.5:5557\n\n"
    "ssh -R 5557:127.0.0.1:5557 other-host kvbench worker --master 127.0.0.1:5557"
)


def worker(
    master: Annotated[
        str, typer.Option("--master", metavar="HOST:PORT", help="Where `--master-bind` of the run is.")
    ],
    wait: Annotated[str, typer.Option("--wait", help="Leave when no round began for so long.")] = "15m",
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", "-n", min=1, help="Leave after so many rounds.", show_default="no limit"),
    ] = None,
    worker_secret_env: SecretEnv = SECRET_ENV,
) -> None:
    """Play a share of the load for a run elsewhere, round after round."""
    from kvbench.load.join import work_for

    try:
        wait_s = check_option("--wait", parse_quantity(wait, "seconds"), WAIT, wait)
    except ValueError as error:
        raise InputError(f"--wait: {error}") from error
    console = people()
    work_for(
        master,
        secret_env=worker_secret_env,
        wait_s=wait_s,
        rounds=rounds,
        say=lambda line: say(console, line),
    )
