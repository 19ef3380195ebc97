"""Canary text of another tenant: exact, one is enough, and it ends the run at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvbench.judge.evidence import Comparison, RoundPair
from kvbench.judge.judge import decided, judge
from kvbench.judge.validity import spoiled
from kvbench.spec.rules import Rules
from tests.judge.ask import guarded, kinds, result_of
from tests.judge.build import COPY, comparison, good_pairs, host_rows, rules, same_pairs, workload
from tests.judge.change import Edit, edited, with_baseline, with_candidate

WITH = workload(canaries={"tenants": 4})


def answers(leaks: dict[int, int] | None = None, unknown: slice | None = None) -> Edit:
    """Every request is of a tenant and was looked through; `leaks` are places with the tenant that came out."""

    def edit(table: pd.DataFrame) -> None:
        table["tenant"] = np.arange(len(table)) % 4
        found = np.full(len(table), -1.0)
        for place, owner in (leaks or {}).items():
            found[place] = owner
        if unknown is not None:
            found[unknown] = np.nan
        table["foreign_canary"] = found

    return edit


def run(
    candidate: Edit | None = None,
    baseline: Edit | None = None,
    *,
    pairs: list[RoundPair] | None = None,
    **more: Any,
) -> Comparison:
    """The last round of an arm is edited as given; everything else was looked through and is clean."""
    looked = pairs or good_pairs()
    for place in range(len(looked)):
        last = place == len(looked) - 1
        for change, side, edit in (
            (with_candidate, "candidate", candidate),
            (with_baseline, "baseline", baseline),
        ):
            chosen = edit if edit is not None and last else answers()
            looked = change(looked, place, requests=edited(getattr(looked[place], side), chosen).requests)
    return comparison(looked, **{"workload": WITH, **more})


def test_one_leak_of_the_candidate_is_a_no_go_that_says_where() -> None:
    verdict = judge(run(answers({7: 1})))
    assert (verdict.verdict, verdict.exit_code) == ("NO_GO", 1)
    assert verdict.reasons[0] == (
        "1 of 1,200 answers of tiered has text of another tenant in it: request 7 of tenant 3 in round 3 was told "
        "that of tenant 1"
    )
    assert verdict.action is not None
    assert verdict.action.disable_tier == "disk"
    found = result_of(verdict, "canaries")
    assert (found.kind, found.status) == ("guardrail", "fail")


def test_it_needs_no_number_of_rounds_and_ends_the_run() -> None:
    verdict = judge(run(answers({7: 1, 9: 0}), pairs=good_pairs(1)))
    assert verdict.verdict == "NO_GO"
    assert verdict.reasons[0].startswith("2 of 400 answers of tiered have text")
    assert decided(verdict, rules())


def test_no_level_is_shared_with_it() -> None:
    """Given other guardrails, then whether canaries are looked for changes nothing about theirs."""
    other = {"id": "r", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.1}
    strict = rules(guardrails=[other])
    assert guarded(run(the_rules=strict), "r") == guarded(comparison(good_pairs(), strict), "r")


def test_an_engine_that_leaks_nothing_passes() -> None:
    verdict = judge(run())
    assert verdict.verdict == "GO"
    found = result_of(verdict, "canaries")
    assert (found.status, found.text) == ("pass", "no text of another tenant in 1,200 answers of tiered")


def test_answers_of_every_phase_and_also_failed_ones_count() -> None:
    def warm(table: pd.DataFrame) -> None:
        answers({7: 1})(table)
        table.loc[7, ["measured", "phase"]] = [False, "warm"]

    assert guarded(run(warm), "canaries").status == "fail"


def test_what_could_not_be_looked_through_is_no_pass() -> None:
    nothing = answers(unknown=slice(None))
    blind = comparison(
        [with_candidate([pair], 0, requests=edited(pair.candidate, nothing).requests)[0] for pair in good_pairs()],
        workload=WITH,
    )
    verdict = judge(blind)
    assert verdict.verdict == "INCONCLUSIVE"
    assert result_of(verdict, "canaries").text == (
        "no answer of tiered could be looked through for text of other tenants"
    )
    some = guarded(run(answers(unknown=slice(0, 100))), "canaries")
    assert (some.status, some.text) == ("pass", "no text of another tenant in 1,100 answers of tiered")


def test_rounds_of_an_older_version_have_no_such_column() -> None:
    verdict = judge(comparison(good_pairs(), workload=WITH))
    assert result_of(verdict, "canaries").status == "unknown"


def test_a_baseline_that_leaks_is_no_yardstick() -> None:
    alone = guarded(run(baseline=answers({7: 1})), "canaries")
    assert alone.status == "unknown"
    assert alone.text == (
        "no text of another tenant in 1,200 answers of tiered, but the baseline leaked in 1 of 1,200 answers: "
        "request 7 of tenant 3 in round 3 was told that of tenant 1"
    )
    both = guarded(run(answers({7: 1}), answers({8: 1, 9: 2})), "canaries")
    assert both.status == "fail"
    assert both.text.endswith("; so have 2 of 1,200 of the baseline")


def test_an_invalid_measurement_stays_invalid() -> None:
    leaking = run(answers({7: 1}), arm_differences=("model",))
    assert judge(leaking).verdict == "INVALID"
    assert result_of(judge(leaking), "canaries").status == "fail"


def test_a_pair_in_which_text_leaked_is_not_repeated_because_the_host_was_busy() -> None:
    """A repeat could hide it."""
    busy = with_candidate(list(run(answers({7: 1})).pairs), 2, host=host_rows(foreign=3.0))
    assert spoiled(busy[2], rules(), WITH) == []
    clean = with_candidate(list(run().pairs), 2, host=host_rows(foreign=3.0))
    assert [finding.kind.value for finding in spoiled(clean[2], rules(), WITH)] == ["host-contention"]


def test_a_workload_without_canaries_has_no_such_rule() -> None:
    verdict = judge(comparison(good_pairs()))
    assert "canaries" not in {rule.rule for rule in verdict.rules}
    short = comparison(good_pairs(2))
    assert {kind.value for kind in kinds(short)} == {"rounds-missing"}


def test_an_arm_against_itself_may_leak_and_then_no_tier_is_to_be_disabled() -> None:
    itself = replace(run(answers({7: 1}), pairs=same_pairs()), candidate=COPY)
    verdict = judge(itself)
    assert (verdict.verdict, verdict.action) == ("NO_GO", None)


def test_its_name_is_taken() -> None:
    with pytest.raises(ValueError, match="canaries is the guardrail of every workload with canaries"):
        Rules.model_validate({"guardrails": [{"id": "canaries", "metric": "error_rate", "max": 0.1}]})
