"""Runs on disk that somebody else touched: edited, half deleted, foreign, in use, read-only. Nothing is started."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from kvbench.compare import command
from kvbench.errors import UnwritableError
from kvbench.ledger.account import EVIDENCE
from kvbench.record.run_directory import RunDirectory
from tests.cli.files import WORKLOAD, attached_profile, two_stand_ins, write
from tests.cli.invoke import Answer, kvbench_here
from tests.standin.server import stand_in


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of one round each, against servers that go on running."""
    folder = tmp_path_factory.mktemp("a folder")
    with two_stand_ins(folder) as arguments:
        answer = kvbench_here("compare", *arguments, "-n", "1", "--out", folder / "results")
        assert answer.code in (1, 3), answer.text
        (run,) = (folder / "results").iterdir()
        yield run


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(recorded, tmp_path / "a run"))


def edit(run: Path, **changes: object) -> None:
    document = json.loads((run / "run.json").read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = document
        for part in parents:
            place = place[int(part) if part.isdigit() else part]
        place[last] = value
    (run / "run.json").write_text(json.dumps(document))


def refused(answer: Answer, *says: str) -> None:
    assert answer.code == 2, answer.text
    for words in says:
        assert words in answer.err, answer.err


def test_a_report_is_the_same_again_through_a_link_and_a_relative_path(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kvbench_here("report", run, "--json")
    (tmp_path / "link").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    second = kvbench_here("report", "link", "--json")
    assert json.loads(first.out) == json.loads(second.out)
    assert first.code == second.code in (1, 3)


def test_a_verdict_is_shown_also_where_nothing_can_be_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnwritableError("cannot write ledger.parquet: Read-only file system")

    first = kvbench_here("report", run, "--json")
    (run / "verdict.json").unlink()
    (run / "verdict.json").mkdir()  # no file can take its place
    monkeypatch.setattr(command, "rebuild_ledgers", refuse)
    for json_ in ((), ("--json",)):
        answer = kvbench_here("report", run, *json_)
        assert answer.code == first.code
        assert "the reports were not written: cannot write" in answer.err
        assert "the ledgers are those that were stored: cannot write" in answer.err
    assert json.loads(answer.out)["verdict"] == json.loads(first.out)["verdict"]


def test_numbers_that_a_file_may_no_longer_hold_are_read_of_a_stored_run(run: Path) -> None:
    first = kvbench_here("report", run, "--json")
    edit(run, rules__validity__contention=1e9, rules__validity__scrape_gap=1e9)
    again = kvbench_here("report", run, "--json")
    assert again.code == first.code, again.text


def test_the_command_to_make_a_report_again_can_be_pasted(run: Path, tmp_path: Path) -> None:
    (tmp_path / "my results").mkdir()
    moved = run.rename(tmp_path / "my results" / run.name)
    answer = kvbench_here("report", moved)
    line = next(line for line in answer.out.splitlines() if "kvbench report" in line)
    assert shlex.split(line)[-3:] == ["kvbench", "report", str(moved)]
    assert f"kvbench report '{moved}'" in (moved / "report.md").read_text()
    assert f"kvbench report &#39;{moved}&#39;" in (moved / "report.html").read_text()


def test_edited_rules_are_shown_by_a_report_and_refused_by_a_resumption(run: Path) -> None:
    edit(run, rules__confidence=0.6)
    answer = kvbench_here("report", run)
    assert answer.code in (1, 3)
    assert "run.json was changed after the run began: rules" in answer.out
    assert "run.json was changed after the run began: rules" in (run / "report.html").read_text()
    refused(kvbench_here("compare", "--resume", run), "changed since the run began: rules", "run.json")


def test_an_arm_named_like_a_path_is_refused(run: Path) -> None:
    edit(run, rounds__0__arm="../../../base")
    refused(kvbench_here("report", run), "run.json")


def test_a_round_whose_tables_are_gone_or_damaged_is_recorded_again(run: Path) -> None:
    (run / "arms" / "other" / "round-1" / "tokens.parquet").unlink()
    (run / "arms" / "base" / "round-1" / "requests.parquet").write_bytes(b"PAR1 but not really")
    missing = json.loads(kvbench_here("compare", "--resume", run, "--dry-run", "--json").out)
    assert missing["missing"] == [{"arm": "base", "round": 1}, {"arm": "other", "round": 1}]
    answer = kvbench_here("compare", "--resume", run, "--json")
    assert answer.code in (1, 3), answer.text
    assert json.loads(answer.out)["rounds"]["done"] == 1
    rounds = json.loads((run / "run.json").read_text())["rounds"]
    assert [(r["arm"], r["state"]) for r in rounds] == [
        ("base", "lost"), ("other", "lost"), ("base", "done"), ("other", "done"),
    ]  # fmt: skip
    assert "was recorded again" in (run / "report.md").read_text()


def test_a_report_on_a_damaged_table_names_the_file(run: Path) -> None:
    (run / "arms" / "base" / "round-1" / "requests.parquet").write_bytes(b"PAR1 but not really")
    answer = kvbench_here("report", run, "--json")
    assert answer.code == 4
    assert "requests.parquet" in json.loads(answer.out)["error"]


def test_a_report_on_a_run_without_its_tables_is_never_go(run: Path) -> None:
    shutil.rmtree(run / "arms")
    answer = kvbench_here("report", run, "--json")
    assert answer.code == 4, answer.text
    assert json.loads(answer.out)["verdict"] == "INVALID"


def test_a_foreign_table_is_one_clear_error(run: Path) -> None:
    shutil.copy(run / "arms/base/round-1/host.parquet", run / "arms/base/round-1/requests.parquet")
    answer = kvbench_here("report", run)
    assert answer.code == 4, answer.text
    assert "requests.parquet" in answer.err


def test_a_run_is_recorded_by_one_kvbench_at_a_time(run: Path) -> None:
    with RunDirectory(run).held():
        refused(kvbench_here("compare", "--resume", run), "another kvbench is recording")


def test_what_is_said_beside_resume_must_be_what_the_run_began_with(run: Path, recorded: Path) -> None:
    folder = recorded.parents[1]
    same = [folder / f"{name}.yaml" for name in ("base", "other")]
    options = ["-w", folder / "workload.yaml", "-r", folder / "rules.yaml", "-n", "1", "--out", folder / "results"]
    assert kvbench_here("compare", *same, *options, "--resume", run).code in (1, 3)
    refused(kvbench_here("compare", "--resume", run, "-n", "3"), "other rounds")
    refused(kvbench_here("compare", "--resume", run, "-w", "demo", "-r", "demo"), "other workload and other rules")
    refused(kvbench_here("compare", *reversed(same), "--resume", run), "other profiles")
    assert "--out elsewhere changes nothing" in kvbench_here("compare", "--resume", run, "--out", "elsewhere").err
    allowed = ["--allow-difference", "engine.args.seed"]
    for arms in ([], same):
        assert kvbench_here("compare", *arms, *allowed, "--resume", run).code in (1, 3), "nothing differs in that"
    edit(run, allowed_differences=["other: engine.args.seed: 1 against 2"])
    refused(kvbench_here("compare", "--resume", run, *allowed), "other allowed differences")


def test_an_experiment_beside_resume_must_have_the_rules_that_the_run_began_with(run: Path, recorded: Path) -> None:
    folder = recorded.parents[1]
    rules = run / "rules.yaml"
    rules.write_text((folder / "rules.yaml").read_text())
    experiment = run / "experiment.yaml"
    members = {name: folder / f"{file}.yaml" for name, file in (("baseline", "base"), ("candidates", "other"))}
    members |= {"workload": folder / "workload.yaml", "rules": rules}
    experiment.write_text("experiment:\n" + "".join(f"  {name}: {file}\n" for name, file in members.items()))
    assert kvbench_here("compare", experiment, "--resume", run).code in (1, 3)
    rules.write_text(rules.read_text().replace("max_ratio: 3", "max_ratio: 30"))
    refused(kvbench_here("compare", experiment, "--resume", run), "other rules")


def test_a_dry_run_of_a_resumption_starts_and_changes_nothing(run: Path) -> None:
    before = (run / "run.json").read_bytes()
    answer = kvbench_here("compare", "--resume", run, "--dry-run")
    assert answer.code == 0
    assert "2 of at most 2 rounds recorded" in answer.out
    assert (run / "run.json").read_bytes() == before


def test_a_recording_of_one_arm_can_be_resumed_and_shown_again(tmp_path: Path) -> None:
    with stand_in() as (url, _):
        files = write(
            tmp_path,
            base=attached_profile("base", url),
            workload=WORKLOAD.replace("1s", "500ms").replace("2s", "1s"),
        )
        first = kvbench_here("run", files["base"], "-w", files["workload"], "--out", tmp_path / "results", "--json")
        assert first.code == 0, first.text
        (run,) = (tmp_path / "results").iterdir()
        shutil.rmtree(run / "arms")
        again = kvbench_here("compare", "--resume", run, "--json")
    shown = kvbench_here("report", run, "--json")
    assert again.code == shown.code == 0, again.text
    assert json.loads(again.out) == json.loads(shown.out)
    assert json.loads(first.out)["classes"].keys() == json.loads(again.out)["classes"].keys()


@pytest.mark.parametrize("kept", [0, 1], ids=["no round", "one round of one arm"])
def test_a_report_on_a_run_that_was_stopped_early_is_invalid_and_whole(run: Path, kept: int) -> None:
    rounds = json.loads((run / "run.json").read_text())["rounds"]
    edit(run, rounds=rounds[:kept], state="interrupted")
    answer = kvbench_here("report", run, "--json")
    assert answer.code == 4, answer.text
    assert json.loads(answer.out)["verdict"] == "INVALID"
    for name in ("verdict.json", "report.html", "report.md", "junit.xml"):
        assert (run / name).stat().st_size > 0


@pytest.mark.parametrize("columns", [1, 40])
def test_a_narrow_terminal_is_no_obstacle(run: Path, columns: int) -> None:
    answer = kvbench_here("report", run, env={"COLUMNS": str(columns)})
    assert answer.code in (1, 3), answer.text
    arms = ("cpu/demo-baseline", "cpu/demo-host-and-disk")
    planned = kvbench_here("compare", *arms, "-w", "demo", "-r", "demo", "--dry-run", env={"COLUMNS": str(columns)})
    assert planned.code == 0, planned.text


def test_a_report_makes_a_lost_ledger_again(run: Path) -> None:
    ledger = run / "arms" / "other" / "round-1" / "ledger.parquet"
    before = pd.read_parquet(ledger)
    assert len(before)
    assert set(before["evidence"]) <= set(EVIDENCE)
    ledger.unlink()
    first = json.loads(kvbench_here("report", run, "--json").out)
    pd.testing.assert_frame_equal(pd.read_parquet(ledger), before)
    (totals,) = [each for each in first["ledger"] if each["arm"] == "other"]
    assert totals["requests"] == len(before)
