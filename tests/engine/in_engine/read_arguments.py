"""Run in an engine's environment: has vLLM's own parser and configuration read command lines, and prints what they
made of them. Reads a JSON list of argument lists on stdin; those through LMCache, whose connectors import a package
that need not be here, are parsed only."""

import ast
import contextlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path


def parsed(parser: object, argv: list[str]) -> dict:
    args = parser.parse_args(argv)  # type: ignore[attr-defined]
    names = (
        *("kv_offloading_size", "kv_offloading_backend", "gpu_memory_utilization", "num_gpu_blocks_override"),
        *("kv_cache_dtype", "prefix_caching_hash_algo", "enable_prefix_caching", "block_size", "max_model_len"),
        *("served_model_name", "port", "host", "enable_prompt_tokens_details", "revision", "tensor_parallel_size"),
    )
    found = {name: getattr(args, name) for name in names}
    found["kv_transfer_config"] = plain(args.kv_transfer_config)
    found["kv_events_config"] = plain(args.kv_events_config)
    return found


def plain(config: object) -> object:
    if config is None:
        return None
    names = ("kv_connector", "kv_role", "engine_id", "kv_connector_extra_config", "endpoint", "topic", "publisher")
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def configured(parser: object, argv: list[str]) -> dict:
    """What the engine's configuration becomes, defaults and short forms filled in."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    args = AsyncEngineArgs.from_cli_args(parser.parse_args(argv))  # type: ignore[attr-defined]
    config = args.create_engine_config()
    cache = (
        *("cache_dtype", "gpu_memory_utilization", "num_gpu_blocks_override", "enable_prefix_caching"),
        *("prefix_caching_hash_algo", "block_size"),
    )
    return {
        "transfer": plain(config.kv_transfer_config),
        "spec": spec_of(config.kv_transfer_config),
        "cache": {name: getattr(config.cache_config, name) for name in cache},
        "ranks": config.parallel_config.tensor_parallel_size,
    }


def spec_of(transfer: object) -> str | None:
    """The class that will hold the host tier."""
    if transfer is None or transfer.kv_connector != "OffloadingConnector":  # type: ignore[attr-defined]
        return None
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    extra = transfer.kv_connector_extra_config  # type: ignore[attr-defined]
    return OffloadingSpecFactory.get_spec_cls(extra).__name__


def secondary(tier: dict) -> dict:
    """Whether a secondary tier's own class takes these keys, and what its factory makes of its back-pressure."""
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    made: dict = {}

    class Recorder:
        def __init__(self, **given: object) -> None:
            made.update(given)

    real, not_here = SecondaryTierFactory.get_tier_class, None
    try:
        signature = inspect.signature(real(tier).__init__)
    except ImportError as error:
        signature, not_here = None, str(error)
    SecondaryTierFactory.get_tier_class = classmethod(lambda _cls, _config: Recorder)  # type: ignore[method-assign]
    try:
        SecondaryTierFactory.create_secondary_tier(tier, memoryview(b""), None)
    finally:
        SecondaryTierFactory.get_tier_class = real  # type: ignore[method-assign]
    unknown: set[str] = set()
    if signature is not None:
        signature.bind(None, **made)
    else:
        unknown = made.keys() - written_parameters(f"vllm.v1.kv_offload.tiering.{tier['type']}.manager")
    detector = made["backpressure_detector"]
    return {
        "tier": type(detector).__name__ if detector is not None else None,
        "not_here": not_here,
        "unknown": sorted(unknown),
    }


def written_parameters(module: str) -> set[str]:
    """What the tier's class takes, by its text: the module imports a package that is not here."""
    text = Path(importlib.util.find_spec(module).origin).read_text()  # type: ignore[union-attr, arg-type]
    (tier,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("SecondaryTierManager")
    )
    (init,) = (node for node in tier.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return {parameter.arg for parameter in (*init.args.args, *init.args.kwonlyargs)}


def main() -> list[dict]:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    answers = []
    for argv in json.load(sys.stdin):
        answer = {"parsed": parsed(parser, argv), "configured": None, "secondary": []}
        transfer = answer["parsed"]["kv_transfer_config"] or {}
        by_lmcache = "LMCache" in (transfer.get("kv_connector") or "")
        if not by_lmcache and answer["parsed"]["kv_offloading_backend"] != "lmcache":
            answer["configured"] = configured(parser, argv)
        for tier in (transfer.get("kv_connector_extra_config") or {}).get("secondary_tiers", []):
            answer["secondary"].append(secondary(tier))
        answers.append(answer)
    return answers


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # vLLM logs there
        found = main()
    print(json.dumps(found))
