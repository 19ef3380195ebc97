"""`kvbench compare` against servers that are already running: nothing is launched, every report is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from tests.cli.files import RULES, WORKLOAD, attached_profile, write
from tests.cli.invoke import Answer, kvbench
from tests.standin.server import Behaviour, stand_in

PROVABLE = """\
guardrails:
  - {id: ttft-p90, metric: ttft, quantile: 0.9, max_ratio: 3}
  - {id: errors, metric: error_rate, max: 5%}
benefits:
  - {id: long-ttft, metric: ttft, class: long, quantile: 0.5, max_ratio: 0.8}
rounds: {min: 3, max: 8}
validity: {send_lag_p99: 200ms, contention: 4}
"""
"""All that rounds at stand-ins can show, three of them unless the machine is restless; outputs of a server without
metrics cannot be told by source."""


def compare(
    folder: Path,
    *behaviours: Behaviour,
    options: Sequence[str] = (),
    rules: str = RULES,
    tiers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Answer, Path]:
    """Compare stand-ins, the first of which is the baseline; the answer and the folder of the run.

    `tiers` are declared by the arms of these names.
    """
    with ExitStack() as stack:
        urls = [stack.enter_context(stand_in(behaviour))[0] for behaviour in behaviours]
        arms = {"base": attached_profile("base", urls[0])}
        for number, url in enumerate(urls[1:], start=1):
            arms[f"other-{number}"] = attached_profile(f"other-{number}", f"{url}/v1")
        arms |= {name: f"{arms[name]}tiers: {declared}\n" for name, declared in tiers.items()}
        files = write(folder, **arms, workload=WORKLOAD, rules=rules)
        answer = kvbench(
            "compare", *(files[name] for name in arms), "--workload", files["workload"], "--rules", files["rules"],
            "--out", folder / "results", *options, timeout_s=400,
        )  # fmt: skip
    runs = sorted((folder / "results").glob("*")) if (folder / "results").is_dir() else []
    assert runs, answer.text
    return answer, runs[-1]


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[tuple[Answer, Path]]]]:
    """All comparisons of this file at once: most of their time is waiting."""
    same, faulty, better = (tmp_path_factory.mktemp(name) for name in ("same", "faulty", "better"))
    with ThreadPoolExecutor(3) as threads:
        yield {
            "same": threads.submit(compare, same, Behaviour(), Behaviour(), options=["--json"]),
            # One baseline against a candidate of each fault, one round each.
            "faulty": threads.submit(
                compare, faulty, Behaviour(), *FAULTS.values(), options=["--json", "--rounds", "1"]
            ),
            # Two candidates that are far better than the baseline, the second without metrics.
            "better": threads.submit(
                compare,
                better,
                Behaviour(first_token_s=0.15),
                Behaviour(),
                Behaviour(metrics=False),
                options=["--json"],
                rules=PROVABLE,
                tiers={"other-2": "{host: {size: 1GiB}}"},
            ),
        }


@pytest.fixture(scope="module")
def same_twice(side_by_side: dict[str, Future[tuple[Answer, Path]]]) -> tuple[Answer, Path]:
    return side_by_side["same"].result()


def test_the_same_server_twice_is_never_go_and_breaks_no_guardrail(same_twice: tuple[Answer, Path]) -> None:
    answer, run = same_twice
    verdict = json.loads(answer.out)
    assert verdict["verdict"] in ("NO_GO", "INCONCLUSIVE"), verdict["reasons"]
    assert answer.code == verdict["exit_code"]
    assert [r for r in verdict["rules"] if r["kind"] == "guardrail" and r["status"] == "fail"] == []
    assert json.loads((run / "verdict.json").read_text()) == verdict


def test_the_run_on_disk_is_complete(same_twice: tuple[Answer, Path]) -> None:
    _answer, run = same_twice
    for name in ("run.json", "verdict.json", "report.html", "report.md", "junit.xml"):
        assert (run / name).stat().st_size > 0, name
    for arm in ("base", "other-1"):
        for index in (1, 2):
            for table in ("requests", "tokens", "metrics", "host"):
                assert (run / "arms" / arm / f"round-{index}" / f"{table}.parquet").is_file()
    ElementTree.fromstring((run / "junit.xml").read_text())


def test_both_arms_were_sent_the_same_at_the_same_time(same_twice: tuple[Answer, Path]) -> None:
    _answer, run = same_twice
    first, second = (
        pd.read_parquet(run / "arms" / arm / "round-1" / "requests.parquet")
        .sort_values("id")
        .reset_index(drop=True)
        for arm in ("base", "other-1")
    )
    assert len(first) > 50
    assert first["prompt_digest"].equals(second["prompt_digest"])
    assert first["output_digest"].equals(second["output_digest"])
    assert first["intended_s"].equals(second["intended_s"])


def test_report_gives_the_same_verdict_from_what_is_stored(same_twice: tuple[Answer, Path]) -> None:
    answer, run = same_twice
    before = json.loads((run / "verdict.json").read_text())
    (run / "verdict.json").unlink()
    again = kvbench("report", run, "--json")
    assert again.code == answer.code
    assert json.loads(again.out) == before == json.loads((run / "verdict.json").read_text())


def test_a_finished_run_resumes_to_the_same_verdict_without_a_server(same_twice: tuple[Answer, Path]) -> None:
    answer, run = same_twice
    again = kvbench("compare", "--resume", run, "--json")
    assert again.code == answer.code
    assert json.loads(again.out)["rules"] == json.loads(answer.out)["rules"]


FAULTS = {
    "500": Behaviour(completion="500"),
    "garbage": Behaviour(completion="garbage"),
    "html": Behaviour(completion="html"),
    "no_done": Behaviour(completion="no_done"),
    "short": Behaviour(completion="short"),
    "no metrics": Behaviour(metrics=False),
    "vanishing metrics": Behaviour(metrics_vanish_after=4),
    "other outputs": Behaviour(corrupt_every=3),
}
"""What is wrong with each candidate of one comparison."""
NONSENSE = ("500", "garbage", "html", "no_done")


@pytest.fixture(scope="module")
def faulty(side_by_side: dict[str, Future[tuple[Answer, Path]]]) -> tuple[Answer, Path]:
    return side_by_side["faulty"].result()


def of(faulty: tuple[Answer, Path], fault: str) -> dict[str, Any]:
    """The verdict on the candidate with that fault."""
    verdict: dict[str, Any] = json.loads(faulty[0].out)["candidates"][[*FAULTS].index(fault)]
    assert verdict["candidate"] == arm(fault)
    return verdict


def arm(fault: str) -> str:
    return f"other-{[*FAULTS].index(fault) + 1}"


def test_the_worst_of_several_candidates_is_the_answer(faulty: tuple[Answer, Path]) -> None:
    answer, _run = faulty
    document = json.loads(answer.out)
    assert len(document["candidates"]) == len(FAULTS)
    assert document["verdict"] == "INVALID", answer.err
    assert answer.code == document["exit_code"] == 4
    assert not answer.crashed


def test_a_candidate_with_short_answers_is_unstable(faulty: tuple[Answer, Path]) -> None:
    verdict = of(faulty, "short")
    assert (verdict["verdict"], verdict["exit_code"]) == ("NO_GO", 1)
    failed = {r["rule"] for r in verdict["rules"] if r["status"] == "fail"}
    assert "stability" in failed or "errors" in failed


def test_a_server_without_metrics_is_inconclusive(faulty: tuple[Answer, Path]) -> None:
    verdict = of(faulty, "no metrics")
    assert (verdict["verdict"], verdict["exit_code"]) == ("INCONCLUSIVE", 3)
    assert verdict["sources"][arm("no metrics")]["computed"] is None


def test_a_tier_on_a_server_without_metrics_is_inconclusive_though_all_else_is_proven(
    side_by_side: dict[str, Future[tuple[Answer, Path]]],
) -> None:
    """The other candidate, just as good, adds no tier and tells its metrics: nothing but evidence is missing."""
    answer, _run = side_by_side["better"].result()
    told, blind = json.loads(answer.out)["candidates"]
    assert told["verdict"] == "GO", told["reasons"]
    assert (blind["verdict"], blind["exit_code"], answer.code) == ("INCONCLUSIVE", 3, 3), blind["reasons"]
    status = {rule["rule"]: rule["status"] for rule in blind["rules"] if rule["kind"] != "validity"}
    assert status["tier-used"] == "unknown"
    assert {status[rule] for rule in ("ttft-p90", "errors", "stability", "long-ttft")} == {"pass"}


def test_metrics_that_vanish_make_the_run_invalid(faulty: tuple[Answer, Path]) -> None:
    verdict = of(faulty, "vanishing metrics")
    assert (verdict["verdict"], verdict["exit_code"]) == ("INVALID", 4)
    assert "metrics-vanished" in {r["rule"] for r in verdict["rules"] if r["status"] == "fail"}


def test_outputs_that_differ_without_any_tier_are_never_parity_proven(faulty: tuple[Answer, Path]) -> None:
    """Nothing was promoted, so no tier can be to blame; but equal they are not."""
    verdict = of(faulty, "other outputs")
    parity = next(r for r in verdict["rules"] if r["metric"] == "output_parity")
    assert parity["status"] != "pass", parity
    assert verdict["verdict"] != "GO"


@pytest.mark.parametrize("fault", NONSENSE)
def test_a_candidate_that_answers_nonsense_is_no_go_with_the_cause(faulty: tuple[Answer, Path], fault: str) -> None:
    _answer, run = faulty
    verdict = of(faulty, fault)
    assert (verdict["verdict"], verdict["exit_code"]) == ("NO_GO", 1)
    errors = pd.read_parquet(run / "arms" / arm(fault) / "round-1" / "requests.parquet")
    assert set(errors["status"]) == {"error"}
    assert errors["error"].str.len().min() > 0


def test_what_a_server_answers_reaches_no_report_as_markup(faulty: tuple[Answer, Path]) -> None:
    _answer, run = faulty
    assert "<script>alert" not in (run / "report.html").read_text()
    assert "<script>alert" not in (run / "junit.xml").read_text()
