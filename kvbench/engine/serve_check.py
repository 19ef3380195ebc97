"""Proof that an engine environment serves: one start on the tiny model, one completion, one stop."""

from __future__ import annotations

import tempfile
from pathlib import Path

import httpx

from kvbench.engine.base import Endpoint, Launch, Progress
from kvbench.engine.environment import EngineEnvironment
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.errors import EngineError
from kvbench.spec.profile import Profile

__all__ = ["serve_once"]

PROMPT_TOKENS, OUTPUT_TOKENS = 200, 4


def serve_once(environment: EngineEnvironment, progress: Progress) -> None:
    """EngineError when the engine does not start or does not answer as asked; nothing is left behind."""
    with tempfile.TemporaryDirectory(prefix="kvbench-check-") as directory:
        launch = Launch(
            directory=Path(directory), log=Path(directory) / "engine.log", disk_directory=None, label="check"
        )
        engine = VllmEngine(_profile(environment.name), launch)
        try:
            _ask(engine.start(progress))
        finally:
            engine.stop()


def _profile(environment: str) -> Profile:
    return Profile.model_validate(
        {
            "name": "check",
            "engine": {
                "kind": "vllm",
                "environment": environment,
                "model": "tiny",
                "args": {"max-model-len": 2048},
                # Python takes the empty text as unset, so this start leaves everything it imports compiled.
                "env": {"PYTHONDONTWRITEBYTECODE": ""},
            },
            "tiers": {"device": {"blocks": 32}},
        }
    )


def _ask(endpoint: Endpoint) -> None:
    low, high = endpoint.token_id_range
    prompt = [low + i % (high - low + 1) for i in range(PROMPT_TOKENS)]
    body = {"model": endpoint.model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
    answer = httpx.post(
        f"{endpoint.base_url}/v1/completions", json=body | endpoint.extra_body, timeout=60.0, trust_env=False
    )
    usage = answer.json().get("usage") if answer.status_code == 200 else None
    if not usage or (usage["prompt_tokens"], usage["completion_tokens"]) != (PROMPT_TOKENS, OUTPUT_TOKENS):
        raise EngineError(
            f"the engine started, but answered HTTP {answer.status_code}: {answer.text[:300]}",
            do="remove its environment and run `kvbench engine install` again",
        )
