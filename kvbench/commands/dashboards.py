"""`kvbench dashboards`: Grafana dashboards and Prometheus rules to take away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import Json
from kvbench.errors import InputError
from kvbench.report.streams import people, print_document, say
from kvbench.spec.quantity import parse_quantity

__all__ = ["EXPORT_EXAMPLES", "export"]

EXPORT_EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench dashboards export\n\n"
    "kvbench dashboards export --out monitoring --ttft 1s --itl 50ms --share 1% --disk-mount /var/kv"
)


def export(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write them.")] = Path(
        "kvbench-dashboards"
    ),
    ttft: Annotated[str, typer.Option("--ttft", help="Budget of alerts; an edge of vLLM's buckets.")] = "2.5s",
    itl: Annotated[str, typer.Option("--itl", help="Budget of alerts; an edge of vLLM's buckets.")] = "100ms",
    share: Annotated[str, typer.Option("--share", help="What may be over these budgets; 1% is a p99.")] = "1%",
    errors: Annotated[str, typer.Option("--errors", help="What may fail or be refused.")] = "0.1%",
    disk_mount: Annotated[
        str, typer.Option("--disk-mount", metavar="PATH", help="Mount point of the disk tier.")
    ] = "/mnt/kv_cache",
    as_json: Json = False,
) -> None:
    """Write Grafana dashboards and Prometheus recording and alerting rules, for the budgets that you give."""
    from kvbench.dashboards.budgets import Budgets
    from kvbench.dashboards.export import export as write

    budgets = Budgets(
        ttft_s=_parsed("--ttft", ttft, "seconds"),
        itl_s=_parsed("--itl", itl, "seconds"),
        share=_parsed("--share", share, "fraction"),
        errors=_parsed("--errors", errors, "fraction"),
        disk_mount=disk_mount,
    )
    paths = write(out, budgets)
    if as_json:
        print_document({"files": [str(path) for path in paths]})
        return
    console = people()
    for path in paths:
        say(console, f"wrote {path}")
    say(console, f"{out}/README.md says how to load them")


def _parsed(option: str, text: str, kind: str) -> float:
    try:
        return parse_quantity(text, kind)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error
