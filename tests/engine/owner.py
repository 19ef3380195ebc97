"""Plays kvbench in tests that kill it: starts a stand-in under a keeper, says what it made, and waits.

Run as a script: owner.py DIRECTORY DISK_PATH.
"""

import json
import sys
import time
from pathlib import Path

from kvbench.engine.base import Launch, Rendered
from kvbench.engine.launch import EngineProcess, plan_disk_directory, plan_launch

STAND_IN = Path(__file__).with_name("stand_in.py")


def main() -> None:
    directory = Path(sys.argv[1])
    launch = Launch(directory, directory / "engine-1.log", plan_disk_directory(Path(sys.argv[2]), "arm-1"), "arm-1")
    plan = plan_launch(launch, 0)
    process = EngineProcess(plan, Rendered((sys.executable, str(STAND_IN)), {}), grace_s=1.0)
    process.start()
    lease = json.loads(plan.lease_path.read_text())
    made = {
        "lease": str(plan.lease_path),
        "engine_id": lease["engine_id"],
        "keeper": lease["keeper"][0],
        "engine": process.pid,
        "disk": str(launch.disk_directory),
        "temp": lease["temp_directory"],
    }
    while "startup complete" not in process.log_tail():
        time.sleep(0.02)
    print(json.dumps(made | {"tree": [stat.pid for stat in process.tree()]}), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
