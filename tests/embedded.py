"""The embedded vLLM as tests ask for it."""

from __future__ import annotations

from kvbench.engine.environment import EngineEnvironment

__all__ = ["embedded_engine"]


def embedded_engine(
    env: EngineEnvironment, *, max_model_len: int = 4096, port: int | None = None
) -> dict[str, object]:
    """`engine` of a profile: the tiny model in that environment."""
    flags = {"max-model-len": max_model_len} | ({} if port is None else {"port": port})
    return {
        "kind": "vllm",
        "environment": env.name,
        "version": env.vllm_version,
        "model": "tiny",
        "args": flags,
    }
