"""Rules that could only be ignored, in part or as a whole, are refused where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.spec.loading import load_rules
from kvbench.spec.support import check_supported

CASES = [
    ("guardrails", "metric: output_parity, min: 0.99", "min", "use max"),
    ("guardrails", "metric: output_parity, max_ratio: 1.1", "max_ratio", "use max"),
    ("guardrails", "metric: output_parity, max: 1%, min_ratio: 0.9", "min_ratio", "use max"),
    (
        "guardrails",
        "metric: ttft, quantile: 0.99, max: 2s, max_ratio: 1.1, sustained: {window: 30s, for: 120s}",
        "max_ratio",
        "give the ratio a rule of its own",
    ),
    ("benefits", "metric: output_parity, max_ratio: 0.9", "metric", "no benefit by itself"),
    ("evidence", "metric: promoted_tokens, source: computed, min: 1", "source", "promoted from computed"),
    ("evidence", "metric: promoted_tokens, source: device, min: 1", "source", "use host or disk"),
    ("guardrails", "metric: promoted_tokens, source: device, min: 1", "source", "or metric: source_share"),
    ("benefits", "metric: promoted_tokens, min_ratio: 2", "metric", "no benefit by itself"),
    ("benefits", "metric: source_share, source: host, min_ratio: 2", "metric", "no benefit by itself"),
    ("benefits", "metric: prefix_cache_hits, min_ratio: 2", "metric", "no benefit by itself"),
    ("benefits", "metric: host_load_chunks, min_ratio: 2", "metric", "no benefit by itself"),
]


@pytest.mark.parametrize(("part", "rule", "key", "words"), CASES, ids=[rule for _, rule, _, _ in CASES])
def test_names_the_key_and_says_what_would_be_meant(
    tmp_path: Path, part: str, rule: str, key: str, words: str
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"{part}:\n  - {{id: a, {rule}}}\n")
    with pytest.raises(InputError, match=words) as caught:
        load_rules(file)
    assert f"{file}:2: {part}[0].{key}: " in str(caught.value)


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ("guardrails", "metric: preemptions, max: 10"),
        ("guardrails", "metric: engine_queue_time, max_ratio: 1.2"),
        ("guardrails", "metric: kv_cache_usage, max: 95%"),
        ("benefits", "metric: engine_ttft, max_ratio: 0.8"),
        ("evidence", "metric: disk_chunk_hits, min: 1"),
    ],
)
def test_a_rule_on_what_the_engine_tells_is_carried_out(tmp_path: Path, part: str, rule: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"{part}:\n  - {{id: a, {rule}}}\n")
    check_supported(load_rules(file))
