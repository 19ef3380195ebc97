"""Options that several commands share, with one wording each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.models import OptionInfo

from kvbench.spec.bounds import MOST_ROUNDS
from kvbench.spec.crew import MOST_WORKERS
from kvbench.spec.shipped import DEFAULT_RULES, DEFAULT_WORKLOAD

__all__ = [
    "DEFAULT_OUT",
    "OUT_OPTION",
    "PROBE_OPTION",
    "ROUNDS_OPTION",
    "RULES_OPTION",
    "WORKLOAD_OPTION",
    "BadLimit",
    "BlockTokens",
    "DiskPath",
    "ExpectWorkers",
    "Json",
    "KvDtype",
    "MasterBind",
    "Out",
    "PathRate",
    "Prefill",
    "SecretEnv",
    "TraceFormat",
    "Web",
    "Workers",
    "model_option",
    "size_option",
]

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]
WORKLOAD_OPTION = typer.Option(
    "--workload", "-w", help="A workload file, or the name of a shipped one.", show_default=DEFAULT_WORKLOAD
)
RULES_OPTION = typer.Option(
    "--rules", "-r", help="A rules file, or the name of shipped rules.", show_default=DEFAULT_RULES
)
ROUNDS_OPTION = typer.Option("--rounds", "-n", min=1, max=MOST_ROUNDS, help="Exactly this many rounds of each arm.")
DEFAULT_OUT = Path("results")
OUT_OPTION = typer.Option("--out", "-o", help="Folder for results.", show_default=str(DEFAULT_OUT))
Out = Annotated[Path, OUT_OPTION]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        max=MOST_WORKERS,
        help="Play the load with this many processes here.",
        show_default="1",
    ),
]
ExpectWorkers = Annotated[
    int | None,
    typer.Option(
        "--expect-workers",
        min=0,
        max=MOST_WORKERS,
        help="Wait for this many `kvbench worker` from elsewhere.",
        show_default="0",
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
TraceFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="mooncake, sessions, bailian, weka, azure, burstgpt, requests (OpenAI, vLLM) or kvbench (a run).",
        show_default="recognised",
    ),
]
BlockTokens = Annotated[
    int | None,
    typer.Option("--block-tokens", min=1, help="Tokens that one id stands for.", show_default="from the trace"),
]
BadLimit = Annotated[
    int, typer.Option("--bad-lines", min=0, help="Leave out so many lines that cannot be read; then stop.")
]
KvDtype = Annotated[str, typer.Option("--kv-dtype", help="auto, bfloat16, fp8 and so on.")]
PathRate = Annotated[
    str | None,
    typer.Option(
        "--path", metavar="RATE", help="Host to device, all GPUs together, such as 25GB/s.", show_default="assumed"
    ),
]
DiskPath = Annotated[
    str | None, typer.Option("--disk-path", metavar="RATE", help="Reads from disk.", show_default="assumed")
]
Prefill = Annotated[
    str | None,
    typer.Option("--prefill", metavar="RATE", help="Tokens computed, such as 20000/s.", show_default="assumed"),
]
PROBE_OPTION = typer.Option(
    "--probe", metavar="FILE", help="Costs as `kvbench probe` measured them.", show_default=False
)


def model_option(default: str | bool) -> OptionInfo:
    """`--model`, with what stands for it when it is left out."""
    found: OptionInfo = typer.Option(
        "--model", help="A model's directory, its config.json, or a known name.", show_default=default
    )
    return found


def size_option(name: str, what: str, default: str | bool = "assumed") -> OptionInfo:
    """The size of something, such as `--host-kv 512GiB`."""
    found: OptionInfo = typer.Option(name, metavar="SIZE", help=what, show_default=default)
    return found
