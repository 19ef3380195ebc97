"""From which prefix length on loading KV beats computing it, by path. Tokens, bytes per second."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvbench.spec.emulation import Costs

__all__ = ["BreakEvenRow", "break_even_rows", "break_even_tokens"]

PCIE_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""One lane and direction, after line encoding (PCI-SIG)."""
LANES = (4, 8, 16)
COPIED_SHARE = 0.8
"""Of a link's rate that copies reach; packets and their headers take the rest."""
DISK_BYTES_PER_S = (1e9, 3e9, 7e9, 14e9)
"""SATA and network drives, and NVMe on PCIe 3, 4 and 5 x4."""
_HOST_PATH = 16 * PCIE_LANE_BYTES_PER_S[4] * COPIED_SHARE


@dataclass(frozen=True)
class BreakEvenRow:
    """One path."""

    tier: str
    path: str
    bytes_per_s: float
    tokens: int | None
    """None: loading never wins."""


def break_even_tokens(
    costs: Costs, token_bytes: float, bytes_per_s: float, *, base_s: float, unit: int = 1
) -> int | None:
    """The smallest prefix, in whole units, whose transfer takes no longer than computing it.

    Computing n tokens takes token × n + token_context × n² / 2, the transfer a base and n × bytes / rate.
    """
    curve = costs.token_context / 2
    gain = costs.token - token_bytes / bytes_per_s
    if curve > 0 and gain > 0:  # the usual form of the root would be the difference of two almost equal numbers
        root = 2 * base_s / (gain + math.sqrt(gain * gain + 4 * curve * base_s))
    elif curve > 0:
        root = (-gain + math.sqrt(gain * gain + 4 * curve * base_s)) / (2 * curve)
    elif gain > 0:
        root = base_s / gain
    else:
        return None
    return max(1, math.ceil(root / unit - 1e-9)) * unit


def break_even_rows(
    costs: Costs, token_bytes: float, *, block_tokens: int, longest: int | None, ranks: int = 1
) -> Iterator[BreakEvenRow]:
    """The usual paths; a length beyond `longest` counts as never.

    `token_bytes` are those of all `ranks` GPUs, each of which loads its share over a link of its own; the disk is
    one for all.
    """
    links = f"{ranks} × " if ranks > 1 else ""

    def row(tier: str, path: str, rate: float, base_s: float) -> BreakEvenRow:
        tokens = break_even_tokens(costs, token_bytes, rate, base_s=base_s, unit=block_tokens)
        beyond = tokens is not None and longest is not None and tokens > longest
        return BreakEvenRow(tier, path, rate, None if beyond else tokens)

    for generation, lane in PCIE_LANE_BYTES_PER_S.items():
        for lanes in LANES:
            rate = lane * lanes * COPIED_SHARE * ranks
            yield row("host", f"{links}PCIe {generation}.0 x{lanes}", rate, costs.transfer)
    for rate in DISK_BYTES_PER_S:
        both = 1 / (1 / rate + 1 / (_HOST_PATH * ranks))  # read into host memory, then copied
        base_s = costs.transfer + costs.disk_transfer + costs.lookup
        yield row("disk", f"{rate / 1e9:g} GB/s behind {links}PCIe 4.0 x16", both, base_s)
