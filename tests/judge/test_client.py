"""Whether the client did its part: what a p99 of its send lag does not show in a long round."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from kvbench.judge.client import lateness, without_socket
from kvbench.judge.evidence import ArmRound
from kvbench.judge.findings import FindingKind
from kvbench.judge.judge import judge
from kvbench.judge.validity import check_validity
from tests.judge.ask import kinds, result_of
from tests.judge.build import arm_round, comparison, good_pairs, request_rows, rules, ttfts, workload
from tests.judge.change import Edit, candidate_edited, edited, fail, with_candidate

TAIL = ({"id": "ttft-p99", "metric": "ttft", "quantile": 0.99, "max": "10s"},)


def held_up(by_s: float, rows: object) -> Edit:
    """Requests that went out later, and were answered later by as much."""

    def edit(table: pd.DataFrame) -> None:
        table.loc[rows, ["sent_s", "first_token_s", "last_token_s", "ended_s"]] += by_s

    return edit


def long_round(n: int = 4000) -> ArmRound:
    """Of ten minutes or more."""
    return arm_round("tiered", 1, *request_rows(ttfts(n, median=0.3)))


class TestStandingStill:
    def test_for_seconds_is_lateness_although_the_p99_is_small(self) -> None:
        """Given a client that stood still for 3 s of a round in which 1 % of the requests take longer than that."""
        pairs = candidate_edited(held_up(3.0, slice(100, 101)))
        p99_s = pairs[1].candidate.send_lag.p99_s
        assert p99_s is not None
        assert p99_s < 0.002
        (finding,) = check_validity(comparison(pairs)).findings
        assert finding.kind is FindingKind.CLIENT_LATE
        assert finding.passes
        assert "the client stood still: a request went out 3 s after its intended time" in finding.text
        assert judge(comparison(pairs)).verdict == "INVALID"

    def test_is_seen_by_what_it_read_late_where_nothing_was_due(self) -> None:
        """Events that come in one read lose their times, and gaps between tokens are the client's."""
        found = {
            lag_s: kinds(comparison(with_candidate(good_pairs(), 1, load={"read_lag_max_s": lag_s})))
            for lag_s in (0.9, 1.1)
        }
        assert found == {0.9: set(), 1.1: {FindingKind.CLIENT_LATE}}

    def test_a_budget_for_lags_of_seconds_allows_as_much(self) -> None:
        pairs = candidate_edited(held_up(3.0, slice(100, 101)))
        assert kinds(comparison(pairs, rules(validity={"send_lag_p99": "4s"}))) == set()


class TestWhatLagMakesOfQuantiles:
    def test_a_tail_that_is_the_clients_own_is_no_tail_of_the_engine(self) -> None:
        """Given 0.8 % of the requests half a second late, then p90 is what it is and p99 is not."""
        late = edited(long_round(), held_up(0.5, slice(1000, 1031)))
        p99_s = late.send_lag.p99_s
        assert p99_s is not None
        assert p99_s < 0.02
        assert lateness(late, rules(), workload()) == []
        (what,) = lateness(late, rules(guardrails=TAIL), workload())
        assert what.startswith("sent late, which alone adds ")
        assert what.endswith("to the TTFT p99, 20 ms allowed")

    def test_of_the_class_that_the_rule_is_about(self) -> None:
        late = edited(long_round(), held_up(0.5, slice(1000, 1031)))
        other = ({**TAIL[0], "class": "short"},)
        assert lateness(late, rules(guardrails=other), workload()) == []

    def test_requests_in_time_move_nothing(self) -> None:
        assert lateness(long_round(), rules(guardrails=TAIL), workload()) == []

    def test_a_failed_request_counts_at_the_time_out_whenever_it_went_out(self) -> None:
        late = edited(long_round(), held_up(0.5, slice(1000, 1031)))
        failed = replace(late, requests=fail(late.requests, slice(1000, 1032)))
        assert lateness(failed, rules(guardrails=TAIL), workload()) == []


class TestSockets:
    def test_a_request_that_had_none_is_no_error_of_the_server(self) -> None:
        """Given a tenth of the candidate's requests without a socket, then that is no NO_GO for errors."""
        strict = rules(guardrails=({"id": "errors", "metric": "error_rate", "max": "1%"},))

        def verdict(error: str) -> str:
            pairs = good_pairs()
            broken = fail(pairs[1].candidate.requests, slice(0, 40), error)
            return judge(comparison(with_candidate(pairs, 1, requests=broken), strict)).verdict

        assert verdict("connect: no connection after 10 s") == "NO_GO"
        assert verdict("client_limit: Cannot assign requested address") == "INVALID"

    @pytest.mark.parametrize("error", [None, "refused: Connection refused"])
    def test_every_other_error_is(self, error: str | None) -> None:
        pairs = good_pairs()
        requests = pairs[1].candidate.requests if error is None else fail(pairs[1].candidate.requests, [3], error)
        (changed,) = with_candidate(pairs[1:2], 0, requests=requests)
        assert without_socket(changed.candidate) == []
        run = comparison(with_candidate(pairs, 1, requests=requests))
        assert result_of(judge(run), "client-limit").text == "the client had a socket for every request"
