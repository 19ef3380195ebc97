"""Run with an engine's own Python: has TensorRT-LLM's models read the YAML on stdin, and prints what they say."""

import json
import sys


def main() -> dict[str, object]:
    """`refused` with the reason, `absent` where it cannot be imported, else `defaults` of what is not said."""
    try:
        import yaml
        from tensorrt_llm.llmapi import KvCacheConfig, TorchLlmArgs  # type: ignore[import-not-found]
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being imported here is the answer
        return {"absent": f"{type(error).__name__}: {error}"}
    options = yaml.safe_load(sys.stdin)
    cache = options.pop("kv_cache_config")
    unknown = sorted(set(options) - set(TorchLlmArgs.model_fields))
    if unknown:
        return {"refused": f"it has no {', '.join(unknown)}"}
    try:
        KvCacheConfig(**cache)
    except ValueError as error:
        return {"refused": str(error)}
    fields = KvCacheConfig.model_fields
    return {"defaults": {name: repr(field.default) for name, field in fields.items() if name not in cache}}


if __name__ == "__main__":
    print(json.dumps(main()))
