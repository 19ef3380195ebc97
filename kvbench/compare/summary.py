"""What `kvbench run` tells about the one arm that it recorded: figures, no verdict. Times in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from kvbench.compare.stored import read_round
from kvbench.judge.case import JudgedRound
from kvbench.judge.evidence import ArmRound
from kvbench.judge.guardrails import event_words
from kvbench.judge.hit_quality import source_rows
from kvbench.judge.host_path import arm_host
from kvbench.judge.latency import RoundLatencies, Sample, carries
from kvbench.judge.ledger import arm_totals
from kvbench.judge.phases import measured_start
from kvbench.judge.quality import ArmHost, LedgerTotals, SourceTtft
from kvbench.judge.sources import Counters, add_sources
from kvbench.record.manifest import Manifest
from kvbench.record.run_directory import RunDirectory
from kvbench.report.hits import ledger_table, source_table
from kvbench.report.host import host_tables
from kvbench.report.streams import say
from kvbench.report.terminal import plain_table
from kvbench.report.view import CLOSED_LOOP, CLOSED_LOOP_SENT
from kvbench.spec.quantity import show_seconds

__all__ = ["class_figures", "show_summary", "summarise"]

QUANTILES = (0.5, 0.9, 0.99)


def summarise(run: RunDirectory, manifest: Manifest) -> dict[str, object]:
    """TTFT by class over all rounds, failed requests counted at the time-out; tokens by source."""
    rounds = [read_round(run, record) for record in manifest.rounds if record.state == "done"]
    judged = [JudgedRound(recorded, manifest.workload) for recorded in rounds]
    latencies = [each.latencies for each in judged]
    names = sorted({name for each in latencies for name in each.classes})
    start, arm = measured_start(manifest.workload), manifest.arms[0].name
    totals = arm_totals(arm, rounds)
    host = arm_host(manifest.arms[0].profile, rounds, manifest.workload)
    trusted = totals is None or not totals.distrusted
    by_source = source_rows(arm, judged, lambda _: None) if trusted else ()
    return {
        "run": str(run.path),
        "arm": arm,
        "rounds": len(rounds),
        "classes": {name: class_figures(latencies, name) for name in names},
        "sources": add_sources(Counters(r.metrics).by_source(start) for r in rounds),
        "ledger": None if totals is None else totals.model_dump(),
        "ttft_by_source": [row.model_dump() for row in by_source],
        "host": None if host is None else host.model_dump(),
        "events": [{"kind": e.kind, "t_s": e.t_s, "detail": e.detail} for r in rounds for e in r.events],
        "config_differences": sorted({d for r in rounds for d in r.config_differences}),
        "failures": list(dict.fromkeys(failure for r in rounds for failure in _failures(r))),
    }


def class_figures(rounds: Sequence[RoundLatencies], class_: str) -> dict[str, object]:
    """Requests of a class, how many failed, and the quantiles of TTFT that every round carries: None where users
    who left before their first token would tell it."""
    samples = [latencies.sample("ttft", class_) for latencies in rounds]
    carried = [q for q in QUANTILES if all(carries(sample.requests, q) for sample in samples)]
    figures = Sample.pooled(samples).quantiles(*carried)
    return {
        "requests": sum(int(latencies.of_class(class_).sum()) for latencies in rounds),
        "failed": sum(int((latencies.of_class(class_) & latencies.failed).sum()) for latencies in rounds),
        "ttft_s": {
            f"p{quantile * 100:g}": None if math.isnan(figure) else figure
            for quantile, figure in zip(carried, figures, strict=True)
        },
    }


def _failures(recorded: ArmRound) -> Iterator[str]:
    """What makes the recording of a round worthless, as sentences."""
    if recorded.events:
        yield event_words(recorded)
        return
    for difference in recorded.config_differences:
        yield f"the running engine of {recorded.arm} is not as asked: {difference}"
    if not len(recorded.requests):
        return
    measured = recorded.requests[recorded.requests["measured"].astype(bool)]
    if len(measured) and (measured["status"] == "error").all():
        commonest = measured["error"].value_counts().index[0]
        yield (
            f"none of the {len(measured):,} requests to {recorded.arm} in round {recorded.index} succeeded; most "
            f"often: {commonest}"
        )


def show_summary(console: Console, manifest: Manifest, summary: dict[str, object]) -> None:
    """For people."""
    table = Table(title=f"{manifest.arms[0].name}: TTFT by class", title_justify="left")
    for heading in ("class", "requests", "failed", *(f"p{q * 100:g}" for q in QUANTILES)):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    classes = summary["classes"]
    assert isinstance(classes, dict)  # noqa: S101 - made above
    for name, figures in classes.items():
        cells = (_cell(figures["ttft_s"], f"p{q * 100:g}") for q in QUANTILES)
        table.add_row(name, f"{figures['requests']:,}", f"{figures['failed']:,}", *cells)
    console.print(table)
    if manifest.workload.arrivals.process == "closed":
        console.print(f"closed loop: {CLOSED_LOOP}; {CLOSED_LOOP_SENT}", markup=False)
    sources = summary["sources"]
    assert isinstance(sources, dict)  # noqa: S101 - made above
    shares = ", ".join(f"{n} {'not told' if v is None else f'{v:,.0f}'}" for n, v in sources.items())
    console.print(f"prompt tokens by source: {shares}", markup=False)
    _show_hits(console, summary)
    failures = summary["failures"]
    assert isinstance(failures, list)  # noqa: S101 - made above
    for failure in failures:
        say(console, f"error: {failure}")
    say(console, f"recorded in {summary['run']}")


def _cell(ttft_s: Mapping[str, float | None], quantile: str) -> str:
    if quantile not in ttft_s:
        return "too few"
    figure = ttft_s[quantile]
    return "open: users left" if figure is None else show_seconds(figure)


def _show_hits(console: Console, summary: dict[str, object]) -> None:
    """How the ledger of the requests agrees with the counters, TTFT by source, and what the host did."""
    totals, rows, host = summary["ledger"], summary["ttft_by_source"], summary["host"]
    tables = [ledger_table([LedgerTotals.model_validate(totals)])] if totals is not None else []
    if isinstance(rows, list):
        tables.append(source_table([SourceTtft.model_validate(row) for row in rows]))
    tables += host_tables([ArmHost.model_validate(host)]) if host is not None else ()
    for table in tables:
        if table.rows:
            console.print(f"\n{table.heading}", markup=False)
            console.print(plain_table(table, console.width))
