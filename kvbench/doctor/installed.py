"""What of a profile's engine and model is on this host. Starts no engine; asks docker or podman for the image, and
a command's Python for the engine's version."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

from kvbench.doctor.host import EngineFound, ModelFiles
from kvbench.engine.container_remains import ask_runtime, reason
from kvbench.engine.containers import container_of, hub_cache, service_version
from kvbench.engine.environment import find_or_none
from kvbench.engine.interpreter import installed_version
from kvbench.engine.lmcache import via_lmcache
from kvbench.engine.models import BUILT_IN_MODELS, model_directory
from kvbench.errors import EngineError, InputError
from kvbench.plan.geometry import read_config
from kvbench.plan.profile_geometry import kv_bytes_per_token
from kvbench.plan.weights import weights_of
from kvbench.spec.profile import Profile

__all__ = ["find_engine", "find_model"]

ANSWER_S = 5.0
REACH_S = 2.0

PACKAGES = {"vllm": "vllm", "tensorrt-llm": "tensorrt_llm"}
"""What is installed, by kind of engine."""

VERSION_LABEL, NAME_LABEL = "org.opencontainers.image.version", "org.opencontainers.image.ref.name"

HOW = "give engine.environment (see `kvbench engine list`), engine.command or engine.image"

WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "*.pt")
LFS = b"version https://git-lfs"
"""How a file begins that git keeps elsewhere and that was not fetched."""


def find_engine(profile: Profile) -> EngineFound | None:
    """None for engines that are part of kvbench."""
    spec = profile.engine
    if spec.kind == "emulated":
        return None
    if spec.kind == "attached":
        return _server(spec.base_url or "")
    if spec.environment is not None:
        return _environment(profile, spec.environment)
    if spec.image is not None:
        return _image(profile)
    if spec.command is None and spec.kind == "vllm":
        return EngineFound("vLLM", False, None, "the profile does not say how vLLM is started", HOW)
    command = spec.command[0] if spec.command else "trtllm-serve"
    there = shutil.which(command)
    detail = "" if there is not None else f"the engine's command {command} cannot be found"
    version = installed_version(command, PACKAGES[spec.kind], spec.env) if there is not None else None
    return EngineFound(
        f"command {command}", there is not None, version, detail, "correct engine.command, or install it"
    )


def _environment(profile: Profile, name: str) -> EngineFound:
    found = find_or_none(name)
    what, install = f"environment {name}", f"kvbench engine install {name}"
    version = found.vllm_version if found is not None else None
    if found is not None and via_lmcache(profile) and "lmcache" not in found.extras:
        lacks = f"the environment {name} has no LMCache"
        return EngineFound(what, False, version, lacks, f"run `{install} --with lmcache`")
    detail = "" if found is not None else f"the environment {name} is not installed"
    return EngineFound(what, found is not None, version, detail, f"run `{install}`")


def _server(url: str) -> EngineFound:
    """Whether anything listens at a server's address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    what, do = f"server {url}", "start it, or correct engine.base_url"
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=REACH_S):
            return EngineFound(what, True, None, "it takes connections", do)
    except OSError as error:
        return EngineFound(what, False, None, f"nothing answers at {url}: {error.strerror or error}", do)


def _image(profile: Profile) -> EngineFound:
    what = f"image {profile.engine.image}"
    try:
        container = container_of(profile)
    except InputError as error:
        return EngineFound(what, False, None, error.what, error.do or "")
    if container is None:
        return EngineFound(what, False, None, "the profile names no image", "")
    name = Path(container.runtime).name
    try:
        service_version(container, timeout_s=ANSWER_S)
    except EngineError as error:
        return EngineFound(what, False, None, error.what, error.do or "")
    code, told, errors = ask_runtime(container, "image", "inspect", profile.engine.image or "", timeout_s=ANSWER_S)
    if code == 0:
        return EngineFound(what, True, _labelled_version(told, PACKAGES[profile.engine.kind]), f"{name} has it", "")
    detail = f"{name} does not have the image yet, so the first start pulls it: {reason(code, errors)}"
    return EngineFound(what, False, None, detail, f"run `{name} pull` with it beforehand", got_on_use=True)


def _labelled_version(told: str, package: str) -> str | None:
    """What an image's labels say of its engine. Those of the image that it was built on are inherited, so a version
    that stands beside another name (`ubuntu`) is that one's."""
    try:
        entry = json.loads(told)[0]
        labels = (entry.get("Config") or {}).get("Labels") or entry.get("Labels") or {}
        version, named = labels.get(VERSION_LABEL), labels.get(NAME_LABEL)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    of_another = named is not None and package.partition("_")[0] not in str(named).lower()
    return None if version is None or of_another else str(version).removeprefix("v")


def find_model(profile: Profile) -> ModelFiles | None:
    """None where the model is the server's own, or emulated; then only its geometry matters."""
    spec = profile.engine
    if spec.kind == "emulated":
        return ModelFiles("emulated", True, False, (), 0, None, kv_bytes_per_token(profile))
    if spec.kind == "attached":
        return None
    where = model_directory(spec.model)
    folder = where if isinstance(where, Path) else _snapshot(where, spec.revision)
    on_use = spec.model in BUILT_IN_MODELS or not isinstance(where, Path)
    if folder is None or not (folder / "config.json").is_file():
        return ModelFiles(str(where), False, on_use, (), 0, None, None)
    files = sorted({file for pattern in WEIGHTS for file in folder.glob(pattern)})
    weights = sum(_size(file) for file in files if file.suffix == ".safetensors") or sum(map(_size, files))
    missing, parameters, per_token = list(_missing(folder, files)), None, None
    try:
        parameters = weights_of(read_config(folder), folder).active_parameters
        per_token = kv_bytes_per_token(profile)
    except (InputError, OSError, ValueError) as error:
        missing.append(f"config.json says too little: {error.what if isinstance(error, InputError) else error}")
    return ModelFiles(str(folder), True, on_use, tuple(missing), weights, parameters, per_token)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _snapshot(hub_id: str, revision: str | None) -> Path | None:
    """Where the hub's client keeps a model that it has downloaded."""
    model = hub_cache() / "hub" / f"models--{hub_id.replace('/', '--')}"
    try:
        commit = (model / "refs" / (revision or "main")).read_text(encoding="ascii").strip()
    except OSError:
        commit = revision or ""
    folder = model / "snapshots" / commit
    return folder if commit and folder.is_dir() else None


def _missing(folder: Path, files: list[Path]) -> list[str]:
    if not files:
        return ["no file of weights"]
    index = folder / "model.safetensors.index.json"
    wanted: set[str] = set()
    if index.is_file():
        try:
            wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return [f"{index.name} cannot be read"]
    gone = [f"{name} is missing" for name in sorted(wanted - {file.name for file in files})]
    empty = [
        f"{file.name} is {'a pointer of git-lfs' if _size(file) else 'empty'}" for file in files if _hollow(file)
    ]
    return [*gone, *empty]


def _hollow(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            begin = opened.read(len(LFS))
    except OSError:
        return True
    return begin in (b"", LFS)
