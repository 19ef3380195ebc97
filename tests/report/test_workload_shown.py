"""How a report tells what load was offered, and what its figures cannot say."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from kvbench.report.achieved import achieved
from kvbench.report.data import ReportData
from kvbench.report.series import itl_sample, ttft_dots, ttft_sample
from kvbench.report.view import view
from kvbench.spec.workload import Workload
from tests.report.build import WORKLOAD
from tests.report.rounds import one_round


def offered(go: ReportData, **changes: object) -> tuple[dict[str, str], tuple[str, ...]]:
    spec = WORKLOAD.model_dump(by_alias=True, exclude_none=True) | changes
    shown = view(replace(go, workload=Workload.model_validate(spec)))
    return {figure.label: figure.value for figure in shown.workload}, shown.warnings


def test_a_closed_loop_is_marked_as_one_that_says_nothing_about_an_arrival_rate(go: ReportData) -> None:
    figures, warnings = offered(go, arrivals={"process": "closed", "closed": {"concurrency": 8}})
    assert figures["arrivals"].startswith("closed loop, 8 at once: ")
    assert "say nothing about an arrival rate" in figures["arrivals"]
    (note,) = [warning for warning in warnings if warning.startswith("Closed loop: ")]
    assert "depends on the server and on the number of workers" in note
    assert not any("losed loop" in warning for warning in offered(go)[1])


def test_rates_are_told_in_words(go: ReportData) -> None:
    figures, _ = offered(
        go,
        arrivals={"process": "gamma", "gamma": {"cv": 2}, "rate": {"burst": {"size": 20, "every": "30s"}}},
        phases=[
            {"name": "warm", "for": "5s", "measured": False, "rate": "2/s"},
            {"name": "steady", "for": "40s"},
            {"name": "ramp", "for": "5s", "rate": {"to": "9/s"}},
        ],
    )
    assert figures["arrivals"] == "gamma, 20 at once every 30 s"
    assert figures["phases"] == "warm 5 s (2/s; not measured), steady 40 s, ramp 5 s (to 9/s)"


def test_what_waited_for_an_answer_is_told_among_the_figures_of_the_instrument(go: ReportData) -> None:
    told = go.verdict.instrument.model_copy(update={"followed_requests": 312, "followed_send_lag_p99_s": 0.0021})
    verdict = go.verdict.model_copy(update={"instrument": told, "candidates": None})
    figures = {figure.label: figure.value for figure in view(replace(go, verdict=verdict)).candidates[0].instrument}
    assert figures["sent after an answer"] == "312 requests, p99 2.1 ms after its end and think time"
    plain = view(go).candidates[0].instrument
    assert "sent after an answer" not in {figure.label for figure in plain}


def test_answers_that_users_left_are_no_failures_and_count_in_ttft() -> None:
    tables = one_round("baseline", 1)
    requests: pd.DataFrame = tables.requests.copy()
    good = requests[requests["measured"] & (requests["status"] == "ok") & (requests["class"] == "long")]
    with_token, without = good.index[0], good.index[1]
    requests.loc[[with_token, without], "status"] = "aborted"
    requests.loc[without, ["first_token_s", "last_token_s"]] = None
    left = replace(tables, requests=requests)
    before, after = ttft_sample(tables.requests, "long"), ttft_sample(requests, "long")
    assert (len(after.values), after.failed, after.left) == (len(before.values) - 1, before.failed, 1)
    assert len(after) == len(before), "an answer that nobody waited for is not one that came in time"
    before, after = itl_sample(tables), itl_sample(left)
    assert (len(after.values), after.failed) == (len(before.values) - 2 * 15, before.failed)
    assert sum(map(len, ttft_dots([left]).values())) == sum(map(len, ttft_dots([tables]).values())) - 1
    impatient = replace(tables, requests=tables.requests.assign(leaves=tables.requests["id"] == good.iloc[2]["id"]))
    assert len(itl_sample(impatient).values) == len(before.values) - 15, "had it been slower, it would not be there"
    failed = [{row.class_: row.failed for row in achieved("baseline", [one])} for one in (tables, left)]
    assert failed[0] == failed[1]
