"""The same schedule on the emulated engine and on the embedded vLLM: shares of tokens by source."""

from __future__ import annotations

import pytest

from kvbench.engine.environment import EngineEnvironment
from tests.proofs.emulated_sources import TOLERATED_POINTS, compare_sources


@pytest.mark.engine
def test_tokens_come_from_the_tiers_that_they_come_from_on_the_embedded_engine(
    engine_env: EngineEnvironment,
) -> None:
    """Given documents beyond device and host, when both engines play one schedule, then no source's share differs
    by more than two percentage points, and the ledger of the embedded engine's requests says what it counted."""
    assert engine_env.name == "vllm-cpu"
    real, ledger, emulated = compare_sources(short=True)
    assert real["disk"] > 5, "the disk tier was used"
    assert real["host"] > 5, "so was the host tier"
    assert max(abs(real[source] - emulated[source]) for source in real) <= TOLERATED_POINTS, (real, emulated)
    assert max(abs(real[source] - ledger[source]) for source in real) <= TOLERATED_POINTS, (real, ledger)
