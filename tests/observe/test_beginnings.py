"""Another process behind an address is told from counters that began anew, and from one of several servers."""

from __future__ import annotations

import pytest

from kvbench.observe.attempts import Result
from kvbench.observe.beginnings import CLOCKS_APART_S, Beginnings
from kvbench.observe.canonical import parse_engine
from kvbench.observe.continuity import Beginning, beginning
from kvbench.observe.exposition import Exposition
from tests.observe.pages import page

NOW_S = 5000.0


def born(*, process: float | None = None, counters: tuple[float, ...] = ()) -> Exposition:
    """A page of a process that began at `process`, whose ranks' counters began at `counters`."""
    own = page("gauge", "process_start_time_seconds", ("", str(process))) if process is not None else ""
    ranks = [(f'{{engine="{rank}"}}', str(at)) for rank, at in enumerate(counters)]
    return parse_engine(own + page("gauge", "vllm:prompt_tokens_created", *ranks))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (born(process=10, counters=(40,)), born(process=90, counters=(120,)), Beginning(90, True)),
        (born(process=10), born(process=90), Beginning(90, True)),
        (born(process=10, counters=(40,)), born(process=10, counters=(120,)), Beginning(120, False)),
        (born(counters=(40, 41)), born(counters=(40, 120)), Beginning(120, None)),
        (born(process=10, counters=(40,)), born(process=10, counters=(40,)), None),
        (born(process=90, counters=(120,)), born(process=10, counters=(40,)), None),
        (born(counters=(120,)), born(counters=(40,)), None),
        (born(), born(process=90, counters=(120,)), None),
        (born(process=float("nan")), born(process=90), None),
    ],
    ids=[
        "another process",
        "... that tells no creation",
        "counters alone",
        "of one rank, without a process's start",
        "nothing",
        "an older process",
        "older counters",
        "told for the first time",
        "no number",
    ],
)
def test_what_began_between_two_scrapes(before: Exposition, after: Exposition, found: Beginning | None) -> None:
    assert beginning(before, after) == found


def test_a_process_that_began_since_the_last_answer_is_told_once() -> None:
    seen = Beginnings()
    assert seen.seen(born(process=10), NOW_S) is None
    assert seen.seen(born(process=NOW_S + 1), NOW_S + 2) == Beginning(NOW_S + 1, True)
    assert seen.seen(born(process=NOW_S + 1), NOW_S + 3) is None


def test_one_of_several_servers_behind_an_address_is_no_restart() -> None:
    """Given two that run since long and answer in turns, then neither turn is a beginning."""
    seen = Beginnings()
    for process in (10, 900, 10, 900):
        assert seen.seen(born(process=process), NOW_S) is None
    apart = born(process=NOW_S - CLOCKS_APART_S / 2)
    assert seen.seen(apart, NOW_S + 1) == Beginning(NOW_S - CLOCKS_APART_S / 2, True), "or clocks are not the same"


@pytest.mark.parametrize(
    ("missed", "process"), [(Result.UNREACHABLE, True), (Result.STALLED, None), (None, None)], ids=str
)
def test_new_counters_after_nobody_listened_are_anothers(missed: Result | None, process: bool | None) -> None:
    seen = Beginnings()
    seen.seen(born(counters=(40,)), NOW_S)
    if missed is not None:
        seen.missed(missed)
        seen.missed(Result.STALLED)
    assert seen.seen(born(counters=(NOW_S + 1,)), NOW_S + 2) == Beginning(NOW_S + 1, process)


def test_counters_of_a_process_that_says_it_is_the_same_are_not_anothers() -> None:
    seen = Beginnings()
    seen.seen(born(process=10, counters=(40,)), NOW_S)
    seen.missed(Result.UNREACHABLE)
    assert seen.seen(born(process=10, counters=(NOW_S,)), NOW_S) == Beginning(NOW_S, False)
