"""`kvbench compare --record` and `kvbench history` as users call them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from kvbench.history.store import read
from tests.cli.files import two_stand_ins
from tests.cli.invoke import kvbench_here
from tests.history.build import Recorded, leave_run, record

NOISE = np.exp(np.random.default_rng(2).normal(0, 0.02, 30))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Twenty nights; from the thirteenth on another engine is slower by a third."""
    runs = [
        Recorded(n, ratio=NOISE[n] * (1.3 if n >= 12 else 1.0), engine="0.33.0" if n >= 12 else "0.32.0")
        for n in range(20)
    ]
    record(tmp_path, runs)
    return tmp_path


def test_a_comparison_is_recorded_once_also_when_it_is_recorded_again(tmp_path: Path) -> None:
    with two_stand_ins(tmp_path) as arguments:
        answer = kvbench_here("compare", *arguments, "-n", "1", "--out", tmp_path / "results", "--record", "--json")
        verdict = json.loads(answer.out)
        assert answer.code == verdict["exit_code"], answer.text
        (run,) = (path for path in (tmp_path / "results").iterdir() if path.name != "history")
        again = kvbench_here("compare", "--resume", run, "--record", "--json")
    assert "recorded in" in answer.err
    assert json.loads(again.out) == verdict
    (stored,) = (tmp_path / "results" / "history").iterdir()
    assert stored.name.startswith(run.name)
    rows = read(tmp_path / "results")
    assert list(rows["rule"]) == [rule["rule"] for rule in verdict["rules"]]
    assert list(rows["status"]) == [rule["status"] for rule in verdict["rules"]]
    assert (set(rows["candidate"]), set(rows["verdict"])) == ({"other"}, {verdict["verdict"]})
    assert kvbench_here("history", "--out", tmp_path / "results").code == 0


def test_people_see_rules_their_course_and_what_changed(results: Path) -> None:
    answer = kvbench_here("history", "--out", results)
    assert answer.code == 0, answer.text
    assert "tiered against base: 20 runs, 2026-01-01 02:00 to 2026-01-20 02:00 UTC" in answer.out
    assert "ttft-p90" in answer.out
    assert "ttft-p90 changed on 2026-01-13 02:00" in answer.out
    assert "engine vllm 0.32.0 → vllm 0.33.0 on 2026-01-13 02:00" in answer.out
    assert "residue" not in answer.out


def test_machines_get_points_trend_changes_and_methods(results: Path) -> None:
    answer = kvbench_here("history", "--out", results, "--rule", "ttft-p90", "--last", "20", "--json")
    document = json.loads(answer.out)
    (found,) = document["comparisons"]
    (rule,) = found["rules"]
    assert (document["schema"], document["nights"], document["exit_code"]) == (1, None, 0)
    assert len(found["runs"]) == len(rule["points"]) == 20
    assert rule["points"][0].keys() >= {"run", "created_utc", "status", "value", "ci", "limit"}
    assert rule["unit"] == "ratio"
    (change,) = rule["changes"]
    assert change["created_utc"] == "2026-01-13T02:00:00Z"
    assert {entry["what"] for entry in change["with"]} == {"engine", "engine of the baseline"}
    assert rule["trend"]["runs"] == 8
    assert "Hawkins" in document["methods"]["changes"]["name"]


def test_the_nightly_verdict_is_the_exit_code(results: Path) -> None:
    record(results, [Recorded(20, ratio=1.3, baseline_s=0.9, engine="0.33.0")])
    answer = kvbench_here("history", "--out", results, "--nights", "14", "--json")
    document = json.loads(answer.out)
    assert answer.code == document["exit_code"] == document["nights"]["exit_code"] == 1
    assert document["nights"]["verdict"] == "NO_GO"
    people = kvbench_here("history", "--out", results, "--nights", "14")
    assert people.code == 1
    assert "NO_GO" in people.out
    assert "the baseline moved by" in people.out


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_the_page_is_one_file_with_a_plot_for_each_rule(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page" / ".." / "history.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    answer = kvbench_here("history", "--out", results, "--nights", "14", "--html", page)
    assert answer.code in (0, 1, 3), answer.text
    text = page.read_text()
    tags = Tags(text).tags
    assert tags.count("svg") == 2
    assert "script" not in tags
    assert "link" not in tags
    assert not re.search(r'(?:src|href)="(?!#)', text)
    assert "changed on 2026-01-13" in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_foreign_names_do_not_drive_page_or_terminal(tmp_path: Path) -> None:
    record(tmp_path, [Recorded(0, engine="<script>alert(1)</script>\x1b[31m"), Recorded(1, engine="x")])
    page = tmp_path / "history.html"
    answer = kvbench_here("history", "--out", tmp_path, "--html", page)
    assert "\x1b" not in answer.text
    assert "<script" not in page.read_text()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_any_encoding_of_the_terminal_will_do(results: Path, encoding: str) -> None:
    answer = kvbench_here("history", "--out", results, encoding=encoding)
    assert answer.code == 0, answer.text
    assert "ttft-p90" in answer.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rule", "ttft-p09"), "did you mean 'ttft-p90'"),
        (("--candidate", "tired"), "did you mean 'tiered'"),
        (("--older-than", "3d"), "--prune"),
        (("--yes",), "--prune"),
        (("--prune",), "--older-than"),
        (("--prune", "--older-than", "3 parsecs"), "--older-than"),
        (("--prune", "--max-size", "-1GiB"), "--max-size"),
        (("--last", "0"), "--last"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_question_is_refused(results: Path, arguments: tuple[str, ...], says: str) -> None:
    answer = kvbench_here("history", "--out", results, *arguments)
    assert answer.code == 2, answer.text
    assert says in answer.err


def test_nothing_recorded_says_how_to_record(tmp_path: Path) -> None:
    answer = kvbench_here("history", "--out", tmp_path, "--json")
    assert answer.code == 2
    assert "--record" in json.loads(answer.out)["error"]


def test_pruning_shows_first_and_deletes_when_told(results: Path) -> None:
    old, new = leave_run(results, Recorded(0), 10_000), leave_run(results, Recorded(19), 10_000)
    asked = ("history", "--out", results, "--prune", "--max-size", "20KiB")
    shown = kvbench_here(*asked)
    assert shown.code == 0, shown.text
    assert f"would delete {old}" in shown.err
    assert "add --yes" in shown.err
    assert old.exists()
    document = json.loads(kvbench_here(*asked, "--yes", "--json").out)
    assert document["dry_run"] is False
    assert [run["path"] for run in document["runs"]] == [str(old)]
    assert (old.exists(), new.exists()) == (False, True)
    assert len(read(results)) == 60
