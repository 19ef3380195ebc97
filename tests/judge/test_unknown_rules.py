"""What makes a rule unknown, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvbench.judge.evidence import RoundPair
from tests.judge.ask import RATIO, about, exact_pairs, guarded, guardrail
from tests.judge.build import comparison, good_pairs, metric_rows, pair, request_rows, rules, ttfts
from tests.judge.change import (
    with_baseline,
    with_candidate,
)


class TestUnknown:
    def test_a_sample_that_cannot_carry_the_quantile(self) -> None:
        found = guardrail(good_pairs(n=71), {"metric": "ttft", "quantile": 0.99, "max_ratio": 1.2})
        assert found.status == "unknown"
        assert found.text == (
            "TTFT p99 needs 300 requests a round, round 1 of tiered has 71; they carry a quantile of at most 0.95"
        )
        assert about(found) == ("r", "guardrail", "ttft", 0.99, "all", "s", 1.2)

    def test_too_few_to_carry_anything(self) -> None:
        assert (
            "they carry no quantile"
            in guardrail(good_pairs(n=5), {"metric": "ttft", "quantile": 0.5, "max": 1}).text
        )

    def test_for_itl_requests_count_not_gaps(self) -> None:
        rule = {"metric": "itl", "quantile": 0.99, "max_ratio": 1.2}
        assert guardrail(good_pairs(n=299), rule).status == "unknown"
        assert guardrail(good_pairs(n=300), rule).status == "pass"

    def test_one_round_that_is_too_small_is_enough(self) -> None:
        pairs = good_pairs(n=300)
        pairs[2] = pair(3, ratio=0.3, n=299)
        found = guardrail(pairs, {"metric": "ttft", "quantile": 0.99, "max_ratio": 1.2})
        assert "round 3 of tiered has 299" in found.text

    def test_a_class_that_nobody_sent(self) -> None:
        found = guardrail(good_pairs(), RATIO | {"class": "none"})
        assert about(found) == ("r", "guardrail", "ttft", 0.5, "none", "s", 1.2)
        assert found.text == "TTFT p50 of class none has no request in round 1"

    def test_a_single_round(self) -> None:
        found = guardrail(good_pairs(1), RATIO, rounds=(1, 1))
        assert (found.status, found.ci, found.decision_ci) == ("unknown", None, None)
        assert found.text.endswith("1 independent round cannot decide it yet")

    def test_rounds_that_agree_to_the_last_digit(self) -> None:
        found = guardrail(exact_pairs((1.0, 1.0, 1.0)), RATIO)
        assert found.status == "unknown"
        assert "agree to the last digit" in found.text
        assert found.effect == 1.0

    def test_a_scaled_copy_of_the_baseline_was_not_measured(self) -> None:
        assert guardrail(exact_pairs((0.5, 0.5, 0.5)), RATIO).status == "unknown"

    def test_times_that_are_no_numbers_are_not_a_pass(self) -> None:
        pairs = with_candidate(
            good_pairs(), 1, requests=good_pairs()[1].candidate.requests.assign(intended_s=np.nan)
        )
        found = guardrail(pairs, RATIO)
        assert found.status != "pass"

    @pytest.mark.parametrize("change", [with_baseline, with_candidate], ids=["base", "tiered"])
    def test_a_gauge_that_is_no_number_has_no_ratio(self, change: Callable[..., list[RoundPair]]) -> None:
        pairs = good_pairs()
        for place in range(3):
            busy = metric_rows({("kv_cache_usage", None): [0.5, 0.5 + 0.01 * place]}, [20.0, 30.0])
            pairs = with_candidate(with_baseline(pairs, place, metrics=busy), place, metrics=busy)
        rule = {"metric": "kv_cache_usage", "max_ratio": 1.2}
        for value in (math.inf, math.nan):
            odd = metric_rows({("kv_cache_usage", None): [0.5, value]}, [20.0, 30.0])
            found = guardrail(change(pairs, 1, metrics=odd), rule)
            assert found.status == "unknown"
            assert found.text.startswith("kv cache usage is not a number in round 2")
        odd = metric_rows({("kv_cache_usage", None): [0.5, math.inf]}, [20.0, 30.0])
        budget = guardrail(with_baseline(pairs, 1, metrics=odd), {"metric": "kv_cache_usage", "max": 0.9})
        assert (budget.status, budget.baseline) == ("pass", None), "the baseline is no part of a budget"

    def test_a_zero_gap_has_no_ratio(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            requests, tokens = request_rows(ttfts(400, seed=place), gaps=0.0)
            pairs = with_candidate(pairs, place, requests=requests, tokens=tokens)
        found = guardrail(pairs, {"metric": "itl", "quantile": 0.5, "max_ratio": 1.2})
        assert "not above zero in round 1" in found.text
        budget = guardrail(pairs, {"metric": "itl", "quantile": 0.5, "max": 1.0})
        assert budget.text == "ITL p50 is zero in a round: take a higher quantile"

    def test_no_complete_pair(self) -> None:
        pairs = [replace(p, candidate=replace(p.candidate, complete=False)) for p in good_pairs()]
        for rule in (RATIO, {"metric": "error_rate", "max": 0.02}):
            assert guardrail(pairs, rule).status == "unknown"

    def test_only_complete_pairs_are_used(self) -> None:
        pairs = with_candidate(exact_pairs((1.0, 1.05, 1.02, 9.0)), 3, complete=False)
        assert len(guardrail(pairs, RATIO).windows) == 3


class TestARuleThatSaysNothing:
    """Loading refuses such rules; reached some other way, they are unknown and never a pass."""

    @pytest.mark.parametrize(
        ("rule", "missing", "words"),
        [
            (RATIO, "max_ratio", "has no limit to be held against"),
            ({"metric": "error_rate", "max": 0.1}, "max", "has no limit to be held against"),
            (RATIO, "quantile", "needs a quantile"),
            ({"metric": "source_share", "source": "disk", "min": 0.1}, "source", "needs a `source`"),
            (
                {"metric": "ttft", "quantile": 0.5, "max": 2.0, "sustained": {"window": 10, "for": 40}},
                "max",
                "as a sustained rule needs a latency, a quantile and `max`",
            ),
        ],
    )
    def test_is_unknown(self, rule: dict[str, Any], missing: str, words: str) -> None:
        whole = rules(guardrails=[{"id": "r", **rule}])
        broken = whole.guardrails[0].model_copy(update={missing: None})
        run = comparison(good_pairs(), whole.model_copy(update={"guardrails": [broken]}))
        found = guarded(run, "r")
        assert (found.status, found.kind) == ("unknown", "guardrail")
        assert found.text.endswith(words)
