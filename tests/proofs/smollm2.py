"""Proof that `smollm2` is made and served: the real instruct model says in words what only real weights know.

`python -m tests.proofs.smollm2` makes the model in KVBENCH_HOME if it is not there (92 MB from the Python index,
about three minutes on two cores), starts it, asks, and stops it; it exits with 1 when an answer is wrong.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import httpx

from kvbench.engine import models
from kvbench.engine.base import Endpoint, Launch
from kvbench.engine.environment import install
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.spec.profile import Profile

PROFILE = {
    "name": "smollm2",
    "engine": {
        "kind": "vllm",
        "environment": "vllm-cpu",
        "version": "0.32.0",
        "model": "smollm2",
        "args": {"max-model-len": 2048},
    },
    "tiers": {"device": {"blocks": 64}},
}
QUESTIONS = {"The capital of France is": "Paris", "Two plus two is": "four", "The opposite of hot is": "cold"}


def say(line: str) -> None:
    print(line, flush=True)


def checked(name: str, holds: bool, seen: object) -> bool:
    say(f"{'holds' if holds else 'FAILS'}  {name}: {seen}")
    return holds


def the_files_are_complete() -> bool:
    where = models.model_directory("smollm2")
    config = json.loads((Path(where) / "config.json").read_text())
    described = (config["model_type"], config["num_hidden_layers"], config["vocab_size"])
    return checked("SmolLM2-135M, nothing quantised", described == ("llama", 30, 49152), described) and checked(
        "no quantisation is left in its configuration", "quantization_config" not in config, sorted(config)[:3]
    )


def it_answers(endpoint: Endpoint) -> bool:
    right = []
    with httpx.Client(base_url=endpoint.base_url, timeout=120, trust_env=False) as client:
        for question, expected in QUESTIONS.items():
            body = {"model": endpoint.model, "prompt": question, "max_tokens": 12, "temperature": 0}
            text = client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]
            right.append(checked(f"{question} ... {expected}", expected.lower() in text.lower(), repr(text)))
        low, high = endpoint.token_id_range
        body = {"model": endpoint.model, "prompt": [*range(low, low + 64), high], "max_tokens": 4}
        usage = client.post("/v1/completions", json=body | endpoint.extra_body).raise_for_status().json()["usage"]
        right.append(checked("prompts as token ids keep their length", usage["prompt_tokens"] == 65, usage))
    return all(right)


def main() -> int:
    """0 when everything holds."""
    install("vllm-cpu", progress=say)
    with tempfile.TemporaryDirectory(prefix="kvbench-smollm2-") as folder:
        launch = Launch(Path(folder), Path(folder) / "engine-1.log", None, "smollm2")
        engine = VllmEngine(Profile.model_validate(PROFILE), launch)
        try:
            endpoint = engine.start(say)
            effective = engine.effective()
            proven = checked("it is what the profile asks for", effective.differences == (), effective.differences)
            holds = [proven, the_files_are_complete(), it_answers(endpoint)]
        finally:
            engine.stop()
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
