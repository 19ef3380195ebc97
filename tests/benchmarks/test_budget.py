"""The benchmark of judging looks at rounds as runs leave them, and budgets can be missed."""

from __future__ import annotations

import sys

import pytest

from kvbench.judge.judge import judge
from tests.benchmarks import bench_exposition, bench_judge


def test_its_rounds_have_a_ledger_so_what_hits_were_worth_is_worked_out() -> None:
    verdict = judge(bench_judge.comparison(4500, 3))
    assert verdict.verdict == "GO", verdict.reasons
    assert verdict.hits is not None
    costs = {cost.source: cost.per_token_s for cost in verdict.hits.costs}
    assert costs["computed"] == pytest.approx(bench_judge.PER_TOKEN_S["computed"], rel=0.2)
    assert {row.tier for row in verdict.hits.worth} == {"host", "disk"}


@pytest.mark.parametrize("budget", ["BUDGET_S", "BUDGET_MB"])
def test_more_than_the_budget_is_exit_status_1(
    budget: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_judge", "600", "3"])
    for name in ("BUDGET_S", "BUDGET_MB"):
        monkeypatch.setattr(bench_judge, name, 1e6)
    bench_judge.main()
    assert "600 requests x 2 arms in 3 rounds" in capsys.readouterr().out
    monkeypatch.setattr(bench_judge, budget, 0.0)
    with pytest.raises(SystemExit) as ended:
        bench_judge.main()
    assert ended.value.code not in (0, None)


def test_an_exposition_that_takes_too_long_to_read_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_exposition", "0.1"])
    monkeypatch.setattr(bench_exposition, "REPEATS", 1)
    monkeypatch.setattr(bench_exposition, "BUDGET_MS", 1e6)
    bench_exposition.main()
    assert "samples of every family" in capsys.readouterr().out
    monkeypatch.setattr(bench_exposition, "BUDGET_MS", 0.0)
    with pytest.raises(SystemExit, match="BEYOND THE BUDGET"):
        bench_exposition.main()
