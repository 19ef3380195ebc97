"""Which engines a GPU host has, and the profiles that `gpu_check` runs on each: small forms of the shipped ones.

KVBENCH_GPU_COMMAND or KVBENCH_GPU_IMAGE (by digest) name vLLM, KVBENCH_GPU_TRTLLM_COMMAND or
KVBENCH_GPU_TRTLLM_IMAGE TensorRT-LLM; without them the PATH is looked through.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kvbench.engine.interpreter import installed_version
from kvbench.spec.profile import Profile

BLOCK, PROMPT, DEVICE_BLOCKS = 16, 512, 160
"""Five prompts fill the device, so the first ones have to come from a tier when they are sent again."""
TRTLLM_BLOCK = 32
VLLM = ("python3", "-m", "vllm.entrypoints.openai.api_server")


def vllm_keys() -> dict[str, object] | None:
    """How vLLM is started here; None when it is not here."""
    if image := os.environ.get("KVBENCH_GPU_IMAGE"):
        return {"image": image}
    command = shlex.split(os.environ.get("KVBENCH_GPU_COMMAND", "")) or list(VLLM)
    return {"command": command} if _imports(command[0], "vllm") else None


def trtllm_keys() -> dict[str, object] | None:
    """How TensorRT-LLM is started here; None when it is not here."""
    if image := os.environ.get("KVBENCH_GPU_TRTLLM_IMAGE"):
        return {"image": image}
    command = shlex.split(os.environ.get("KVBENCH_GPU_TRTLLM_COMMAND", "")) or ["trtllm-serve"]
    return {"command": command} if shutil.which(command[0]) is not None else None


def _imports(python: str, module: str) -> bool:
    found = shutil.which(python)
    if found is None:
        return False
    seen = subprocess.run([found, "-c", f"import {module}"], capture_output=True, timeout=120, check=False)
    return seen.returncode == 0


def why_no_vllm(engine: dict[str, object] | None) -> str | None:
    """A sentence for the page; None when it is here."""
    return None if engine is not None else "there is no vLLM (KVBENCH_GPU_COMMAND, KVBENCH_GPU_IMAGE)"


def why_no_lmcache(engine: dict[str, object] | None) -> str | None:
    """The same of LMCache, whose server runs beside the engine with the engine's own Python."""
    if engine is None:
        return why_no_vllm(engine)
    command = engine.get("command")
    if not isinstance(command, list):
        return "vLLM is in an image, and LMCache's server would have to run beside it"
    return None if _imports(command[0], "lmcache") else "LMCache is not beside this vLLM"


def why_no_trtllm(engine: dict[str, object] | None) -> str | None:
    """The same of TensorRT-LLM."""
    names = "KVBENCH_GPU_TRTLLM_COMMAND, KVBENCH_GPU_TRTLLM_IMAGE"
    return None if engine is not None else f"there is no trtllm-serve ({names})"


def vllm_profiles(engine: dict[str, object], model: str, disk: Path) -> Iterator[Profile]:
    """The same forms as the shipped ones, with tiers that a few prompts reach."""
    forms: dict[str, dict[str, object]] = {
        "baseline": {},
        "host": {"host": {"size": "256MiB", "via": "native"}},
        "host-offloading-connector": {"host": {"size": "256MiB", "via": "offloading", "policy": "arc"}},
        "host-and-disk": {
            "host": {"size": "3MiB", "via": "offloading"},
            "disk": {"path": str(disk), "read_threads": 4, "write_threads": 4, "size_limit": "2GiB"},
        },
        "fp8": {"device": {"blocks": DEVICE_BLOCKS, "kv_dtype": "fp8"}},
    }
    for name, tiers in forms.items():
        yield _vllm(name, engine, model, tiers)


def lmcache_profile(engine: dict[str, object], model: str) -> Profile:
    """LMCache's server beside vLLM."""
    return _vllm("lmcache-host", engine, model, {"host": {"size": "256MiB", "via": "lmcache"}})


def _vllm(name: str, engine: dict[str, object], model: str, tiers: dict[str, object]) -> Profile:
    args = {"max-model-len": 1024, "block-size": BLOCK, "dtype": "bfloat16"}
    spec = {"kind": "vllm", **engine, "model": model, "args": args, "ready_timeout": "120s"}
    return Profile.model_validate(
        {"name": name, "engine": spec, "tiers": {"device": {"blocks": DEVICE_BLOCKS}, **tiers}}
    )


def trtllm_profiles(engine: dict[str, object], model: str) -> Iterator[Profile]:
    """Without and with a host tier; 1.2 has no other."""
    spec = {
        "kind": "tensorrt-llm",
        **engine,
        "model": model,
        "args": {"max_seq_len": 1024, "tokens_per_block": TRTLLM_BLOCK},
        "ready_timeout": "180s",
    }
    device = {"blocks": DEVICE_BLOCKS * BLOCK // TRTLLM_BLOCK}
    for name, tiers in {"trtllm-baseline": {}, "trtllm-host": {"host": {"size": "256MiB"}}}.items():
        yield Profile.model_validate({"name": name, "engine": spec, "tiers": {"device": device, **tiers}})


def versions(vllm: dict[str, object] | None, trtllm: dict[str, object] | None) -> str:
    """`vLLM 0.32.0; TensorRT-LLM 1.2.1`, as far as they are here and tell."""
    told = [
        f"{name} {_version(engine, module)}"
        for name, engine, module in (("vLLM", vllm, "vllm"), ("TensorRT-LLM", trtllm, "tensorrt_llm"))
        if engine is not None
    ]
    return "; ".join(told)


def _version(engine: dict[str, object], package: str) -> str:
    command = engine.get("command")
    if not isinstance(command, list):
        return f"of {engine.get('image')}"
    return installed_version(command[0], package, {}) or "unknown"
