"""Options that several commands share, with one wording each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.spec.shipped import DEFAULT_RULES, DEFAULT_WORKLOAD

__all__ = [
    "OUT_OPTION",
    "ROUNDS_OPTION",
    "RULES_OPTION",
    "WORKLOAD_OPTION",
    "ExpectWorkers",
    "Json",
    "MasterBind",
    "Out",
    "SecretEnv",
    "Web",
    "Workers",
]

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]
WORKLOAD_OPTION = typer.Option(
    "--workload", "-w", help="A workload file, or the name of a shipped one.", show_default=DEFAULT_WORKLOAD
)
RULES_OPTION = typer.Option(
    "--rules", "-r", help="A rules file, or the name of shipped rules.", show_default=DEFAULT_RULES
)
ROUNDS_OPTION = typer.Option("--rounds", "-n", min=1, help="Exactly this many rounds of each arm.")
OUT_OPTION = typer.Option("--out", "-o", help="Folder for results.")
Out = Annotated[Path, OUT_OPTION]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=0, help="Play the load with this many processes here.", show_default="1"),
]
ExpectWorkers = Annotated[
    int | None,
    typer.Option(
        "--expect-workers", min=0, help="Wait for this many `kvbench worker` from elsewhere.", show_default="0"
    ),
]
MasterBind = Annotated[
    str | None,
    typer.Option(
        "--master-bind",
        metavar="HOST:PORT",
        help="Where workers from elsewhere join; beyond loopback a shared secret is required.",
        show_default="127.0.0.1:5557",
    ),
]
Web = Annotated[
    int | None,
    typer.Option(
        "--web",
        metavar="PORT",
        min=1,
        max=65535,
        help="Show Locust's web view of the load on this port of 127.0.0.1, to look at.",
        show_default=False,
    ),
]
SecretEnv = Annotated[
    str,
    typer.Option("--worker-secret-env", metavar="NAME", help="Environment variable that holds the shared secret."),
]
