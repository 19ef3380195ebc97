"""One row a request, with the evidence that it rests on; counters as evidence where events are missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from kvbench.ledger.account import EVIDENCE, RoundEvidence, account
from kvbench.ledger.alone import split_by_counters
from kvbench.record.tables import LEDGER
from tests.judge.build import BY_SOURCE, metric_rows, request_rows

SOURCES = ("device", "host", "disk", "computed")


def requests(*rows: tuple[float, float, int]) -> pd.DataFrame:
    """(sent, ended, cached tokens) of prompts of 1,000 tokens."""
    frame, _ = request_rows(np.ones(len(rows)), cached=[row[2] for row in rows])
    return frame.assign(sent_s=[row[0] for row in rows], ended_s=[row[1] for row in rows])


def scraped(*grown: tuple[float, float, float, float, float]) -> pd.DataFrame:
    """(time, device, host, disk, computed) so far."""
    series = {(BY_SOURCE, source): [row[1 + place] for row in grown] for place, source in enumerate(SOURCES)}
    return metric_rows(series, [row[0] for row in grown])


def test_a_request_alone_between_two_scrapes_has_what_the_counters_grew_by() -> None:
    metrics = scraped((0, 0, 0, 0, 0), (2, 300, 200, 100, 400), (4, 300, 200, 100, 1400))
    found = split_by_counters(requests((0.5, 1.5, 600), (2.5, 3.5, 0)), metrics)
    assert found == {
        0: {"device": 300, "host": 200, "disk": 100},
        1: {"device": 0, "host": 0, "disk": 0},
    }


def test_several_are_told_apart_only_where_one_tier_served_them_all() -> None:
    both = requests((0.5, 1.5, 600), (1.0, 1.8, 200))
    assert split_by_counters(both, scraped((0, 0, 0, 0, 0), (2, 0, 800, 0, 1200))) == {
        0: {"device": 0, "host": 600, "disk": 0},
        1: {"device": 0, "host": 200, "disk": 0},
    }
    assert split_by_counters(both, scraped((0, 0, 0, 0, 0), (2, 100, 700, 0, 1200))) == {}


def test_a_scrape_while_something_is_under_way_says_nothing() -> None:
    metrics = scraped((0, 0, 0, 0, 0), (1, 600, 0, 0, 0), (2, 600, 0, 0, 400))
    assert split_by_counters(requests((0.5, 1.5, 600)), metrics) == {0: {"device": 600, "host": 0, "disk": 0}}
    assert split_by_counters(requests((0.5, 2.5, 600)), metrics) == {}


def test_counters_that_do_not_add_up_to_the_requests_say_nothing() -> None:
    one = requests((0.5, 1.5, 600))
    assert split_by_counters(one, scraped((0, 0, 0, 0, 0), (2, 600, 0, 0, 500))) == {}
    assert split_by_counters(one, scraped((0, 0, 0, 0, 0), (2, 500, 0, 0, 500))) == {}
    assert split_by_counters(one, scraped((0, 900, 0, 0, 0), (2, 600, 0, 0, 400))) == {}, "a reset"
    assert split_by_counters(one.assign(cached_tokens=np.nan), scraped((0, 0, 0, 0, 0), (2, 600, 0, 0, 400))) == {}
    assert split_by_counters(one, scraped()) == {}


def row(evidence: RoundEvidence) -> dict[str, object]:
    table = account(evidence)
    assert table.schema == LEDGER
    (found,) = table.to_pylist()
    assert found["evidence"] in EVIDENCE
    return {name: found[name] for name in (*SOURCES, "unattributed", "evidence")}


def test_evidence_is_named_and_the_best_is_taken() -> None:
    tiers = ("device", "host", "disk")
    one, metrics = requests((0.5, 1.5, 600)), scraped((0, 0, 0, 0, 0), (2, 300, 200, 100, 400))
    split = {"device": 300, "host": 200, "disk": 100, "computed": 400, "unattributed": 0}
    told = {0: {"device": 100, "host": 500, "disk": 0}}
    assert row(RoundEvidence(one, metrics, tiers)) == split | {"evidence": "counters"}
    assert row(RoundEvidence(one, metrics, tiers, told=told)) == split | told[0] | {"disk": 0, "evidence": "engine"}
    assert row(RoundEvidence(one, metrics, ("device",))) == {
        "device": 600,
        "host": 0,
        "disk": 0,
        "computed": 400,
        "unattributed": 0,
        "evidence": "only tier",
    }


def test_what_nothing_tells_is_unattributed_and_never_zero() -> None:
    tiers, nothing = ("device", "host"), scraped()
    assert row(RoundEvidence(requests((0.5, 1.5, 600)), nothing, tiers)) == {
        "device": 0,
        "host": 0,
        "disk": 0,
        "computed": 400,
        "unattributed": 600,
        "evidence": "none",
    }
    silent = requests((0.5, 1.5, 0)).assign(cached_tokens=np.nan)
    assert row(RoundEvidence(silent, nothing, tiers)) == dict.fromkeys((*SOURCES, "unattributed")) | {
        "evidence": "none"
    }
    assert row(RoundEvidence(requests((0.5, 1.5, 0)), nothing, tiers))["evidence"] == "nothing cached"


def test_what_was_not_sent_has_no_row() -> None:
    unsent = requests((0.5, 1.5, 600)).assign(sent_s=np.nan)
    table = account(RoundEvidence(unsent, scraped(), ("device",)))
    assert table.num_rows == 0
    assert isinstance(table, pa.Table)
