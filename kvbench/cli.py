"""The command line: every command of `kvbench.commands` put together, and where they all end.

Exit codes: 0 GO or done, 1 NO_GO, 2 wrong input, 3 INCONCLUSIVE, 4 INVALID or the run failed, 130/143 signals.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvbench import __version__
from kvbench.commands import (
    analyze,
    compare,
    dashboards,
    demo,
    doctor,
    engine,
    gate,
    history,
    plan,
    probe,
    render,
    report,
    run,
    selftest,
    worker,
)
from kvbench.ending import ended
from kvbench.report.streams import people, say

app = typer.Typer(
    name="kvbench",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="May this KV-cache tier go to production, and may it stay there?",
    epilog="Start with [bold]kvbench demo[/bold]: two profiles, one verdict, on a real vLLM without a GPU.\n\n"
    "Exit codes: 0 GO or done, 1 NO_GO, 2 wrong input, 3 INCONCLUSIVE, 4 INVALID or the run failed.",
)
engine_app = typer.Typer(no_args_is_help=True, help="Engines in environments of their own.")
app.add_typer(engine_app, name="engine")
app.add_typer(plan.plan_app, name="plan")
dashboards_app = typer.Typer(no_args_is_help=True, help="Grafana dashboards and Prometheus rules.")
app.add_typer(dashboards_app, name="dashboards")

app.command(epilog=compare.EXAMPLES)(compare.compare)
app.command(epilog=run.EXAMPLES)(run.run)
app.command(epilog=worker.EXAMPLES)(worker.worker)
app.command(epilog=render.EXAMPLES)(render.render)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.command(epilog=analyze.EXAMPLES)(analyze.analyze)
app.command(epilog=probe.EXAMPLES)(probe.probe)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=gate.EXAMPLES)(gate.gate)
app.command(epilog=history.EXAMPLES)(history.history)
app.command(epilog=selftest.EXAMPLES)(selftest.selftest)
app.command(epilog=demo.EXAMPLES)(demo.demo)
dashboards_app.command("export", epilog=dashboards.EXPORT_EXAMPLES)(dashboards.export)
engine_app.command("install", epilog=engine.INSTALL_EXAMPLES)(engine.install)
engine_app.command("list", epilog=engine.LIST_EXAMPLES)(engine.list_)
engine_app.command("start", epilog=engine.START_EXAMPLES)(engine.start)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """May this KV-cache tier go to production, and may it stay there?"""
    if version:
        print(f"kvbench {__version__}")
        raise typer.Exit
    _clean_up_after_the_killed()


def _clean_up_after_the_killed() -> None:
    """Remove what an earlier kvbench that was killed left behind; every command begins with it."""
    from kvbench.engine.leases import sweep

    console = people()
    for sentence in sweep(lambda line: say(console, line)):
        say(console, f"cleaned up: {sentence}")


def main() -> None:
    """Entry point: whatever happens ends in one message and its exit code, never in a traceback."""
    sys.exit(ended(lambda: app(standalone_mode=False)))


if __name__ == "__main__":
    main()
