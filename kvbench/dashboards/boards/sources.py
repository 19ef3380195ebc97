"""Sources and promotions: where prompt tokens came from, what came up from the tiers, what failed on the way."""

from __future__ import annotations

from functools import partial

from kvbench.dashboards.boards.overview import RATE, quantile, total_rate
from kvbench.dashboards.boards.panel import Board, Lines, Query, both, lines, stacked
from kvbench.dashboards.series import BY_SOURCE, CACHED_BY_SOURCE, counter

__all__ = ["sources"]

TIERS = 'tier!="0:primary"'
"""vLLM counts its host tier among the tiers; the others stand behind it."""
CACHED = ("device", "host", "disk")


def sources() -> str:
    """JSON of the dashboard."""
    board = Board(
        "sources", "KV tiers: sources and promotions", "Where prompt tokens came from, and how they got up."
    )
    board.arms(counter("prompt_tokens"))
    board.row("Prompt tokens by source", *_by_source())
    board.row("Hit rates", *_hit_rates())
    board.row("Promotions and stores", *_promotions())
    board.row("Failures and drops", *_failures())
    return board.text()


def _by_source() -> list[Lines]:
    return [
        stacked(
            f"Prompt tokens by source, {arm}",
            "none",
            _tokens(f'$label="${arm}"'),
            "Per second. `elsewhere` is another server, or a connector that does not tell its tiers apart.",
        )
        for arm in ("baseline", "candidate")
    ] + [
        lines(
            f"From {source}",
            "percentunit",
            both(partial(_share, source)),
            "Share of all prompt tokens.",
            width=6,
        )
        for source in (*CACHED, "computed")
    ]


def _source(source: str, arm: str) -> str:
    if source == "computed":
        return f'sum(rate({BY_SOURCE}{{source="local_compute", {arm}}}{RATE}))'
    return f'sum(rate({CACHED_BY_SOURCE}{{source="{source}", {arm}}}{RATE}))'


def _share(source: str, arm: str) -> str:
    return f"{_source(source, arm)} / {total_rate('prompt_tokens', arm)}"


def _rate(metric: str, only: str, arm: str) -> str:
    return total_rate(metric, only + arm)


def _tokens(arm: str) -> list[Query]:
    elsewhere = f'sum(rate({CACHED_BY_SOURCE}{{source!~"{"|".join(CACHED)}", {arm}}}{RATE}))'
    return [*(Query(_source(name, arm), name) for name in (*CACHED, "computed")), Query(elsewhere, "elsewhere")]


def _hit_rates() -> list[Lines]:
    def rate(hits: str, queries: str, arm: str) -> str:
        return f"{total_rate(hits, arm)} / {total_rate(queries, arm)}"

    return [
        lines(
            "Device cache",
            "percentunit",
            both(lambda arm: rate("prefix_cache_hits", "prefix_cache_queries", arm)),
            "Of the prompt tokens looked up on the device.",
            most=1,
        ),
        lines(
            "Behind the device",
            "percentunit",
            both(lambda arm: rate("tier_cache_hits", "tier_cache_queries", arm)),
            "Of the prompt tokens that the device did not have. No line: nothing was asked for.",
            most=1,
        ),
        lines(
            "Disk chunks",
            "percentunit",
            both(lambda arm: rate("disk_chunk_hits", "disk_chunk_queries", f"{TIERS}, {arm}")),
            "Chunks, each request until its first miss: no share of tokens.",
            most=1,
        ),
    ]


def _promotions() -> list[Lines]:
    return [
        lines(title, "Bps", both(partial(_rate, metric, more)), told)
        for title, metric, more, told in (
            ("Disk to host", "disk_read_bytes", f"{TIERS}, ", "Promotions from the disk tier."),
            ("Host to device", "host_load_bytes", "", "Loads, also of what came from the disk first."),
            ("Device to host", "host_store_bytes", "", "Stores. Without hits later they cost and cannot pay."),
            ("Host to disk", "disk_write_bytes", f"{TIERS}, ", "Includes chunks whose file was there already."),
        )
    ] + [
        lines(
            "Wait for a tier, p99",
            "s",
            both(lambda arm: quantile(0.99, "host_lookup_time", arm)),
            "First deferral of a request until its KV was found or given up.",
        )
    ]


def _failures() -> list[Lines]:
    never = "No line: it never happened."
    return [
        lines(title, "ops", both(partial(total_rate, metric)), f"{told} {never}")
        for title, metric, told in (
            ("Failed reads", "promotion_failures", "Jobs; the requests are recomputed."),
            ("Failed writes", "cascade_failures", "Jobs; the disk tier learns nothing."),
            ("Promotions given up", "promotion_drops", "The host tier was full."),
            ("Stores given up", "host_store_drops", "The host tier was full."),
            ("Stores dropped under back-pressure", "store_drops", "The disk was too slow."),
            ("Stores skipped", "host_store_skips", "Blocks seen too seldom (store_threshold)."),
        )
    ]
