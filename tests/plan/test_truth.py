"""Every reference number of the trace library is reproduced, key by key."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvbench.plan.analysis import Question, analyse
from kvbench.plan.hierarchy import INCLUSIONS
from kvbench.workload.traces.reading import read_trace

pytestmark = pytest.mark.shared

TRACES = (
    "tiny_hand_checked.jsonl",
    "bailian_schema_fixture.jsonl",
    "gen_zipf_sessions_dev.jsonl",
    "lmcache_miniswe_ids.jsonl",
    "mooncake_synthetic_first_half.jsonl",
    "mooncake_conversation_0-30min.jsonl",
    "weka_agentic_overlay_dev.jsonl.gz",
)
ABOUT_THE_FILE = {"file", "block_size", "timestamp_unit", "sha256", "analyser_seconds"}


def differences(found: object, true: object, path: str = "") -> list[str]:
    """Where two documents differ; floats may differ by the rounding of a sum."""
    if isinstance(true, dict) and isinstance(found, dict):
        unequal = [f"{path}: keys {sorted(found.keys() ^ true.keys())}"] if found.keys() != true.keys() else []
        return unequal + [
            d for key in true if key in found for d in differences(found[key], true[key], f"{path}.{key}")
        ]
    if isinstance(true, list) and isinstance(found, list):
        unequal = [f"{path}: {len(found)} entries, not {len(true)}"] if len(found) != len(true) else []
        pairs = zip(found, true, strict=False)
        return unequal + [d for i, (f, t) in enumerate(pairs) for d in differences(f, t, f"{path}[{i}]")]
    if isinstance(true, float) and isinstance(found, int | float):
        return [] if math.isclose(found, true, rel_tol=1e-12, abs_tol=1e-12) else [f"{path}: {found} is not {true}"]
    return [] if found == true and type(found) is type(true) else [f"{path}: {found!r} is not {true!r}"]


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_has_its_reference_numbers(shared_dir: Path, name: str) -> None:
    trace = read_trace(shared_dir / "traces" / name)
    truth = json.loads(
        (shared_dir / "traces" / f"{name.removesuffix('.gz').removesuffix('.jsonl')}.truth.json").read_text()
    )
    found = analyse(trace, Question(inclusions=INCLUSIONS))
    assert found["block_size"] == truth["block_size"]
    for about in ABOUT_THE_FILE:
        truth.pop(about)
    assert differences({key: found[key] for key in truth}, truth) == []
