"""An emulated engine behind vLLM's command line, for tests in which tiers have to reach the engine by flags.

`python -m tests.standin.emulated_vllm --model M --port P ...`; knows the flags of vLLM 0.32.0, heeds a few. A token
of its KV is 1 KiB, as that of the model `tiny` is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import kvbench
from kvbench.engine.emulated import server

FLAGS = Path(kvbench.__file__).parent / "engine" / "known_flags" / "vllm-0.32.0.json"


def main() -> None:
    if "--help=all" in sys.argv:
        for name, choices in json.loads(FLAGS.read_text()).items():
            print(f"  --{name} {{{','.join(choices)}}}" if choices else f"  --{name} {name.upper()}")
        return
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--num-gpu-blocks-override", type=int, required=True)
    parser.add_argument("--kv-offloading-size", type=float, help="GiB")
    parser.add_argument("--kv-transfer-config", type=json.loads)
    parser.add_argument("--block-size", type=int, default=128)
    given, _ = parser.parse_known_args()
    tiers: dict[str, object] = {"device": {"blocks": given.num_gpu_blocks_override}}
    if given.kv_offloading_size is not None:
        tiers["host"] = {"size": int(given.kv_offloading_size * 2**30)}
    if given.kv_transfer_config is not None:
        extra = given.kv_transfer_config.get("kv_connector_extra_config", {})
        tiers |= {"host": {"size": extra["cpu_bytes_to_use"]}} if "cpu_bytes_to_use" in extra else {}
        tiers |= {"disk": {"path": tempfile.gettempdir()}} if "secondary_tiers" in extra else {}
    engine = {
        "kind": "emulated",
        "model": "tiny",
        "served_name": given.served_model_name,
        "args": {"max-model-len": given.max_model_len, "block-size": given.block_size},
        "emulation": {"costs": {"block_bytes": given.block_size * 1024}},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        profile = {"name": "in-a-container", "engine": engine, "tiers": tiers}
        config.write(json.dumps({"profile": profile, "label": "in-a-container"}))
        config.flush()
        sys.argv = ["emulated", "--config", config.name, "--port", str(given.port)]
        server.main()


if __name__ == "__main__":
    main()
