"""What `analyze` tells people about a trace; machines get the document itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from kvbench.report.plain import plain

__all__ = ["show_analysis"]

Document = Mapping[str, Any]
"""As `kvbench.plan.analysis.analyse` makes it."""


def show_analysis(console: Console, document: Document) -> None:
    """Counts, ideal reuse, and what caches and tiers of several sizes would serve."""
    basic, ideal, reuse = document["basic"], document["ideal"], document["reuse_time_s"]
    console.print(
        f"{plain(document['file'])} ({document['format']}): {basic['requests']:,} requests over "
        f"{basic['duration_s']:,.0f} s, {basic['input_tokens']:,} tokens in, {basic['output_tokens']:,} out",
        markup=False,
    )
    console.print(
        f"{basic['total_refs']:,} references to {basic['unique_blocks']:,} blocks of {document['block_size']} "
        f"tokens; {_share(basic['one_time_use_share_of_unique'])} of the blocks are used once"
    )
    console.print(
        f"an unlimited cache serves {_share(ideal['vllm']['token_hit_rate'])} of the prompt tokens (leading whole "
        f"blocks, the last token computed)"
    )
    if reuse["n"]:
        console.print(
            f"a block is used again after {reuse['p50']:g} s in half, {reuse['p90']:g} s in 90 % of cases"
        )
    console.print(_lru_table(document["lru_request_stream"]["vllm_all"]["points"]))
    if document["hierarchy"]:
        console.print(_tier_table(document["hierarchy"]))


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _lru_table(points: Sequence[Document]) -> Table:
    table = Table(title="One LRU cache", title_justify="left")
    for heading in ("blocks", "prompt tokens served"):
        table.add_column(heading, justify="right")
    for point in points:
        table.add_row(f"{point['capacity_blocks']:,}", _share(point["token_hit_rate"]))
    return table


def _tier_table(entries: Sequence[Document]) -> Table:
    table = Table(title="Tiers behind each other, fastest first", title_justify="left")
    table.add_column("blocks")
    table.add_column("kept")
    for heading in ("prompt tokens served by each", "together", "blocks written to each"):
        table.add_column(heading, justify="right")
    for entry in entries:
        table.add_row(
            " + ".join(f"{size:,}" for size in entry["capacities"]),
            entry["mode"].replace("_", " "),
            " + ".join(_share(rate) for rate in entry["token_hit_rate_per_tier"]),
            _share(entry["token_hit_rate_total"]),
            " + ".join(f"{count:,}" for count in entry["writes_per_tier"]),
        )
    return table
