"""Virtual time: what strikes an engine meets requests under way, users who leave and the client's patience."""

from __future__ import annotations

import pandas as pd
import pytest

from kvbench.engine.emulated.virtual import SimulatedRound, simulate
from kvbench.judge.evidence import EngineEvent
from tests.engine.emulated.build import a_profile, a_schedule

TIERED = {"blocks": 80, "host_blocks": 100, "disk": True}
PRIMED = 6


def played(inject: dict | None = None, **changes: object) -> SimulatedRound:
    return simulate(a_schedule(**changes), a_profile(**TIERED, inject=inject))


def requests_of(result: SimulatedRound) -> pd.DataFrame:
    """Those of the round itself, and how long each took its client."""
    frame = result.requests.to_pandas()
    frame = frame[frame["phase"] != "prime"]
    return frame.assign(took_s=frame["ended_s"] - frame["sent_s"], ttft_s=frame["first_token_s"] - frame["sent_s"])


def leaving(after: float) -> dict:
    """A class half of whose users leave in the middle of the prefill."""
    return {
        "long": {
            "prefix": {"tokens": 512, "pool": 6, "popularity": "uniform"},
            "suffix_tokens": 32,
            "output_tokens": 8,
            "abort": {"share": 0.5, "after": after},
        }
    }


@pytest.mark.parametrize("fault", [{"restart": {"down": 1.0}}, {"death": {}}], ids=["restart", "death"])
def test_users_who_leave_during_a_step_and_a_restart_or_a_death_go_together(fault: dict) -> None:
    """Given steps in which users have left, when the engine goes in their middle, then the round ends with it."""
    ((kind, settings),) = fault.items()
    for after in range(PRIMED + 10, PRIMED + 30):
        result = played(
            {kind: {"after": after, **settings}},
            classes=leaving(0.03),
            arrivals={"process": "poisson", "rate": 20.0},
        )
        assert [event.kind for event in result.events] == ["restarted" if kind == "restart" else "died"]
        statuses = requests_of(result)["status"]
        assert {"aborted", "error"} <= set(statuses)
        assert set(requests_of(result)["leaves"][statuses == "aborted"]) == {True}
        assert 0.2 < requests_of(result)["leaves"].mean() < 0.8


def test_a_restart_breaks_every_connection_also_of_requests_that_are_still_handled() -> None:
    """Given requests that take a second to reach the scheduler, then those under way when it restarts are lost."""
    arm = a_profile(**TIERED, inject={"restart": {"after": PRIMED + 20, "down": 0.0}})
    costs = arm.engine.emulation.costs.model_copy(update={"request": 1.0})
    slow = arm.engine.emulation.model_copy(update={"costs": costs})
    table = requests_of(simulate(a_schedule(), arm, emulation=slow))
    at_s = table["sent_s"].iloc[20]
    under_way = table[(table["sent_s"] <= at_s) & (table["ended_s"] >= at_s)]
    assert len(under_way) > 3
    assert set(under_way["status"]) == {"error"}
    assert under_way["ended_s"].to_numpy() == pytest.approx(at_s)


def test_an_answer_held_beyond_the_time_out_is_a_time_out() -> None:
    """As over HTTP: the client has given up before its first token comes, so it is an error and has no TTFT."""
    held = {"slower_tail": {"share": 0.2, "by": 6.0}}
    patient = requests_of(played(held, request_timeout=10.0))
    assert set(patient["status"]) == {"ok"}
    assert patient["ttft_s"].max() > 6
    table = requests_of(played(held, request_timeout=4.0))
    failed = table[table["status"] == "error"]
    assert len(failed) == pytest.approx(0.2 * len(table), abs=1)
    assert failed["error"].str.startswith("timeout").all()
    assert failed["took_s"].to_numpy() == pytest.approx(4.0)
    assert failed["first_token_s"].isna().all()
    assert (failed["output_tokens_received"] == 0).all()
    assert failed["http_status"].isna().all()
    assert table[table["status"] == "ok"]["ttft_s"].max() < 4.0


def test_a_user_who_leaves_sees_no_token_that_is_held_back() -> None:
    held = {"slower_tail": {"share": 0.5, "by": 6.0}}
    table = requests_of(played(held, classes=leaving(2.0)))
    left = table[table["status"] == "aborted"]
    assert len(left) > 5
    assert left["took_s"].to_numpy() == pytest.approx(2.0)
    assert left["first_token_s"].isna().all()
    patient = table[table["ttft_s"] > 6]
    assert len(patient) > 5
    assert set(patient["status"]) == {"ok"}


def test_a_later_turn_waits_for_an_answer_that_is_held_back() -> None:
    chat = {"suffix_tokens": 32, "output_tokens": 8, "turns": 3, "think": 0.5}
    held = {"slower_tail": {"share": 0.5, "by": 3.0}}
    table = requests_of(
        played(held, classes={"chat": chat}, arrivals={"process": "poisson", "rate": 0.5}, prime="none")
    )
    for _, turns in table[table["status"] == "ok"].groupby("session"):
        ordered = turns.sort_values("turn")
        gaps = ordered["sent_s"].to_numpy()[1:] - ordered["ended_s"].to_numpy()[:-1]
        assert gaps == pytest.approx(0.5)
    assert table["ttft_s"].max() > 3


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(8.0, 8.0), (120.0, 60.0)])
def test_a_freeze_is_found_when_nothing_has_come_for_as_long_as_a_real_one_is_waited_for(
    timeout_s: float, patience_s: float
) -> None:
    result = played({"freeze": {"after": PRIMED + 20}}, request_timeout=timeout_s)
    (event,) = result.events
    struck_s = requests_of(result)["sent_s"].iloc[20]
    assert event.kind == "frozen"
    assert event.detail == f"requests under way and no token for {patience_s:.0f} s"
    assert struck_s + patience_s - 1 <= event.t_s <= struck_s + patience_s + 3


def test_a_freeze_that_leaves_nothing_under_way_is_none() -> None:
    """The last request strikes it, and its user leaves at once: nobody waits for a token any more."""
    gone = {"long": {"suffix_tokens": 32, "output_tokens": 8, "abort": {"share": 1, "after": 0.001}}}
    asked: dict = {"classes": gone, "prime": "none", "request_timeout": 8.0}
    last = len(a_schedule(**asked).requests) - 1
    result = played({"freeze": {"after": last}}, **asked)
    assert result.events == ()
    assert set(requests_of(result)["status"]) == {"aborted"}


def test_a_freeze_while_the_tiers_are_filled_ends_the_round_before_it_begins() -> None:
    result = played({"freeze": {"after": 2}}, request_timeout=8.0)
    (event,) = result.events
    assert event == EngineEvent("frozen", event.t_s, "requests under way and no token for 8 s")
    assert event.t_s <= 0
    assert set(requests_of(result)["status"]) <= {"error", "unsent"}


def test_residue_and_another_configuration_are_found_by_looking() -> None:
    plain, odd = played(), played({"residue": True, "other_configuration": True})
    assert (plain.residue, plain.config_differences) == ((), ())
    assert odd.residue == ("prompt_tokens is 128 before the first request",)
    assert odd.config_differences == ("the number of device blocks is 79, not 80 as asked",)
    assert odd.capacities["device_blocks"] == plain.capacities["device_blocks"] - 1
    first, then = (
        result.metrics.to_pandas().query("name == 'prompt_tokens'")["value"].iloc[0] for result in (plain, odd)
    )
    assert then - first == 128


def test_residue_cannot_be_seen_where_there_are_no_metrics() -> None:
    assert played({"residue": True, "missing_metrics": {"after": 0}}).residue == ()
