"""Plans beside a comparison: which arms they speak of, what is refused, what is kept and what reports say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.compare.prediction import Predicted, predicted
from kvbench.errors import InputError
from kvbench.plan.planned_arm import planned_arm
from kvbench.plan.planning import Traffic, whole_plan
from kvbench.plan.setting import Wishes
from kvbench.record.content import edited
from kvbench.record.run_directory import RunDirectory
from kvbench.spec.loading import Experiment, load_profile, load_rules, load_workload
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from tests.cli.files import RULES, WORKLOAD, write
from tests.cli.invoke import kvbench_here
from tests.plan.test_planning import probe_document

EMULATED = """\
name: {name}
engine:
  kind: emulated
  model: tiny
  args: {{max-model-len: 2048}}
  emulation: {{noise: {{launch: 0, level: 0, step: 0}}}}
tiers: {{device: {{blocks: 34}}{behind}}}
"""
HOST = ", host: {size: 48MiB}"


def arm(name: str, behind: str = "") -> str:
    return EMULATED.format(name=name, behind=behind)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return write(
        tmp_path,
        base=arm("base"),
        tiered=arm("tiered", HOST),
        larger=arm("larger", ", host: {size: 64MiB}"),
        workload=WORKLOAD.replace("40/s", "25/s"),
        other=WORKLOAD.replace("seed: 3", "seed: 4"),
        rules=RULES.replace("min: 2, max: 2", "min: 1, max: 1").replace("max: 5%", "max: 20%"),
    )


def experiment(files: dict[str, Path], *candidates: str) -> Experiment:
    read = tuple(load_profile(files[name]) for name in candidates or ("tiered",))
    return Experiment(
        load_profile(files["base"]), read, load_workload(files["workload"]), load_rules(files["rules"])
    )


def plan(folder: Path, profile: Profile, workload: Workload, name: str = "plan", **changes: Any) -> Path:
    document = whole_plan(Traffic(workload), planned_arm(profile, Wishes(), None), None) | changes
    path = folder / f"{name}.json"
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return path


def test_a_plan_of_the_candidate_tells_of_the_baseline_as_well(files: dict[str, Path], tmp_path: Path) -> None:
    """Given a plan of tiers behind a device, when the baseline is that device alone, both arms are predicted."""
    asked = experiment(files)
    path = plan(tmp_path, asked.candidates[0], asked.workload)
    told = predicted(asked, [path], None)
    base, tiered = told.records
    document = json.loads(path.read_text())
    assert (base.arm, tiered.arm) == ("base", "tiered")
    assert base.shares == document["device_only"]["shares"]
    assert tiered.shares == document["prediction"]["shares"]
    assert tiered.ttft_p50_s["all"] == document["prediction"]["ttft_s"]["all"]["p50"]
    assert tiered.costs == document["costs"]["source"]
    assert told.plans == {"plan-1.json": document}


def test_every_arm_has_the_plan_that_was_made_for_it(files: dict[str, Path], tmp_path: Path) -> None:
    asked = experiment(files, "tiered", "larger")
    paths = [plan(tmp_path, each, asked.workload, each.name) for each in (asked.candidates[1], asked.baseline)]
    told = {record.arm: record.plan for record in predicted(asked, paths, None).records}
    assert told == {"base": "plan-2.json", "larger": "plan-1.json"}, "nothing is said of the arm without a plan"


def test_without_plans_nothing_is_predicted(files: dict[str, Path]) -> None:
    assert predicted(experiment(files), [], None) == Predicted()


def test_a_plan_of_something_else_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    asked = experiment(files)
    tiered = asked.candidates[0]
    other = load_workload(files["other"])
    wrong = {
        "another workload": plan(tmp_path, tiered, other, "w"),
        r"another profile \('larger'\) than any of the arms \(base, tiered\)": plan(
            tmp_path, experiment(files, "larger").candidates[0], asked.workload, "p", device_only=None
        ),
        "for which profile and workload": plan(tmp_path, tiered, asked.workload, "old", made_for=None),
        "expected the JSON that `kvbench plan` writes": files["rules"],
        "cannot be read": tmp_path / "nowhere.json",
    }
    for says, path in wrong.items():
        with pytest.raises(InputError, match=says) as refused:
            predicted(asked, [path], None)
        assert str(path) in str(refused.value)
    with pytest.raises(InputError, match="leave one of them out"):
        predicted(asked, [wrong["another workload"]], tmp_path / "probe.json")


def test_a_plan_made_for_a_trace_is_no_plan_for_a_workload(files: dict[str, Path], tmp_path: Path) -> None:
    asked = experiment(files)
    path = plan(tmp_path, asked.candidates[0], asked.workload)
    document = json.loads(path.read_text())
    document["made_for"]["workload"] = None
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="made for a trace"):
        predicted(asked, [path], None)


def test_with_a_probe_every_arm_is_planned_before_the_run(files: dict[str, Path], tmp_path: Path) -> None:
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps(probe_document()))
    told = predicted(experiment(files, "tiered", "larger"), [], probe)
    assert [record.arm for record in told.records] == ["base", "tiered", "larger"]
    assert set(told.plans) == {"plan-base.json", "plan-tiered.json", "plan-larger.json"}
    assert {record.costs for record in told.records} == {"probe probe.json"}
    assert {record.rounds for record in told.records} == {1}, "as the rules ask for at least"
    assert told.records[0].shares["host"] == 0
    assert (told.records[1].shares["host"] or 0) > 0.1


def test_a_comparison_keeps_the_plan_and_every_report_holds_it_against_the_run(
    files: dict[str, Path], tmp_path: Path
) -> None:
    made = kvbench_here(
        "plan", "--profile", files["tiered"], "--workload", files["workload"], "--out", tmp_path / "plan.json"
    )
    assert made.code == 0, made.text
    arms = ("compare", files["base"], files["tiered"], "-w", files["workload"], "-r", files["rules"])
    shown = kvbench_here(*arms, "--plan", tmp_path / "plan.json", "--dry-run")
    assert "predicted of tiered" in shown.out
    assert kvbench_here(*arms, "--plan", files["rules"]).code == 2
    answer = kvbench_here(*arms, "--plan", tmp_path / "plan.json", "--out", tmp_path / "results", "--json")
    assert answer.code in (0, 1, 3), answer.text
    (run,) = (tmp_path / "results").iterdir()
    verdict = json.loads(answer.out)
    assert {row["rounds"] for row in verdict["prediction"]} == {3}
    rows = {(row["arm"], row["source"]): row for row in verdict["prediction"]}
    assert {arm for arm, _ in rows} == {"base", "tiered"}
    for row in rows.values():
        if row["share_error_points"] is not None:
            error = 100 * (row["predicted_share"] - row["measured_share"])
            assert row["share_error_points"] == pytest.approx(error)
    assert rows["tiered", "host"]["measured_share"] > 0
    assert (run / "plan-1.json").read_text() == (tmp_path / "plan.json").read_text()
    assert json.loads((run / "verdict.json").read_text())["prediction"] == verdict["prediction"]
    # and again from the stored run alone, in every format
    again = kvbench_here("report", run)
    assert "Predicted and measured" in again.out
    for page in ("report.md", "report.html"):
        assert "Predicted and measured" in (run / page).read_text()
    # and a prediction that is improved afterwards shows itself
    manifest = RunDirectory(run).read_manifest()
    better = manifest.predictions[0].model_copy(update={"shares": {"device": 1.0}})
    assert edited(manifest) == []
    assert edited(manifest.model_copy(update={"predictions": [better]})) == [
        "prediction for base", "prediction for tiered",
    ]  # fmt: skip
    assert kvbench_here("compare", "--resume", run, "--plan", tmp_path / "plan.json").code == 2
