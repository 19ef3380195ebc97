"""The proof of false and missed rollbacks (`tests.proofs.gate_watches`) ends with what it found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.proofs.gate_watches import CELLS, Cell, Counted, against, main

FOUND = Counted(watches=500, fired=0, soon=0, segments=0, either=0, requests=0)
FEW, MANY = Cell(0.2, 0.25, judged=True), Cell(10.0, 0.25, judged=True)


@pytest.mark.parametrize(
    ("cell", "found", "fault"),
    [
        (FEW, replace(FOUND, either=5), None),
        (FEW, replace(FOUND, either=6), "1.2 % called for rollback"),
        (MANY, replace(FOUND, fired=500, either=500, soon=475), None),
        (MANY, replace(FOUND, fired=500, either=500, soon=474), "94.8 % called for it within 5 min"),
        (Cell(10.0, 0.5, judged=False), FOUND, None),
    ],
)
def test_a_judged_cell_is_held_to_its_limits(cell: Cell, found: Counted, fault: str | None) -> None:
    said = against(cell, found)
    assert (said is None) == (fault is None)
    assert said is None or fault is None or said.startswith(fault)


def test_every_cell_that_is_asked_for_is_there_and_two_are_judged() -> None:
    assert {(cell.times, cell.drift) for cell in CELLS} >= {
        (times, drift) for times in (0.2, 0.5, 2.0, 10.0) for drift in (0.25, 0.5)
    }
    assert [(cell.times, cell.drift) for cell in CELLS if cell.judged] == [(0.2, 0.25), (10.0, 0.25)]


def test_the_exit_code_says_whether_they_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["3", "0", "4", "5"]) == 0
    assert capsys.readouterr().out.count("judged: as it must be") == 2
    monkeypatch.setattr("tests.proofs.gate_watches.rollback_at", lambda *_: None)
    assert main(["1", "4"]) == 1
    assert "at least 95% must" in capsys.readouterr().out
