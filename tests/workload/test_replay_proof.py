"""The proof of replays holds only where every request of a trace went out, and gives sessions the time for it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kvbench.record.atomic import write_table
from kvbench.record.tables import REQUESTS
from tests.judge.build import request_rows
from tests.load.play import request, schedule
from tests.proofs import replay


def test_a_turn_that_never_came_is_not_among_those_that_were_sent(tmp_path: Path) -> None:
    rows, _ = request_rows([0.1, 0.1, 0.1])
    rows.loc[2, ["sent_s", "first_token_s", "last_token_s", "ended_s"]] = None
    rows.loc[2, "status"] = "unsent"
    write_table(tmp_path / "requests.parquet", pa.Table.from_pandas(rows, schema=REQUESTS, preserve_index=False))
    assert replay.sent_ids(tmp_path / "requests.parquet") == {0, 1}


@pytest.mark.parametrize(("unsent", "failed", "holds"), [(0, 0, True), (200, 0, False), (0, 1, False)])
def test_shares_that_agree_for_a_third_of_the_trace_prove_nothing(
    unsent: int, failed: int, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {"device": 10, "host": 20, "disk": 30, "computed": 40}
    outcome = replay.Played(sources, {name: float(tokens) for name, tokens in sources.items()}, failed, unsent)
    monkeypatch.setattr(replay, "planned", lambda *_: replay.Plan({}, 900.0, 10.0))
    monkeypatch.setattr(replay, "played", lambda *_: outcome)
    assert replay.holds(Path("trace.jsonl"), None) is holds


def test_the_last_answer_of_a_session_comes_after_all_those_before_it() -> None:
    """Given turns at 5 s, 10 s after that and 20 s after that, each of 100 tokens."""
    turns = [
        request(0, 5.0, output_tokens=100),
        request(1, None, continues=0, think_s=10.0, output_tokens=100),
        request(2, None, continues=1, think_s=20.0, output_tokens=100),
        request(3, 6.0, output_tokens=100),
    ]
    each_s = replay.REQUEST_S + 100 * replay.TOKEN_S
    assert replay.last_end_s(schedule(*turns)) == pytest.approx(35.0 + 3 * each_s)
