"""The stand-in server as an engine that kvbench launches: vLLM's command line, and what a killed vLLM leaves.

Run as a script: `python launched.py --port N --served-model-name NAME [--kv-transfer-config JSON] ...`. It maps a
file in `/dev/shm`, has a child in a session of its own, and writes a block into the disk tier that it is given.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.standin.server import Behaviour, stand_in


def option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def end_slowly(_number: int, _frame: object) -> None:
    """As an engine that unpins much memory."""
    time.sleep(float(os.environ.get("STAND_IN_STOP_AFTER", "0")))
    os._exit(0)


def main() -> None:
    if "--help=all" in sys.argv:
        sys.exit("no such help")
    config = json.loads(option("--kv-transfer-config") or "null")
    with Path("/dev/shm", f"kvbench-stand-in-{os.getpid()}").open("a+b") as file:
        file.truncate(8192)
        _held = mmap.mmap(file.fileno(), 8192)
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    signal.signal(signal.SIGTERM, end_slowly)
    for tier in (config or {}).get("kv_connector_extra_config", {}).get("secondary_tiers", []):
        blocks = Path(tier["root_dir"]) / "a-namespace"
        blocks.mkdir(parents=True, exist_ok=True)
        (blocks / "block.bin.written").write_bytes(b"\0" * int(os.environ.get("STAND_IN_DISK_BYTES", "4096")))
    time.sleep(float(os.environ.get("STAND_IN_START_AFTER", "0.5")))
    behaviour = Behaviour(models=(option("--served-model-name") or "",), transfer_config=config)
    with stand_in(behaviour, port=int(option("--port") or "0")):
        print("INFO Application startup complete.", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
