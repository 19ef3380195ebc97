"""Requests that fill the tiers and fail: the round did not begin as planned, and no figure of it counts."""

from __future__ import annotations

import pytest

from kvbench.judge.evidence import RoundPair
from kvbench.judge.findings import FindingKind
from kvbench.judge.judge import judge
from kvbench.judge.validity import check_validity
from tests.judge.ask import kinds, result_of
from tests.judge.build import comparison, good_pairs, rules
from tests.judge.change import died, fail, primed, with_baseline, with_candidate

PLACE = 1
ERRORS = rules(guardrails=[{"id": "errors", "metric": "error_rate", "max": "5%"}])


def both_primed(*, baseline: int = 0, candidate: int = 0, later: int = 0, **more: str) -> list[RoundPair]:
    """So many of eight failed, and so many of the candidate's measured ones."""
    pairs = good_pairs()
    pairs = with_baseline(pairs, PLACE, requests=primed(pairs[PLACE].baseline, failed=baseline, **more))
    filled = primed(pairs[PLACE].candidate, failed=candidate, **more)
    return with_candidate(pairs, PLACE, requests=fail(filled, slice(8, 8 + later)))


def test_tiers_that_were_filled_are_no_finding() -> None:
    assert kinds(comparison(both_primed())) == set()
    assert judge(comparison(both_primed())).verdict == "GO"


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_one_arm_that_began_half_cold_decides_nothing(arm: str) -> None:
    verdict = judge(comparison(both_primed(**{arm: 4})))
    assert verdict.verdict == "INVALID"
    assert result_of(verdict, "not-primed").status == "fail"
    assert "4 of 8 requests that fill the tiers failed" in verdict.reasons[0]


def test_both_arms_that_began_half_cold_decide_nothing_either() -> None:
    run = comparison(both_primed(baseline=4, candidate=4))
    assert [finding.arm for finding in check_validity(run).findings] == ["base", "tiered"]


def test_a_candidate_that_fails_requests_all_the_time_is_judged_by_its_errors() -> None:
    """Given failures before and after time zero, then the tier is refused, and what it began with is said."""
    run = comparison(both_primed(candidate=2, later=200), ERRORS)
    verdict = judge(run)
    assert (verdict.verdict, verdict.action is not None) == ("NO_GO", True)
    told = result_of(verdict, "not-primed")
    assert told.status == "unknown"
    assert "2 of 8 requests that fill the tiers failed" in told.text
    assert "200 of 400 measured requests as well: that is judged by the errors" in told.text


def test_errors_that_no_rule_counts_excuse_nothing() -> None:
    assert kinds(comparison(both_primed(candidate=2, later=200))) == {FindingKind.PRIMING}


def test_a_few_later_failures_do_not_excuse_many_before() -> None:
    assert kinds(comparison(both_primed(candidate=4, later=3), ERRORS)) == {FindingKind.PRIMING}


def test_a_baseline_is_not_excused_by_its_errors() -> None:
    pairs = good_pairs()
    requests = fail(primed(pairs[PLACE].baseline, failed=2), slice(8, 208))
    assert FindingKind.PRIMING in kinds(comparison(with_baseline(pairs, PLACE, requests=requests), ERRORS))


def test_what_a_dying_engine_did_to_them_is_its_own_fault() -> None:
    pairs = with_candidate(both_primed(candidate=8), PLACE, events=(died(),), complete=False)
    assert kinds(comparison(pairs)) == set()
    assert judge(comparison(pairs)).verdict == "NO_GO"


@pytest.mark.parametrize(
    "error", ["short_output: 0 of 1 tokens, finish_reason stop", "client_limit: Too many open files"]
)
def test_a_short_answer_has_filled_its_place_and_a_lack_of_sockets_is_the_clients(error: str) -> None:
    """A candidate's short answers are instability, and never a reason for INVALID."""
    assert FindingKind.PRIMING not in kinds(comparison(both_primed(candidate=4, error=error)))
