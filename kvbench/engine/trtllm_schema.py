"""Has the very TensorRT-LLM that will run read the YAML that it will get, where it can be imported.

Its answer is kept under KVBENCH_HOME: importing it takes half a minute. Times in seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kvbench.engine.base import Progress
from kvbench.engine.container_remains import Container
from kvbench.engine.containers import by_client, short_command
from kvbench.engine.environment import kvbench_home
from kvbench.engine.interpreter import installation, python_of
from kvbench.engine.short_runs import run_shortly
from kvbench.errors import InputError
from kvbench.spec.profile import Profile

__all__ = ["check_with_engine"]

READ_S = 180.0
SCRIPT = "read_trtllm_yaml.py"
PACKAGE = "tensorrt_llm"


def check_with_engine(
    profile: Profile, text: str, command: Sequence[str], container: Container | None, progress: Progress
) -> dict[str, str] | None:
    """Its defaults for keys that `text` leaves out; None when it cannot be imported. InputError if it refuses."""
    script = (resources.files("kvbench.engine") / "model_scripts" / SCRIPT).read_text()
    if container is not None:
        call, installed = short_command(profile, container, ("python3", "-c", script)), ""
    else:
        python = python_of(command[0])
        if python is None:
            return None
        call = (python, "-c", script)
        installed = installation(python, PACKAGE, {**os.environ, **profile.engine.env})
    answer = _answer(profile, call, container, installed, text, progress)
    if "refused" in answer:
        raise InputError(
            f"profile {profile.name}: TensorRT-LLM refuses its YAML: {str(answer['refused'])[:600]}",
            key=("engine", "args"),
            do="correct the profile, or pin the version that has these keys",
        )
    defaults = answer.get("defaults")
    return {str(k): str(v) for k, v in defaults.items()} if isinstance(defaults, dict) else None


def _answer(
    profile: Profile,
    call: Sequence[str],
    container: Container | None,
    installed: str,
    text: str,
    progress: Progress,
) -> dict[str, Any]:
    changed = Path(call[0]).stat().st_mtime_ns if Path(call[0]).exists() else 0
    about = [*call, installed, text, profile.engine.version, changed, sorted(profile.engine.env.items())]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    cache = kvbench_home() / "trtllm-yaml" / f"{key}.json"
    try:
        kept = json.loads(cache.read_text())
    except (OSError, ValueError):
        kept = None
    if isinstance(kept, dict):
        return kept
    progress(f"{profile.name}: having TensorRT-LLM read its YAML (once for each)")
    env = profile.engine.env if container is None else by_client(profile)
    answer = _ask(call, container, text, env)
    if "absent" in answer:
        progress(
            f"{profile.name}: TensorRT-LLM did not read its YAML ({str(answer['absent'])[:200]}); the start will"
        )
    else:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(answer))
    return answer


def _ask(call: Sequence[str], container: Container | None, text: str, env: Mapping[str, str]) -> dict[str, Any]:
    """What cannot be asked is absent: the server itself will say what it does not take."""
    try:
        done = run_shortly(call, container=container, env=env, timeout_s=READ_S, given=text)
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as error:
        return {"absent": f"{type(error).__name__}: {error}"}
    return answer if isinstance(answer, dict) else {"absent": "no answer"}
