"""Proof that an engine environment serves: one start on the tiny model, one completion, one stop."""

from __future__ import annotations

import httpx

from kvbench.engine.base import Endpoint, Launch, Progress
from kvbench.engine.environment import EngineEnvironment
from kvbench.engine.scratch import scratch
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.errors import EngineError
from kvbench.load.outcome import encodable
from kvbench.load.usage import usage_of_answer
from kvbench.spec.profile import Profile

__all__ = ["serve_once"]

PROMPT_TOKENS, OUTPUT_TOKENS = 200, 4


def serve_once(environment: EngineEnvironment, progress: Progress) -> None:
    """EngineError when the engine does not start or does not answer as asked; nothing is left behind."""
    with scratch("check") as place:
        launch = Launch(place.directory, place.directory / "engine.log", disk_directory=None, label="check")
        engine = VllmEngine(_profile(environment.name), launch)
        try:
            why = _fault(engine.start(progress))
            if why is not None:
                raise EngineError(
                    f"the engine started, but {why}",
                    do=f"remove {environment.root} and run `kvbench engine install {environment.name}` again",
                )
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


def _fault(endpoint: Endpoint) -> str | None:
    """Ask once; what is wrong with the answer."""
    low, high = endpoint.token_id_range
    prompt = [low + i % (high - low + 1) for i in range(PROMPT_TOKENS)]
    body = {"model": endpoint.model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
    try:
        answer = httpx.post(
            f"{endpoint.base_url}/v1/completions", json=body | endpoint.extra_body, timeout=60.0, trust_env=False
        )
    except httpx.HTTPError as error:
        return f"gave no answer: {error or type(error).__name__}"
    try:
        document = answer.json() if answer.status_code == 200 else None
    except ValueError:
        document = None
    usage = usage_of_answer(document)
    if (usage.prompt_tokens, usage.completion_tokens) == (PROMPT_TOKENS, OUTPUT_TOKENS):
        return None
    return f"answered HTTP {answer.status_code}: {encodable(answer.text[:300])}"
