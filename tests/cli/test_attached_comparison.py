"""`kvbench compare` against servers that are already running: nothing is launched, every report is written."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from tests.cli.files import RULES, WORKLOAD, attached_profile, write
from tests.cli.invoke import Answer, kvbench
from tests.standin.server import Behaviour, stand_in


def compare(folder: Path, baseline: Behaviour, candidate: Behaviour, *extra: str) -> tuple[Answer, Path | None]:
    """Compare two stand-ins; the answer and the folder of the run."""
    with stand_in(baseline) as (one, _), stand_in(candidate) as (other, _):
        files = write(
            folder,
            base=attached_profile("base", one),
            other=attached_profile("other", f"{other}/v1"),
            workload=WORKLOAD,
            rules=RULES,
        )
        answer = kvbench(
            "compare", files["base"], files["other"], "--workload", files["workload"], "--rules", files["rules"],
            "--out", folder / "results", *extra,
        )  # fmt: skip
    runs = sorted((folder / "results").glob("*")) if (folder / "results").is_dir() else []
    return answer, runs[-1] if runs else None


@pytest.fixture(scope="module")
def same_twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    answer, run = compare(tmp_path_factory.mktemp("same"), Behaviour(), Behaviour(), "--json")
    assert run is not None, answer.text
    return answer, run


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
    for arm in ("base", "other"):
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
        for arm in ("base", "other")
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


def test_a_candidate_with_short_answers_is_unstable(tmp_path: Path) -> None:
    answer, _run = compare(tmp_path, Behaviour(), Behaviour(completion="short"), "--json", "--rounds", "1")
    verdict = json.loads(answer.out)
    assert verdict["verdict"] == "NO_GO", answer.err
    assert answer.code == 1
    failed = {r["rule"] for r in verdict["rules"] if r["status"] == "fail"}
    assert "stability" in failed or "errors" in failed


def test_a_server_without_metrics_is_never_go(tmp_path: Path) -> None:
    answer, _run = compare(tmp_path, Behaviour(), Behaviour(metrics=False), "--json", "--rounds", "1")
    verdict = json.loads(answer.out)
    assert verdict["verdict"] in ("INCONCLUSIVE", "INVALID", "NO_GO"), answer.err
    assert answer.code in (1, 3, 4)
    assert verdict["sources"]["other"]["computed"] is None


def test_metrics_that_vanish_make_the_run_invalid(tmp_path: Path) -> None:
    answer, _run = compare(tmp_path, Behaviour(), Behaviour(metrics_vanish_after=8), "--json", "--rounds", "1")
    assert json.loads(answer.out)["verdict"] == "INVALID", answer.err
    assert answer.code == 4


def test_outputs_that_differ_without_any_tier_are_never_parity_proven(tmp_path: Path) -> None:
    """Nothing was promoted, so no tier can be to blame; but equal they are not."""
    answer, _run = compare(tmp_path, Behaviour(), Behaviour(corrupt_every=3), "--json", "--rounds", "1")
    verdict = json.loads(answer.out)
    parity = next(r for r in verdict["rules"] if r["metric"] == "output_parity")
    assert parity["status"] != "pass", parity
    assert verdict["verdict"] != "GO"


@pytest.mark.parametrize("completion", ["500", "garbage", "html", "no_done"])
def test_a_candidate_that_answers_nonsense_is_no_go_with_the_cause(tmp_path: Path, completion: str) -> None:
    answer, run = compare(tmp_path, Behaviour(), Behaviour(completion=completion), "--json", "--rounds", "1")
    verdict = json.loads(answer.out)
    assert verdict["verdict"] == "NO_GO", answer.err
    assert answer.code == 1
    assert "Traceback" not in answer.text
    assert run is not None
    assert "<script>" not in (run / "report.html").read_text()
    errors = pd.read_parquet(run / "arms" / "other" / "round-1" / "requests.parquet")
    assert set(errors["status"]) == {"error"}
    assert errors["error"].str.len().min() > 0
