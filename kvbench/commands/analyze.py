"""`kvbench analyze`: the reuse of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands import options
from kvbench.commands.answer import answer
from kvbench.report.streams import people, say

__all__ = ["EXAMPLES", "analyze"]

EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench analyze conversation_trace.jsonl\n\n"
    "kvbench analyze trace.jsonl.gz --hierarchy device=1000,host=20000 --inclusion exclusive --json\n\n"
    "kvbench analyze trace.jsonl --model ./Qwen2.5-7B-Instruct --host-kv 512GiB --html analysis.html"
)


def analyze(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, or the folder of a recorded run.")],
    format_: options.TraceFormat = None,
    block_tokens: options.BlockTokens = None,
    tail: Annotated[
        str, typer.Option("--tail", help="Partial last blocks: keep, drop, or vllm (for --ttl and --hierarchy).")
    ] = "keep",
    capacities: Annotated[
        str | None,
        typer.Option("--capacities", metavar="N,N,...", help="LRU sizes in blocks.", show_default="usual"),
    ] = None,
    hierarchy: Annotated[
        str | None,
        typer.Option(
            "--hierarchy", metavar="device=N,host=N,disk=N", help="Tiers in blocks.", show_default="usual"
        ),
    ] = None,
    inclusion: Annotated[
        str | None,
        typer.Option(
            "--inclusion", help="exclusive, inclusive_touch_all or inclusive_filtered.", show_default="all three"
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", help="What the host tier of --hierarchy evicts by: lru or arc.")
    ] = "lru",
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", metavar="1s,10s,...", help="Ages at which blocks go.", show_default="usual"),
    ] = None,
    model: Annotated[str | None, options.model_option("Llama-3.1-8B")] = None,
    kv_dtype: options.KvDtype = "auto",
    device_kv: Annotated[str | None, options.size_option("--device-kv", "KV on the device.")] = None,
    host_kv: Annotated[str | None, options.size_option("--host-kv", "A host tier.")] = None,
    disk_kv: Annotated[str | None, options.size_option("--disk-kv", "A disk tier.")] = None,
    path: options.PathRate = None,
    disk_path: options.DiskPath = None,
    prefill: options.Prefill = None,
    bad_lines: options.BadLimit = 100,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page that needs nothing else.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say what reuse a trace has, what caches and tiers would serve of it, and whether offload is worth a pilot."""
    from kvbench.plan.analysis import analyse
    from kvbench.plan.questions import make_question
    from kvbench.plan.setting import Wishes, make_setting
    from kvbench.workload.traces.bad_lines import BadLines
    from kvbench.workload.traces.reading import read_trace

    if html is not None:
        from kvbench.report.trace_page import check_page

        check_page(html, trace)
    setting = make_setting(Wishes(model, kv_dtype, device_kv, host_kv, disk_kv, path, disk_path, prefill))
    question = make_question(
        tail=tail,
        capacities=capacities,
        hierarchy=hierarchy,
        inclusion=inclusion,
        ttl=ttl,
        policy=policy,
        setting=setting,
    )
    bad = BadLines(bad_lines)
    document = analyse(read_trace(trace, format_=format_, block_tokens=block_tokens, bad_lines=bad), question)
    document["skipped_lines"] = bad.document()
    if html is not None:
        from kvbench.report.trace_page import write_trace_page

        write_trace_page(html, document)
        say(people(), f"wrote {html}")
    from kvbench.report.trace_analysis import show_analysis

    answer(document, show_analysis, as_json=as_json)
