"""Alerting rules: what is worth waking somebody for, and what can wait until morning (`severity`: page, ticket).

Failure counters of vLLM do not exist before the first failure, so an increase alone would miss exactly that one.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.dashboards import gate_series
from kvbench.dashboards.budgets import BURNS, Budgets, Burn
from kvbench.dashboards.recording import ONE_SERVICE
from kvbench.dashboards.series import counter, gauge
from kvbench.dashboards.written import rule_file
from kvbench.judge.sustained import FEWEST_REQUESTS

__all__ = ["alerting_rules"]

COLLAPSED = 0.5
"""A hit rate has collapsed when it is below this part of yesterday's."""
WORTH_WATCHING = 0.05
"""A tier that served less than this of what it was asked for has no hit rate to lose."""
FULL, NEARLY_FULL = 0.05, 0.10
"""Shares of a file system or of memory that are left."""
SHM = "/dev/shm"  # noqa: S108 - what is mounted there is watched, nothing is written


@dataclass(frozen=True)
class Alert:
    """One alerting rule; `for_` is how long it has to hold."""

    name: str
    severity: str
    expr: str
    for_: str
    summary: str
    description: str

    def document(self) -> dict[str, object]:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.for_,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


def alerting_rules(budgets: Budgets) -> str:
    """The rule file: burn rates, stuck engines, failing tiers, full disks, lost hits, the gate's word."""
    groups = {
        "kvbench-burn": _burn(budgets),
        "kvbench-engine": _engine(),
        "kvbench-tiers": _tiers(),
        "kvbench-space": _space(budgets),
        "kvbench-hit-rate": _hit_rate(),
        "kvbench-gate": _gate(),
    }
    return rule_file("alerting.py", [(n, [alert.document() for alert in alerts]) for n, alerts in groups.items()])


def _burn(budgets: Budgets) -> list[Alert]:
    told = (
        ("Ttft", "kvbench:ttft_over_budget", budgets.share, f"TTFT over {budgets.ttft_s:g} s"),
        ("Itl", "kvbench:itl_over_budget", budgets.share, f"ITL over {budgets.itl_s:g} s"),
        ("Error", "kvbench:errors", budgets.errors, "requests failed or refused"),
    )
    return [
        Alert(
            f"Kvbench{name}BudgetBurn{severity.title()}",
            severity,
            "\nor\n".join(
                _burns(record, allowed, burn) for burn in BURNS if burn.severity == severity
            ),
            "2m" if severity == "page" else "15m",
            f"{{{{ $labels.job }}}} uses up its budget too fast: {what}",
            f"{{{{ $value | humanizePercentage }}}} instead of at most {allowed:.3g} of all, over a long and a "
            "short window alike. If only replicas with a new tier burn, switch that tier off.",
        )
        for name, record, allowed, what in told
        for severity in dict.fromkeys(burn.severity for burn in BURNS)
    ]  # fmt: skip


def _burns(record: str, allowed: float, burn: Burn) -> str:
    limit = f"{allowed * burn.factor:.6g}"
    return (
        f"(\n  {record}:ratio_rate{burn.long} > {limit}\n  and {record}:ratio_rate{burn.short} > {limit}\n"
        f"  and kvbench:requests:increase{burn.short} >= {FEWEST_REQUESTS}\n)"
    )


def _engine() -> list[Alert]:
    tokens = counter("prompt_tokens")
    gone = f"group {ONE_SERVICE} ({tokens}"
    return [
        Alert(
            "KvbenchEngineStuck",
            "page",
            f"({gauge('requests_running')} + {gauge('requests_waiting')}) > 0\n"
            f"and rate({counter('generation_tokens')}[3m]) == 0\nand rate({tokens}[3m]) == 0",
            "2m",
            "{{ $labels.instance }} holds requests and makes no progress",
            "{{ $value }} requests run or wait and no token came for three minutes; /health may still answer. Seen "
            "with KV offload under pressure (vllm-project/vllm#45388): restart the engine, switch off its tier.",
        ),
        Alert(
            "KvbenchEngineRestarted",
            "ticket",
            f"resets({tokens}[15m]) > 0",
            "0m",
            "{{ $labels.instance }} was restarted: its device and host tiers are empty",
            "Counters began anew. Until the caches are full again every comparison with others is unfair.",
        ),
        Alert(
            "KvbenchEngineMetricsGone",
            "ticket",
            f"{gone} offset 15m)\nunless {gone})",
            "5m",
            "{{ $labels.job }} tells nothing about its engines any more",
            "Series that were there a quarter of an hour ago are not. Nothing else here can fire for it.",
        ),
    ]


def _happened(series: str, window: str) -> str:
    """An event within the window, the very first one included, which makes the series and is no increase of it."""
    return f"increase({series}[{window}]) > 0\nor ({series} unless {series} offset {window}) > 0"


def _tiers() -> list[Alert]:
    stored, hits, asked = (counter(name) for name in ("host_store_bytes", "tier_cache_hits", "tier_cache_queries"))
    return [
        Alert(
            "KvbenchTierReadsFail",
            "ticket",
            _happened(counter("promotion_failures"), "15m"),
            "0m",
            "{{ $labels.instance }} cannot read from its tier {{ $labels.tier }}",
            "Failed promotions are recomputed: answers are right and late. See the engine's log for the reason.",
        ),
        Alert(
            "KvbenchTierWritesFail",
            "ticket",
            _happened(counter("cascade_failures"), "15m"),
            "0m",
            "{{ $labels.instance }} cannot write to its tier {{ $labels.tier }}",
            "The tier serves what it has and learns nothing new. A full or read-only disk is the usual reason.",
        ),
        *(
            Alert(
                name, "ticket", f"rate({counter(metric)}[15m]) > 0", "30m", f"{{{{ $labels.instance }}}} {what}", do
            )
            for name, metric, what, do in (
                (
                    "KvbenchHostTierFull",
                    "host_store_drops",
                    "keeps giving up stores: its host tier is full",
                    "Blocks in flight pin it. Make it larger, or store less eagerly.",
                ),
                (
                    "KvbenchPromotionsDropped",
                    "promotion_drops",
                    "keeps giving up promotions: its host tier is full",
                    "The disk tier has what is asked for, and it cannot come up. Make the host tier larger.",
                ),
                (
                    "KvbenchStoresDropped",
                    "store_drops",
                    "drops stores under back-pressure of {{ $labels.tier }}",
                    "The disk is slower than what is written to it.",
                ),
            )
        ),
        Alert(
            "KvbenchTierNeverHit",
            "ticket",
            f"increase({stored}[6h]) > 0\nand increase({hits}[6h]) == 0\nand increase({asked}[6h]) > 0",
            "1h",
            "{{ $labels.instance }} stores to its tier and never hits it",
            "{{ $value | humanize1024 }}B were copied in six hours for nothing: it costs and cannot pay.",
        ),
    ]


def _space(budgets: Budgets) -> list[Alert]:
    disk = budgets.disk_mount
    return [
        Alert(
            "KvbenchShmFilling",
            "page",
            f"{_left(SHM)} < {NEARLY_FULL:g}",
            "5m",
            f"{SHM} of {{{{ $labels.instance }}}} is nearly full",
            "{{ $value | humanizePercentage }} is left. The host tier lies there; an engine that was killed leaves "
            "its part behind, and the next start fails. node_exporter tells of it only when its "
            "--collector.filesystem.mount-points-exclude does not name /dev.",
        ),
        Alert(
            "KvbenchHostMemoryLow",
            "page",
            f"node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes < {FULL:g}",
            "5m",
            "{{ $labels.instance }} runs out of memory",
            "{{ $value | humanizePercentage }} is left. Memory of a host tier cannot be reclaimed: the kernel will "
            "kill something.",
        ),
        Alert(
            "KvbenchDiskTierFilling",
            "ticket",
            f'predict_linear(node_filesystem_avail_bytes{{mountpoint="{disk}"}}[6h], 86400) < 0\n'
            f"and {_left(disk)} < 0.5",
            "1h",
            f"{disk} of {{{{ $labels.instance }}}} will be full within a day",
            "The filesystem tier of vLLM has no size limit of its own and evicts nothing.",
        ),
        Alert(
            "KvbenchDiskTierFull",
            "page",
            f"{_left(disk)} < {FULL:g}",
            "5m",
            f"{disk} of {{{{ $labels.instance }}}} is full",
            "{{ $value | humanizePercentage }} is left: delete old blocks, or switch the disk tier off.",
        ),
    ]  # fmt: skip


def _left(mount: str) -> str:
    """The share of a file system that is free."""
    of = f'{{mountpoint="{mount}"}}'
    return f"node_filesystem_avail_bytes{of} / node_filesystem_size_bytes{of}"


def _hit_rate() -> list[Alert]:
    return [
        Alert(
            f"Kvbench{where.title()}HitRateCollapsed",
            "ticket",
            f"kvbench:{where}_hits:ratio_rate30m < {COLLAPSED:g} * (kvbench:{where}_hits:ratio_rate1d offset 1h)\n"
            f"and kvbench:{where}_hits:ratio_rate1d offset 1h > {WORTH_WATCHING:g}\n"
            f"and kvbench:requests:increase30m >= {FEWEST_REQUESTS}",
            "15m",
            f"hits of the {where} cache of {{{{ $labels.job }}}} fell to less than half of yesterday's",
            "{{ $value | humanizePercentage }} now. A new prompt template, a new release or a lost tier does this; "
            "latency follows.",
        )
        for where in ("device", "tier")
    ]


def _gate() -> list[Alert]:
    return [
        Alert(
            "KvbenchGateNoGo",
            "page",
            f'{gate_series.VERDICT}{{verdict="NO_GO"}} == 1',
            "0m",
            "gate {{ $labels.gate }}: the canary must not stay",
            "A rule is breached beyond doubt; the gate's /verdict says which, and which tier to switch off.",
        ),
        Alert(
            "KvbenchRollbackNotProven",
            "page",
            f'{gate_series.ROLLBACK}{{status=~"failed|unknown"}} == 1',
            "0m",
            "gate {{ $labels.gate }}: its hook was run, and {{ $labels.part }} is {{ $labels.status }}",
            "The tier may still be on, or TTFT not back; the gate's /verdict says what was seen and what was not.",
        ),
        Alert(
            "KvbenchGateBlind",
            "ticket",
            f"{gate_series.SCRAPE_AGE} > 120",
            "2m",
            "gate {{ $labels.gate }} sees nothing of its {{ $labels.selection }}",
            "No good answer for {{ $value | humanizeDuration }}: the verdict cannot be a pass.",
        ),
    ]
