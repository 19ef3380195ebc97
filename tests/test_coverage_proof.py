"""The proof of coverage (`tests.proofs.coverage`) counts the lines that tests run, and fails when they are few."""

from __future__ import annotations

import pytest

from tests.proofs import coverage


def test_too_few_lines_and_failing_tests_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coverage, "TESTS", {"spec": ("tests/spec/test_quantity.py",)})
    assert coverage.main(["spec", "--workers", "0"]) == 1
    told = capsys.readouterr().out
    assert "kvbench/spec/profile.py" in told, "where lines are missing"
    assert "FAILS  spec/: " in told
    assert "every test passes" in told

    found = coverage.measure("spec", ["tests/spec/test_quantity.py"], 0)
    assert found.passed
    assert 0 < found.percent < coverage.FLOOR
    monkeypatch.setattr(coverage, "FLOOR", found.percent)
    assert coverage.main(["spec", "--workers", "0"]) == 0
    assert capsys.readouterr().out.startswith("holds  spec/: ")

    assert not coverage.measure("spec", ["tests/spec/there_is_no_such_file.py"], 0).holds
