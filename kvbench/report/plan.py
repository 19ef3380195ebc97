"""What `plan` tells people on the terminal; machines get the document itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.judge.sources import SOURCES
from kvbench.report.plain import plain
from kvbench.report.trace_view import Sheet, share, skipped_lines
from kvbench.spec.quantity import show_bytes, show_seconds

__all__ = ["show_budget", "show_plan"]

Document = Mapping[str, Any]


def show_plan(console: Console, document: Document) -> None:
    """Predicted shares and latencies, sizes, break-even lengths, writes, alternatives."""
    console.print(
        Text(
            f"{plain(document['workload'])} on {plain(document['profile'])}: {document['requests']:,} requests "
            f"over {document['duration_s']:,.0f} s{_each(document)}; costs: {plain(document['costs']['source'])}"
        )
    )
    for sheet in _sheets(document):
        console.print(_table(sheet))
    for line in _lines(document):
        console.print(Text(line))
    for note in document["assumptions"]:
        console.print(Text(f"assumed: {plain(note)}", style="dim"))


def _sheets(document: Document) -> Iterator[Sheet]:
    yield _shares(document)
    yield _latency(document)
    yield _sweep(document)
    yield _paths(document["break_even"]["paths"])
    rows = tuple((each["name"], share(each["served"]), each["text"]) for each in document["alternatives"])
    yield Sheet("Beside a tier: what the device alone would serve", ("change", "served", "how"), rows, words=1)


def _shares(document: Document) -> Sheet:
    rows = tuple(
        (words, *(share(document[key]["shares"][source]) for source in SOURCES))
        for key, words in (("device_only", "device only"), ("prediction", "as in the profile"))
    )
    return Sheet(f"Predicted sources of prompt tokens{_together(document)}", ("arm", *SOURCES), rows, words=1)


def _each(document: Document) -> str:
    return " in the first round" if document["prediction"]["rounds"] > 1 else ""


def _together(document: Document) -> str:
    rounds = document["prediction"]["rounds"]
    return f", {rounds} rounds together" if rounds > 1 else ""


def _latency(document: Document) -> Sheet:
    rows = []
    for key, words in (("device_only", "device only"), ("prediction", "as in the profile")):
        for source, ttft in document[key]["ttft_s"].items():
            gaps = document[key]["itl_s"].get(source, {})
            times = (ttft["p50"], ttft["p99"], gaps.get("p50"), gaps.get("p99"))
            rows.append((words, source, f"{ttft['n']:,}", *map(_seconds, times)))
    columns = ("arm", "prompt mostly from", "requests", "TTFT p50", "p99", "ITL p50", "p99")
    return Sheet(f"Predicted latency by source{_together(document)}", columns, tuple(rows), words=2)


def _seconds(value: float | None) -> str:
    return "too few" if value is None else show_seconds(value)


def _sweep(document: Document) -> Sheet:
    knee = document["knee"]
    rows = tuple(
        (
            show_bytes(point["size_bytes"]) + (" ←" if knee and point["size_bytes"] == knee["size_bytes"] else ""),
            share(point["shares"]["device"]),
            share(point["shares"]["host"]),
            share(point["served"]),
        )
        for point in document["sweep"]
    )
    policy = document["sizes"]["host_policy"].upper()
    return Sheet(
        f"Host tier by size, {policy} (← knee)", ("size", "from the device", "from the host", "together"), rows
    )


def _paths(rows: list[Document]) -> Sheet:
    shown = tuple(
        (
            row["tier"],
            row["path"],
            f"{row['bytes_per_s'] / 1e9:.3g} GB/s",
            "never" if row["tokens"] is None else f"{row['tokens']:,}",
        )
        for row in rows
    )
    title = "From which prefix length on loading beats computing"
    return Sheet(title, ("tier", "path", "rate", "tokens"), shown, words=2)


def _lines(document: Document) -> Iterator[str]:
    yield from skipped_lines(document)
    if document["left_out"]:
        yield f"{document['left_out']:,} requests are longer than the engine takes, and are left out"
    promoted, path = document["prediction"]["promotion_bytes_per_s"], document["path"]
    yield (
        f"Promotions: {show_bytes(promoted['mean'])}/s on average, {show_bytes(promoted['peak'])}/s over 10 s"
        + (f" ({share(path['peak_use'])} of the path)" if path["peak_use"] is not None else "")
    )
    writes = document["disk_writes"]
    years = "" if writes["years"] is None else f", so it lasts {writes['years']:.3g} years"
    drive = f"a drive of {show_bytes(writes['drive_bytes'])} ({writes['drive_source']})"
    least = "at least " if writes["at_least"] else ""
    yield (
        f"A disk tier would write {least}{show_bytes(writes['bytes_per_day'])} a day if as much is new all day: "
        f"{writes['drive_writes_per_day']:.3g} times {drive}, rated for "
        f"{writes['rated_drive_writes_per_day']:g}{years}"
    )
    yield f"Recommended: {document['recommendation']['reason']}"


def show_budget(console: Console, document: Document) -> None:
    """The three budgets of one GPU, and what the KV budget holds."""
    geometry = document["geometry"]
    held = f"{document['kv_tokens']:,} tokens in {document['kv_blocks']:,} blocks"
    rows = [
        ("weights", show_bytes(document["weights_bytes"]), document["weights_source"]),
        ("workspace", show_bytes(document["workspace_bytes"]), "runtime, activations, logits"),
        ("KV", show_bytes(document["kv_bytes"]), held),
        ("left alone", show_bytes(document["outside_bytes"]), f"utilization {document['utilization']:g}"),
    ]
    ranks = geometry["tensor_parallel"] * document["pipeline_parallel"]
    gpus = f"{ranks} × {show_bytes(document['gpu_bytes'])}"
    title = f"{plain(geometry['model'])} on {gpus}"
    console.print(_table(Sheet(title, ("budget of one GPU", "size", "what"), tuple(rows), words=1)))
    console.print(
        Text(
            f"{geometry['attention']}, {geometry['bytes_per_token_all_layers']:,} bytes of KV a token over all "
            f"ranks ({geometry['bytes_per_token_and_rank']:,} on each)"
        )
    )
    if document["sequences_at_max_model_len"] is not None:
        count, longest = document["sequences_at_max_model_len"], document["max_model_len"]
        console.print(Text(f"{count:.3g} sequences of {longest:,} tokens fit at once"))
    if not document["fits"]:
        console.print(Text("The model does not fit: use more GPUs (--tp, --pp), smaller weights or a larger GPU."))
    for note in document["assumptions"]:
        console.print(Text(f"assumed: {plain(note)}", style="dim"))


def _table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left")
    for number, heading in enumerate(sheet.columns):
        words = number < sheet.words or heading in ("how", "what")
        table.add_column(heading, justify="left" if words else "right")
    for row in sheet.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
