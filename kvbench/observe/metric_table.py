"""The table: every family of every engine that has a canonical name, and every family that is looked at."""

from __future__ import annotations

from kvbench.observe.kvbench_names import KVBENCH, TIER_TOKENS
from kvbench.observe.lmcache_names import LMCACHE
from kvbench.observe.trtllm_names import OTHER_FAMILIES as OTHER_OF_TRTLLM
from kvbench.observe.trtllm_names import TRTLLM
from kvbench.observe.vllm_names import OTHER_FAMILIES as OTHER_OF_VLLM
from kvbench.observe.vllm_names import VLLM

__all__ = ["BY_FAMILY", "FAMILIES", "MAPPINGS", "PROCESS_START"]

PROCESS_START = "process_start_time_seconds"
"""Of the client library: Unix seconds; not told by servers of several processes."""

MAPPINGS = (*VLLM, *TRTLLM, *LMCACHE, *KVBENCH)

BY_FAMILY = {family: tuple(m for m in MAPPINGS if m.family == family) for family in {m.family for m in MAPPINGS}}

FAMILIES = frozenset({PROCESS_START, TIER_TOKENS, *OTHER_OF_VLLM, *OTHER_OF_TRTLLM, *(m.family for m in MAPPINGS)})
"""Every family that anything here looks at."""
