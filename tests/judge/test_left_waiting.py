"""Users who leave before their first token: what is slow must not look fast because nobody waited for it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvbench.judge.case import build_case
from kvbench.judge.describe import latency_rows
from kvbench.judge.evidence import ArmRound, RoundPair
from kvbench.judge.hits import HITS_WORTH_IT
from kvbench.judge.judge import judge
from kvbench.judge.latency import RoundLatencies
from kvbench.judge.who_pays import who_pays
from kvbench.judge.within_round import within_round
from tests.judge.ask import evidence, guarded, guardrail, result_of
from tests.judge.build import arm_round, comparison, pair, request_rows, rules, ttfts
from tests.judge.change import leave

P90 = {"metric": "ttft", "quantile": 0.9, "max_ratio": 1.1}
N = 400


def held(recorded: ArmRound, share: float, after_s: float) -> ArmRound:
    """This share of the requests, evenly over the round, had no token when their users left."""
    every = round(1 / share)
    return replace(recorded, requests=leave(recorded.requests, slice(0, None, every), after_s))


def pairs(
    *, candidate: tuple[float, float] | None = None, baseline: tuple[float, float] | None = None, ratio: float = 1.0
) -> list[RoundPair]:
    """Three pairs with a TTFT of about 0.3 s; (share, seconds) of the users of an arm leave before a token."""
    found = []
    for index in (1, 2, 3):
        plain = pair(index, ratio=ratio, median=0.3, hits=0.5)
        sides = {
            name: held(getattr(plain, name), *left)
            for name, left in (("candidate", candidate), ("baseline", baseline))
            if left is not None
        }
        found.append(replace(plain, **sides))
    return found


class TestAGuardrail:
    def test_is_broken_by_those_that_nobody_waited_for(self) -> None:
        """A fifth is held for ever and all of their users leave after a second; the rest is as fast as ever."""
        found = guardrail(pairs(candidate=(0.2, 1.0)), P90)
        assert found.status == "fail"
        assert found.candidate == pytest.approx(1.0)
        assert found.text.endswith("counting whoever left before a first token in the candidate's favour")

    def test_is_not_safe_while_they_may_have_been_slow(self) -> None:
        """After 0.1 s nothing is known of a fifth of the answers."""
        run = comparison(pairs(candidate=(0.2, 0.1), ratio=0.5), rules(guardrails=[{"id": "r", **P90}]))
        found = guarded(run, "r")
        assert (found.status, found.decision_ci) == ("unknown", None)
        assert re.match(
            r"TTFT p90 lies between \d+ ms and 60 s in round 1 of tiered, because users left", found.text
        )
        assert judge(run).verdict == "INCONCLUSIVE"

    def test_is_safe_where_too_few_left_to_matter(self) -> None:
        plain, some = guardrail(pairs(), P90), guardrail(pairs(candidate=(0.01, 0.9)), P90)
        assert (plain.status, some.status) == ("pass", "pass")
        few = guardrail(pairs(candidate=(0.01, 0.1)), P90 | {"max_ratio": 1.2})
        assert few.status == "pass"
        assert few.text.endswith("counting whoever left before a first token against the candidate")

    def test_is_not_broken_because_the_baselines_users_left(self) -> None:
        """Its answers may have been as slow as the candidate's."""
        assert guardrail(pairs(ratio=2.0), P90).status == "fail"
        found = guardrail(pairs(baseline=(0.2, 0.1), ratio=2.0), P90)
        assert found.status == "unknown"
        assert "in round 1 of base, because" in found.text

    def test_on_a_budget_is_no_breach_before_they_waited_longer(self) -> None:
        budget = {"metric": "ttft", "quantile": 0.9, "max": 2.0}
        assert guardrail(pairs(), budget).status == "pass"
        assert guardrail(pairs(candidate=(0.2, 1.0)), budget).status == "unknown"
        assert guardrail(pairs(baseline=(0.2, 1.0)), budget).status == "pass", "the baseline is no part of it"
        slow = [held(pair(index).candidate, 0.2, 3.0 + 0.1 * index) for index in (1, 2, 3)]
        varied = [replace(each, candidate=side) for each, side in zip(pairs(), slow, strict=True)]
        assert guardrail(varied, budget).status == "fail"


def test_a_benefit_is_not_proven_by_leaving_out_the_slow_half() -> None:
    benefit = {"id": "fast", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.8}

    def status(**left: Any) -> str:
        run = comparison(pairs(ratio=0.6, **left), rules(guardrails=[], benefits=[benefit]))
        return result_of(judge(run), "fast").status

    assert status() == "pass"
    assert status(candidate=(0.5, 0.1)) == "unknown"
    assert status(baseline=(0.5, 0.1)) == "unknown"


def with_impatient_users(slower: float | np.ndarray) -> list[RoundPair]:
    """Three pairs with answers of about 0.4 s, the candidate's slower by this factor. The users of two thirds of
    the requests are gone after 0.6 s, the others stay."""
    leaves = np.arange(N) % 3 > 0
    found = []
    for index in (1, 2, 3):
        sides = []
        for name, factor in (("base", 1.0), ("tiered", slower * (1 + 0.005 * (index - 2)))):
            ttft = ttfts(N, 0.3, seed=index) * factor
            cached = np.where(np.arange(N) % 2, 900.0, 0.0) if name == "tiered" else 0.0
            requests, tokens = request_rows(ttft, gaps=ttft / 15, cached=cached, leaves=leaves)
            took_s = requests[["first_token_s", "last_token_s"]].sub(requests["intended_s"], axis=0)
            requests.loc[leaves & (took_s["last_token_s"] > 0.6), "status"] = "aborted"
            without = leaves & (took_s["first_token_s"] > 0.6)
            requests.loc[without, ["first_token_s", "last_token_s", "cached_tokens"]] = np.nan
            sides.append(arm_round(name, index, requests, tokens))
        found.append(RoundPair(index, *sides))
    return found


class TestBeyondTheFirstToken:
    """Users who had enough take the slow answers with them; of those who were to stay, both arms tell all."""

    @pytest.mark.parametrize("metric", ["e2e", "tpot", "itl"])
    def test_a_slower_arm_is_as_slow_as_it_is(self, metric: str) -> None:
        found = guardrail(with_impatient_users(2.0), {"metric": metric, "quantile": 0.5, "max_ratio": 1.8})
        assert found.status == "fail"
        assert found.effect == pytest.approx(2.0, rel=0.001)

    def test_a_rollback_rule_fires(self) -> None:
        rule = {"metric": "e2e", "quantile": 0.7, "max": 0.57, "sustained": {"window": 30, "for": 60}}
        assert guardrail(with_impatient_users(1.0), rule).status == "pass"
        assert guardrail(with_impatient_users(1.5), rule).status == "fail"

    def test_hits_of_which_the_slow_ones_are_not_waited_for_do_not_look_fast(self) -> None:
        """Given 40 % of the hits faster than computing and 60 % slower."""
        slower = np.where(np.arange(N) % 5 < 2, 0.7, 3.0)
        found = evidence(comparison(with_impatient_users(slower)), HITS_WORTH_IT)
        assert found.status == "fail"
        assert found.effect == pytest.approx(3.0, rel=0.01)


class TestTheRollbackRule:
    def status(self, budget: float, **left: Any) -> tuple[str, str]:
        written = {
            "metric": "ttft", "quantile": 0.9, "max": budget, "sustained": {"window": 10, "for": 40},
        }  # fmt: skip
        found = guardrail(pairs(**left), written)
        return found.status, found.text

    def test_fires_when_they_had_waited_longer_than_the_budget(self) -> None:
        assert self.status(2.0)[0] == "pass"
        assert self.status(2.0, candidate=(0.5, 2.5))[0] == "fail"

    def test_is_unknown_when_it_fires_only_if_they_would_have_waited_on(self) -> None:
        status, text = self.status(2.0, candidate=(0.5, 1.0))
        assert status == "unknown"
        assert text.endswith(
            ": fires if those who left before their first token would have waited on beyond the budget"
        )
        assert self.status(2.0, candidate=(0.05, 1.0))[0] == "pass", "too few either way"

    def test_concludes_nothing_where_the_baseline_may_fire_as_well(self) -> None:
        status, text = self.status(2.0, candidate=(0.5, 2.5), baseline=(0.5, 1.0))
        assert status == "unknown"
        assert "; the baseline does as well if those who left" in text


class TestDescriptions:
    """They do not say what is not known."""

    def test_of_a_quantile_that_those_who_left_would_tell(self) -> None:
        case = build_case(comparison(pairs(candidate=(0.2, 0.1))))
        rows = {row["arm"]: row for row in latency_rows(case) if row["metric"] == "ttft"}
        assert rows["base"]["p99"] is not None
        assert (rows["tiered"]["count"], rows["tiered"]["p99"]) == (3 * N, None)
        assert [change.metric for change in who_pays(case) if change.metric == "ttft"] == []

    def test_of_a_single_round(self) -> None:
        requests, tokens = request_rows(ttfts(N), classes=["a", "b"] * (N // 2))
        round_ = RoundLatencies(arm_round("base", 1, leave(requests, [0], 0.1), tokens), 60.0)
        assert within_round(round_, "ttft", "a", 0.9, confidence=0.95) is None
        assert within_round(round_, "ttft", "b", 0.9, confidence=0.95) is not None
        assert np.isnan(round_.waited("e2e")).all()
