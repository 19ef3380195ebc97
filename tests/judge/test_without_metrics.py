"""A server without metrics: latency is judged as ever, where tokens came from is unknown, and it is never GO."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.judge.evidence import Comparison, RoundPair
from kvbench.judge.judge import judge
from tests.judge.ask import result_of
from tests.judge.build import SCRAPES, comparison, good_pairs, metric_rows, rules
from tests.judge.change import with_baseline, with_candidate

NONE = replace(SCRAPES, supported=False, succeeded=0, longest_gap_ours_s=0.0)
EVIDENCE = [
    {"id": "promoted", "metric": "promoted_tokens", "min": 1},
    {"id": "from-host", "metric": "promoted_tokens", "source": "host", "min": 1},
    {"id": "share", "metric": "source_share", "source": "disk", "min": 0.1},
    {"id": "loaded", "metric": "host_load_bytes", "min": 1},
]


def without_metrics(
    pairs: list[RoundPair], *, arms: tuple[str, ...] = ("baseline", "candidate")
) -> list[RoundPair]:
    """The same rounds, whose servers have no `/metrics`."""
    gone = {"metrics": metric_rows({}, []), "scrapes": NONE}
    for place in range(len(pairs)):
        for arm in arms:
            pairs = (with_baseline if arm == "baseline" else with_candidate)(pairs, place, **gone)
    return pairs


def run(*arms: str, ratio: float = 0.3) -> Comparison:
    return comparison(without_metrics(good_pairs(ratio=ratio), arms=arms), rules(evidence=EVIDENCE))


@pytest.mark.parametrize("arms", [("baseline", "candidate"), ("candidate",)])
def test_latency_is_there_and_every_rule_on_sources_is_unknown(arms: tuple[str, ...]) -> None:
    verdict = judge(run(*arms))
    assert (result_of(verdict, "ttft-p90").status, result_of(verdict, "ttft-p50").status) == ("pass", "pass")
    assert result_of(verdict, "ttft-p50").effect == pytest.approx(0.3, rel=0.1)
    for rule in EVIDENCE:
        found = result_of(verdict, str(rule["id"]))
        assert found.status == "unknown", found.text
        assert found.effect is None
    assert verdict.sources["tiered"] == {"device": None, "host": None, "disk": None, "computed": None}


@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_it_is_inconclusive_and_never_go_however_good_it_looks(ratio: float) -> None:
    assert judge(run("baseline", "candidate", ratio=ratio)).verdict == "INCONCLUSIVE"
    assert judge(run("candidate", ratio=ratio)).verdict != "GO"


def test_what_needs_metrics_to_be_checked_is_unknown_and_said() -> None:
    verdict = judge(run("baseline", "candidate"))
    for kind in ("counter-reset", "token-sources-broken", "scrape-gap"):
        found = result_of(verdict, kind)
        assert (found.status, found.text) == ("unknown", "no /metrics: base, tiered")


def test_metrics_that_some_rounds_have_and_others_lack_are_invalid() -> None:
    pairs = good_pairs()
    gone = with_candidate(pairs, 1, metrics=metric_rows({}, []), scrapes=NONE)
    assert judge(comparison(gone)).verdict == "INVALID"
    vanished = with_candidate(pairs, 1, scrapes=replace(SCRAPES, vanished=True))
    assert judge(comparison(vanished)).verdict == "INVALID"
