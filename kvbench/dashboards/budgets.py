"""What alerts hold an engine to: latency budgets, the share that may be over them, where the disk tier lies.

Seconds and fractions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvbench.engine.emulated.counters import FIRST_TOKEN_S, GAP_S
from kvbench.errors import InputError
from kvbench.spec.quantity import show_seconds

__all__ = ["BURNS", "Budgets", "Burn"]


@dataclass(frozen=True)
class Burn:
    """Fires when both windows use up the budget `factor` times as fast as allowed."""

    severity: str
    factor: float
    long: str
    short: str


BURNS = (Burn("page", 14.4, "1h", "5m"), Burn("page", 6, "6h", "30m"), Burn("ticket", 1, "3d", "6h"))
"""2 % of a 30-day budget in an hour, 5 % in six, 10 % in three days: The Site Reliability Workbook, ch. 5."""


@dataclass(frozen=True)
class Budgets:
    """Defaults are those of the shipped rules where they have one. InputError for what no series could tell."""

    ttft_s: float = 2.5
    """An upper edge of vLLM's buckets: between edges Prometheus cannot count. The shipped rules say 2 s."""
    itl_s: float = 0.1
    share: float = 0.01
    """That may be over either: 1 % is a p99."""
    errors: float = 0.001
    disk_mount: str = "/mnt/kv_cache"

    def __post_init__(self) -> None:
        for name, field, value, edges in (
            ("--ttft", "ttft_s", self.ttft_s, FIRST_TOKEN_S),
            ("--itl", "itl_s", self.itl_s, GAP_S),
        ):
            edge = next((edge for edge in edges if math.isclose(edge, value, rel_tol=1e-9)), None)
            if edge is None:
                raise InputError(
                    f"{name} {show_seconds(value)} is no edge of the engine's buckets",
                    do="choose one of " + ", ".join(show_seconds(edge) for edge in edges),
                )
            object.__setattr__(self, field, edge)
        for name, share in (("--share", self.share), ("--errors", self.errors)):
            if not 0 < share * BURNS[0].factor < 1:
                raise InputError(
                    f"{name} {share:g} cannot be burnt {BURNS[0].factor:g} times as fast as allowed",
                    do=f"choose a share above 0 and below {1 / BURNS[0].factor:.1%}",
                )
        if not self.disk_mount.startswith("/") or any(sign in self.disk_mount for sign in '"\\\n'):
            raise InputError(f"--disk-mount {self.disk_mount!r} is no mount point", do="name it as df shows it")
