"""`kvbench doctor`: whether this host can carry a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import Json
from kvbench.report.streams import people, print_document, say

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench doctor profiles/cpu/host-and-disk.yaml\n\n"
    "kvbench probe PROFILE --json > costs.json; kvbench doctor PROFILE --probe costs.json --json"
)


def doctor(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="The profile that is to run on this host.")],
    probe: Annotated[
        Path | None,
        typer.Option(
            "--probe",
            metavar="FILE",
            help="What `kvbench probe PROFILE --json` printed: measured costs instead of assumed ones.",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="Measure copies of memory, to GPUs and to the disk tier (at most 128 MiB, removed again).",
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Check this host for this profile: memory, /dev/shm, limits, GPUs, disk, clock, load, transfer budget.

    Starts no engine. Exit code 0 when no check failed, 4 when one did, 2 when the profile is wrong.
    """
    from kvbench.doctor.check import document, exit_code
    from kvbench.doctor.diagnose import diagnose
    from kvbench.doctor.probe_costs import read_probe
    from kvbench.report.doctor import show_checks
    from kvbench.spec.loading import load_profile

    loaded, costs = load_profile(profile), read_probe(probe) if probe is not None else None
    console = people()
    checks = diagnose(loaded, lambda line: say(console, line), probe=costs, measure=measure)
    if as_json:
        print_document(document(checks))
    else:
        from rich.console import Console

        show_checks(Console(highlight=False), checks)
    raise typer.Exit(exit_code(checks))
