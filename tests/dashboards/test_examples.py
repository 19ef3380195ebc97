"""The files under `deploy/`: each parses, has what its system asks for, and calls kvbench as it can be called."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import typer
import yaml

from kvbench.canary.judge import judge_canary
from kvbench.canary.serve import GateServer
from kvbench.cli import app
from kvbench.ending import LATER
from kvbench.spec.canary import load_canary
from kvbench.spec.loading import load_profile
from kvbench.spec.shipped import shipped_folder
from tests.canary.build import Truth, group, observed

DEPLOY = shipped_folder("deploy")
FILES = sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*.y*ml"))
CLUSTER = [name for name in FILES if not name.startswith(("github/", "gitlab/"))]
VERDICTS = {"GO", "NO_GO", "INCONCLUSIVE", "INVALID"}


def documents(name: str) -> list[dict[str, object]]:
    return [document for document in yaml.safe_load_all((DEPLOY / name).read_text()) if document is not None]


def values(node: object, key: str) -> Iterator[object]:
    """Everything that stands under `key`, wherever."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(node, list):
        for entry in node:
            yield from values(entry, key)


def calls(name: str) -> Iterator[list[str]]:
    """Every call of kvbench in a file: of containers, and in lines of shell."""
    for document in documents(name):
        for containers in (*values(document, "containers"), *values(document, "initContainers")):
            for container in containers:  # type: ignore[attr-defined]
                words = [*map(str, container["command"]), *map(str, container.get("args", []))]
                yield from _shell(words[-1]) if words[0] == "/bin/sh" else iter([words[1:]])
        for script in (*values(document, "run"), *values(document, "script")):
            yield from _shell("\n".join(script) if isinstance(script, list) else str(script))


def _shell(text: str) -> Iterator[list[str]]:
    for line in re.findall(r"^\s*kvbench (.+)$", text, re.MULTILINE):
        yield shlex.split(line.split("||")[0])


@pytest.mark.parametrize("name", FILES)
def test_every_call_of_kvbench_is_one_that_it_understands(name: str) -> None:
    found = list(calls(name))
    assert found or name.startswith("flagger/")
    group = typer.main.get_command(app)
    for command, *arguments in found:
        if command in LATER:
            continue
        known = group.get_command(None, command)  # type: ignore[attr-defined]
        assert known is not None, f"kvbench {command}"
        context = known.make_context(command, list(arguments))
        assert context.args == []


@pytest.mark.parametrize("name", CLUSTER)
def test_every_object_of_a_cluster_is_named_and_typed(name: str) -> None:
    for document in documents(name):
        assert document["apiVersion"]
        assert re.fullmatch(r"[A-Z]\w+", str(document["kind"]))
        metadata = document["metadata"]
        assert isinstance(metadata, dict)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", metadata["name"])


@pytest.mark.parametrize("name", [name for name in CLUSTER if list(values(documents(name), "containers"))])
def test_pods_run_with_least_rights_and_mount_what_they_name(name: str) -> None:
    for pod in (
        spec for spec in values(documents(name), "spec") if isinstance(spec, dict) and "containers" in spec
    ):
        assert pod["automountServiceAccountToken"] is False
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            rights = container["securityContext"]
            assert rights["runAsNonRoot"] is True
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def claims(pod: dict[str, object]) -> set[str]:
    return {str(claim["claimName"]) for claim in values(pod, "persistentVolumeClaim")}  # type: ignore[index]


def test_every_claim_that_a_pod_mounts_is_there_to_be_applied() -> None:
    objects = [document for name in CLUSTER for document in documents(name)]
    made = {
        document["metadata"]["name"]: document["spec"]  # type: ignore[index]
        for document in objects
        if document["kind"] == "PersistentVolumeClaim"
    }
    mounted = {claim for document in objects for claim in claims(document)}
    assert mounted
    assert mounted == set(made)
    for spec in made.values():
        assert spec["accessModes"] == ["ReadWriteOnce"]  # type: ignore[index]
        assert re.fullmatch(r"\d+Gi", spec["resources"]["requests"]["storage"])  # type: ignore[index]


def test_who_mounts_a_claim_may_write_on_it() -> None:
    """A new volume is root's; only `fsGroup` gives it to the group of a pod that is not."""
    pods = [
        spec
        for name in CLUSTER
        for spec in values(documents(name), "spec")
        if isinstance(spec, dict) and "containers" in spec and claims(spec)
    ]
    assert len(pods) == 3
    for pod in pods:
        group = pod["securityContext"]["fsGroup"]
        users = {
            container["securityContext"]["runAsUser"]
            for container in [*pod["containers"], *pod.get("initContainers", [])]
        }
        assert users == {group}


@pytest.mark.parametrize("name", CLUSTER)
def test_selectors_find_their_pods(name: str) -> None:
    for document in documents(name):
        spec = document.get("spec")
        if isinstance(spec, dict) and "selector" in spec and document["kind"] == "Deployment":
            assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("github/")])
def test_a_workflow_of_github_has_triggers_runners_and_steps(name: str) -> None:
    (workflow,) = documents(name)
    assert workflow[True], "`on`, which YAML 1.1 reads as true"  # type: ignore[index]
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert isinstance(jobs, dict)
    for job in jobs.values():
        assert job["runs-on"]
        assert job["timeout-minutes"] > 0
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        assert all(re.fullmatch(r"[\w.-]+/[\w./-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)
        assert set(job.get("needs", "").split()) <= set(jobs)


def test_the_nightly_of_github_fails_when_either_verdict_does() -> None:
    (workflow,) = documents("github/nightly.yml")
    steps = {step.get("id"): step for step in workflow["jobs"]["nightly"]["steps"]}  # type: ignore[index]
    decided = next(step for step in workflow["jobs"]["nightly"]["steps"] if step.get("name") == "Verdict")  # type: ignore[index]
    for name in ("compare", "nights"):
        assert steps[name]["continue-on-error"] is True
        assert f"steps.{name}.outcome == 'failure'" in decided["if"]


def test_jobs_of_gitlab_are_in_stages_that_exist() -> None:
    (pipeline,) = documents("gitlab/kvbench.gitlab-ci.yml")
    jobs = {name: job for name, job in pipeline.items() if isinstance(job, dict) and "script" in job}
    assert {"selftest", "nightly", "gate"} == set(jobs)
    assert {job["stage"] for job in jobs.values()} <= set(pipeline["stages"])  # type: ignore[call-overload]
    assert jobs["nightly"]["script"][-1] == "exit $code"


def written(call: list[str]) -> set[str]:
    """Reports that a call of the gate writes."""
    return {after for option, after in pairwise(call) if option in ("--junit", "--markdown")}


def test_what_the_gate_writes_is_kept_and_a_rollout_has_a_state_of_its_own() -> None:
    (workflow,) = documents("github/gate.yml")
    uploads = [
        step
        for step in workflow["jobs"]["gate"]["steps"]
        if "upload-artifact" in step.get("uses", "")  # type: ignore[index]
    ]
    assert all(step["if"] == "always()" for step in uploads)
    (pipeline,) = documents("gitlab/kvbench.gitlab-ci.yml")
    artifacts = pipeline["gate"]["artifacts"]  # type: ignore[index]
    assert artifacts["when"] == "always"
    kept = {
        "github/gate.yml": set("\n".join(step["with"]["path"] for step in uploads).split()),
        "gitlab/kvbench.gitlab-ci.yml": {*artifacts["paths"], artifacts["reports"]["junit"]},
    }
    for name, files in kept.items():
        (call,) = (call for call in calls(name) if call[0] == "gate")
        assert written(call) == {"gate.xml", "gate.md"} == files
        assert re.search(r"\$\w+_ID$", call[call.index("--state") + 1])


def test_argo_passes_on_go_alone_and_never_on_what_is_undecided() -> None:
    web, job = documents("argo-rollouts/analysis-template.yaml")
    (metric,) = web["spec"]["metrics"]  # type: ignore[index]
    passes, fails = (set(re.findall(r'"(\w+)"', metric[key])) for key in ("successCondition", "failureCondition"))
    assert (passes, fails) == ({"GO"}, {"NO_GO", "INVALID"})
    assert passes | fails < VERDICTS
    assert metric["inconclusiveLimit"] == metric["count"] - 1
    assert metric["provider"]["web"]["jsonPath"] == "{$.verdict}"
    (metric,) = job["spec"]["metrics"]  # type: ignore[index]
    assert metric["provider"]["job"]["spec"]["backoffLimit"] == 0


def test_flagger_promotes_on_go_and_rolls_back_on_no_go() -> None:
    (canary,) = documents("flagger/canary.yaml")
    hooks = {hook["type"]: hook["url"] for hook in canary["spec"]["analysis"]["webhooks"]}  # type: ignore[index]
    assert hooks["confirm-promotion"].endswith("/verdict/GO")
    assert hooks["rollback"].endswith("/verdict/NO_GO")


def test_the_gate_answers_as_flagger_asks() -> None:
    with (
        GateServer("127.0.0.1", 0, "g", every_s=15, armed=False) as gate,
        httpx.Client(base_url=gate.address) as client,
    ):
        undecided = {word: client.post(f"/verdict/{word}", json={"name": "vllm"}).status_code for word in VERDICTS}
        assert undecided == {"INCONCLUSIVE": 200, "GO": 409, "NO_GO": 409, "INVALID": 409}
        assert client.get("/verdict/GO").status_code == 409


def test_a_gate_that_cannot_read_is_still_ready_to_say_what_it_knows() -> None:
    """Its pod must not leave the service meanwhile: five answers that fail abort a rollout of Argo."""
    probes = list(values(documents("kubernetes/gate.yaml"), "readinessProbe"))
    (path,) = (probe["httpGet"]["path"] for probe in probes)  # type: ignore[index]
    asked = [str(web["url"]) for web in values(documents("argo-rollouts/analysis-template.yaml"), "web")]  # type: ignore[index]
    with (
        GateServer("127.0.0.1", 0, "g", every_s=15, armed=False) as gate,
        httpx.Client(base_url=gate.address) as client,
    ):
        assert client.get(path).status_code == 503, "nothing was judged yet"
        blind = judge_canary(observed(group("c", Truth(), seconds=60), seconds=60))
        gate.show(replace(gate.seen, verdict=blind, reads_failed=99, last_read_s=None))
        assert client.get("/healthz").status_code == 503
        assert client.get(path).status_code == 200
        told = [client.get(url.removeprefix("{{args.gate}}")).json()["verdict"] for url in asked]
        assert told == ["INCONCLUSIVE"]


def test_profiles_within_the_examples_are_profiles(tmp_path: Path) -> None:
    config = documents("kubernetes/compare-job.yaml")[0]
    for name, text in config["data"].items():  # type: ignore[attr-defined]
        (tmp_path / name).write_text(text)
        assert load_profile(tmp_path / name).engine.kind == "attached"


def test_the_canary_within_the_examples_is_one(tmp_path: Path) -> None:
    config = documents("kubernetes/gate.yaml")[0]
    (tmp_path / "canary.yaml").write_text(config["data"]["canary.yaml"])  # type: ignore[index]
    assert load_canary(tmp_path / "canary.yaml").canary.name == "kv-tier-canary"
