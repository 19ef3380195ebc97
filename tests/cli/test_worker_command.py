"""`kvbench worker` and the options that call for it: what is refused, and the manifest that starts it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
import yaml

from kvbench.cli import app
from kvbench.errors import InputError
from kvbench.spec.crew import Address, Crew, make_crew, parse_address, worker_secret
from tests.cli.invoke import kvbench, kvbench_here

MANIFEST = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "workers.yaml"
SECRET = "KVBENCH_TEST_SECRET"


def test_nothing_asked_for_is_one_process_here() -> None:
    assert make_crew(None, None, None) is None
    assert Crew().single
    assert make_crew(1, None, None) == Crew()


def test_what_is_asked_for() -> None:
    assert make_crew(4, None, None) == Crew(local=4)
    assert make_crew(0, 3, None) == Crew(local=0, joining=3, bind="127.0.0.1:5557")
    crew = make_crew(None, 2, "[::1]:5600")
    assert crew == Crew(local=1, joining=2, bind="[::1]:5600")
    assert crew.address == Address("::1", 5600)


@pytest.mark.parametrize(
    ("workers", "expected", "bind", "words"),
    [
        (0, 0, None, "nobody would drive"),
        (0, None, None, "nobody would drive"),
        (200, 100, None, "more than 256"),
        (2, None, "127.0.0.1:5557", "--expect-workers"),
        (1, 1, "5557", "HOST:PORT"),
        (1, 1, "host:70000", "HOST:PORT"),
        (1, 1, "127.0.0.1:0", "needs a port"),
    ],
)
def test_what_does_not_fit_is_refused(workers: int, expected: int | None, bind: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_crew(workers, expected, bind)


@pytest.mark.parametrize("bind", ["0.0.0.0:5557", "10.0.0.5:5557", "*:5557", "[::]:5557", "some-host:5557"])
@pytest.mark.parametrize("secret", ["", "short"])
def test_beyond_loopback_a_secret_is_required_and_why_is_said(
    bind: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, secret)
    with pytest.raises(InputError, match="made-up measurements") as raised:
        make_crew(1, 1, bind, SECRET)
    assert SECRET in str(raised.value)
    monkeypatch.setenv(SECRET, "0123456789abcdef")
    assert make_crew(1, 1, bind, SECRET) is not None
    assert worker_secret(SECRET, parse_address(bind, "x"), "x") == b"0123456789abcdef"


def test_the_commands_refuse_it_before_anything_starts() -> None:
    env = {"KVBENCH_WORKER_SECRET": ""}
    answer = kvbench_here("worker", "--master", "10.0.0.5:5557", env=env)
    assert answer.code == 2
    assert "KVBENCH_WORKER_SECRET" in answer.err
    answer = kvbench_here("run", "cpu/baseline", "--expect-workers", "1", "--master-bind", "0.0.0.0:5557", env=env)
    assert answer.code == 2
    assert "KVBENCH_WORKER_SECRET" in answer.err
    assert kvbench_here("worker", "--master", "127.0.0.1:5557", "--wait", "soon").code == 2


def test_a_worker_without_a_master_leaves_when_its_time_is_up() -> None:
    answer = kvbench("worker", "--master", "127.0.0.1:9", "--wait", "2s")
    assert answer.code == 0
    assert "no round began within 2 s" in answer.err


def test_the_manifest_starts_workers_as_the_command_line_takes_them() -> None:
    (job,) = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= job["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    program, name = container["command"]
    assert program == "kvbench"
    command = typer.main.get_command(app).commands[name]
    with command.make_context(name, list(container["args"])) as context:
        assert parse_address(context.params["master"], "--master").port == 5557
        secret = context.params["worker_secret_env"]
    assert secret in {each["name"] for each in container["env"]}
    assert all("secretKeyRef" in each["valueFrom"] for each in container["env"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
    assert container["securityContext"]["runAsNonRoot"] is True
