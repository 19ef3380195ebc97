"""The gate: its verdict over time, each rule beside its limit, and whether it sees enough to judge at all."""

from __future__ import annotations

from kvbench.dashboards import gate_series as series
from kvbench.dashboards.boards.panel import Board, Lines, Query, States, lines, states

__all__ = ["gate"]

GATE = 'gate="$gate"'
RULE = f'{GATE}, rule=~"$rule"'
FAILED = f'{GATE}, outcome="failed"'


def gate() -> str:
    """JSON of the dashboard."""
    board = Board(
        "gate", "KV tiers: the gate", "What kvbench gate --serve says about the canary, and what it sees."
    )
    board.choice("gate", "Gate", f"label_values({series.VERDICT}, gate)")
    board.choice("rule", "Rule", f"label_values({series.EFFECT}{{{GATE}}}, rule)")
    board.row("Verdict", _verdict(), _rules())
    board.row("The rule $rule", *_rule())
    board.row("What the gate sees", *_sight())
    return board.text()


def _scored(of: str, by: str, values: tuple[str, ...], label: str) -> str:
    """The place of the value that holds, counted from one."""
    return " + ".join(
        f'{place} * max by ({by}) ({of}{{{GATE}, {label}="{value}"}})' for place, value in enumerate(values, 1)
    )


def _verdict() -> States:
    words = (("GO", "good"), ("INCONCLUSIVE", "open"), ("NO_GO", "bad"), ("INVALID", "void"))
    expr = _scored(series.VERDICT, "gate", tuple(word for word, _ in words), "verdict")
    return states("Verdict", Query(expr, "{{gate}}"), words, "A gap is a gate that was not there.")


def _rules() -> States:
    words = (("pass", "good"), ("unknown", "open"), ("fail", "bad"))
    expr = _scored(series.RULE, "rule", tuple(word for word, _ in words), "status")
    return states("Rules", Query(expr, "{{rule}}"), words, "Unknown is never a pass: the gate keeps watching.")


def _rule() -> list[Lines]:
    return [
        lines(
            "Effect and limit",
            "none",
            [
                Query(f"{name}{{{RULE}}}", what)
                for name, what in (
                    (series.EFFECT, "effect"),
                    (series.CI_LOW, "from"),
                    (series.CI_HIGH, "to"),
                    (series.LIMIT, "limit"),
                )
            ],
            "A ratio for rules against the baseline, else in the metric's unit.",
            width=12,
        ),
        lines(
            "Share over budget (sustained rules)",
            "percentunit",
            [
                Query(f'{series.SHARE_OVER}{{{RULE}, stretch="{stretch}"}}', f"over the {what}")
                for stretch, what in (("for", "whole time"), ("window", "latest window"))
            ]
            + [Query(f"{series.FIRING_SHARE}{{{RULE}}}", "fires at")],
            "It fires when both are at or above the share at which it fires.",
            width=12,
        ),
    ]


def _sight() -> list[Lines]:
    rate = "[$__rate_interval]"
    return [
        lines(
            "Requests seen",
            "reqps",
            [Query(f"sum by (selection) (rate({series.REQUESTS}{{{GATE}}}{rate}))", "{{selection}}")],
            "Too few, and a window says nothing.",
            width=6,
        ),
        lines(
            "Windows",
            "ops",
            [Query(f"sum by (state) (rate({series.WINDOWS}{{{GATE}}}{rate}))", "{{state}}")],
            "Unknown ones had too few requests, a restart, a reset or missing series.",
            width=6,
        ),
        lines(
            "Failed scrapes",
            "ops",
            [Query(f"sum by (selection) (rate({series.SCRAPES}{{{FAILED}}}{rate}))", "{{selection}}")],
            "Of the Prometheus server, or of the engines directly.",
            width=6,
        ),
        lines(
            "Age of the last good answer",
            "s",
            [Query(f"{series.SCRAPE_AGE}{{{GATE}}}", "{{selection}}")],
            "The gate is blind when it grows.",
            width=6,
        ),
        lines(
            "Replicas",
            "none",
            [Query(f"{series.REPLICAS}{{{GATE}}}", "{{selection}} {{state}}")],
            "Cold ones still fill their caches; odd ones differ from the others of their group.",
            width=12,
        ),
        lines(
            "Action",
            "none",
            [Query(f"{series.ACTION}{{{GATE}}}", "{{state}}")],
            "idle: no hook; armed: it may act; dry-run: it was only shown; fired or failed: it acted.",
            width=12,
            most=1,
        ),
        lines(
            "Rollback",
            "none",
            [Query(f"{series.ROLLBACK}{{{GATE}}}", "{{part}} {{status}}")],
            "After a hook: whether the tier is off and TTFT back. Failed or unknown: somebody must look.",
            width=12,
            most=1,
        ),
        lines(
            "Hook to proven",
            "s",
            [Query(f"{series.ROLLBACK_AFTER}{{{GATE}}}", "{{part}}")],
            "How long after the hook it was so.",
            width=12,
        ),
    ]  # fmt: skip
