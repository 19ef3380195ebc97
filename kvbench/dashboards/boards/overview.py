"""Overview: what users of the baseline and of the candidate see, and how close both are to their budgets."""

from __future__ import annotations

from functools import partial

from kvbench.dashboards.boards.panel import Board, Lines, Tile, both, lines, tile
from kvbench.dashboards.budgets import Budgets
from kvbench.dashboards.series import bucket, count, counter, gauge
from kvbench.engine.emulated.counters import FIRST_TOKEN_S, GAP_S

__all__ = ["overview"]

RATE = "[$__rate_interval]"


def overview() -> str:
    """JSON of the dashboard. Its budgets are variables, since only an edge of the engine's buckets can be one."""
    board = Board("overview", "KV tiers: overview", "Candidate against baseline: latency, errors, load, budgets.")
    board.arms(counter("prompt_tokens"))
    for name, label, edges, default in (
        ("ttft_budget", "TTFT budget, s", FIRST_TOKEN_S, Budgets().ttft_s),
        ("itl_budget", "ITL budget, s", GAP_S, Budgets().itl_s),
    ):
        board.one_of(name, label, [repr(edge) for edge in edges], repr(default))
    board.row("Now", *_tiles())
    board.row("Latency, as the engine measures it", *_latency())
    board.row("Load and errors", *_load())
    board.row("Budgets (need the recording rules)", *_burn())
    return board.text()


def quantile(share: float, metric: str, arm: str) -> str:
    """A quantile over all replicas of an arm."""
    return f"histogram_quantile({share:g}, sum by (le) (rate({bucket(metric)}{{{arm}}}{RATE})))"


def share_over(metric: str, edge: str, arm: str) -> str:
    """The share of values over an edge of the buckets; NaN without traffic."""
    within = f'sum(rate({bucket(metric)}{{le="{edge}", {arm}}}{RATE}))'
    return f"1 - {within} / sum(rate({count(metric)}{{{arm}}}{RATE}))"


def total_rate(metric: str, arm: str) -> str:
    """A counter per second, over all replicas."""
    return f"sum(rate({counter(metric)}{{{arm}}}{RATE}))"


def _recorded(record: str, window: str, arm: str) -> str:
    return f"max(kvbench:{record}:ratio_rate{window}{{{arm}}})"


def _tiles() -> list[Tile]:
    return [
        tile(
            "Replicas",
            "none",
            both(lambda arm: f"count({gauge('requests_running')}{{{arm}}})"),
            "Engines that tell.",
        ),
        tile(
            "TTFT over $ttft_budget s",
            "percentunit",
            both(lambda arm: share_over("engine_ttft", "$ttft_budget", arm)),
            "Exact, since the budget is an edge of the engine's buckets.",
        ),
        tile(
            "ITL over $itl_budget s",
            "percentunit",
            both(lambda arm: share_over("engine_itl", "$itl_budget", arm)),
            "Of all gaps between tokens.",
        ),
        tile("Requests", "reqps", both(lambda arm: total_rate("requests_finished", arm)), "Finished per second."),
        tile(
            "From a cache",
            "percentunit",
            both(lambda arm: f"{total_rate('cached_tokens', arm)} / {total_rate('prompt_tokens', arm)}"),
            "Prompt tokens whose KV was not computed, whatever the source.",
        ),
        tile(
            "Device blocks in use",
            "percentunit",
            both(lambda arm: f"max({gauge('kv_cache_usage')}{{{arm}}})"),
            "Of the fullest engine.",
        ),
    ]


def _latency() -> list[Lines]:
    bounds = "Between two edges of the engine's buckets a quantile is a guess; the edges are exact."
    return [
        lines("TTFT p99", "s", both(lambda arm: quantile(0.99, "engine_ttft", arm)), f"From arrival. {bounds}"),
        lines("TTFT p50", "s", both(lambda arm: quantile(0.5, "engine_ttft", arm)), f"From arrival. {bounds}"),
        lines(
            "TTFT over $ttft_budget s",
            "percentunit",
            both(lambda arm: share_over("engine_ttft", "$ttft_budget", arm)),
            "The share of requests over budget; this is what alerts and the gate count.",
        ),
        lines("ITL p99", "s", both(lambda arm: quantile(0.99, "engine_itl", arm)), f"Every gap. {bounds}"),
        lines("E2E p99", "s", both(lambda arm: quantile(0.99, "engine_e2e", arm)), f"From arrival. {bounds}"),
        lines(
            "Queue p99",
            "s",
            both(lambda arm: quantile(0.99, "engine_queue_time", arm)),
            "Arrival to scheduled. Loading KV from a tier is in here, not in prefill.",
        ),
    ]


def _load() -> list[Lines]:
    finished = counter("requests_finished")
    return [
        lines("Requests finished", "reqps", both(lambda arm: total_rate("requests_finished", arm)), "All reasons."),
        lines(
            "Requests failed or refused",
            "reqps",
            [
                *both(lambda arm: f'sum(rate({finished}{{finished_reason="error", {arm}}}{RATE}))', "failed"),
                *both(lambda arm: total_rate("requests_refused", arm), "refused"),
            ],
            "Refused at admission: the queue was full.",
        ),
        lines(
            "Requests in the engine",
            "none",
            [
                *both(lambda arm: f"sum({gauge('requests_running')}{{{arm}}})", "running"),
                *both(lambda arm: f"sum({gauge('requests_waiting')}{{{arm}}})", "waiting"),
            ],
            "Waiting includes those that wait for KV from a tier.",
        ),
        lines(
            "Tokens",
            "none",
            [
                *both(lambda arm: total_rate("prompt_tokens", arm), "prompt"),
                *both(lambda arm: total_rate("generation_tokens", arm), "generated"),
            ],
            "Per second.",
        ),
        lines("Preemptions", "ops", both(lambda arm: total_rate("preemptions", arm)), "Running requests put back."),
        lines(
            "Device blocks in use",
            "percentunit",
            both(lambda arm: f"max({gauge('kv_cache_usage')}{{{arm}}})"),
            "The fullest engine of each arm.",
            most=1,
        ),
    ]


def _burn() -> list[Lines]:
    return [
        lines(
            title,
            "percentunit",
            [
                query
                for window in ("5m", "1h", "6h")
                for query in both(
                    partial(_recorded, record, window),
                    window,
                )
            ],
            "Over the budget that the rules were exported with. Alerts compare it with what is allowed: 14.4 times "
            "that over an hour and five minutes wakes somebody.",
        )
        for title, record in (
            ("TTFT over its budget", "ttft_over_budget"),
            ("ITL over its budget", "itl_over_budget"),
            ("Requests failed or refused", "errors"),
        )
    ]
