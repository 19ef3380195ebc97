"""Stands in for docker and podman, client and service: records every call and really runs what a container would.

As `docker ...` it is the client; `container_stand_in.py service` is the service, whose containers are no children
of the client. What is between them lies in the directory STAND_IN_CONTAINERS. STAND_IN_RUNTIME in the environment
adds faults: `down`, `no-image`, `no-pull`, `rm-hangs`.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["STAND_IN_CONTAINERS"])
FAULTS = os.environ.get("STAND_IN_RUNTIME", "").split(",")
SWITCHES = {"--init", "--rm", "--interactive"}
"""Options of `run` that take no value."""


def path_of(container: str) -> Path:
    return ROOT / "containers" / f"{container}.json"


def containers() -> list[dict]:
    found = []
    for path in sorted((ROOT / "containers").glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(path.read_text()))
    return found


def put(path: Path, value: dict) -> None:
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(value))
    new.replace(path)


def service() -> None:
    """Start what is asked for, note how it ends."""
    running: dict[str, subprocess.Popen] = {}
    while True:
        for asked in (ROOT / "asked").glob("*.json"):
            order = json.loads(asked.read_text())
            asked.unlink()
            with Path(order["output"]).open("wb") as output:
                process = subprocess.Popen(
                    order["argv"], env=order["env"], stdout=output, stderr=output, start_new_session=True, cwd="/"
                )
            running[order["id"]] = process
            put(path_of(order["id"]), {**order, "pid": process.pid, "code": None})
        for container, process in list(running.items()):
            if process.poll() is not None:
                del running[container]
                if path_of(container).exists():
                    entry = json.loads(path_of(container).read_text())
                    code = process.returncode
                    put(path_of(container), {**entry, "pid": 0, "code": 128 - code if code < 0 else code})
        time.sleep(0.02)


def run(arguments: list[str]) -> int:
    """`run`: the client stays until the container ends, and hands signals on."""
    options, rest = parse(arguments)
    environment = {"PATH": os.environ["PATH"], "STAND_IN_CONTAINERS": str(ROOT)}
    for given in options.get("--env", []):
        name, equals, value = given.partition("=")
        if equals or name in os.environ:
            environment[name] = value if equals else os.environ[name]
    container = secrets.token_hex(32)
    order = {
        "id": container,
        "name": options.get("--name", [container[:8]])[0],
        "labels": options.get("--label", []),
        "image": rest[0],
        "argv": [sys.executable, "-S", os.environ["STAND_IN_ENGINE"], *rest[1:]],
        "env": environment,
        "output": str(ROOT / f"{container}.log"),
    }
    put(ROOT / "asked" / f"{container}.json", order)
    while not path_of(container).exists():
        time.sleep(0.01)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: hand_on(container, n))
    code = follow(container)
    if "--rm" in options:
        path_of(container).unlink(missing_ok=True)
    return code


def hand_on(container: str, number: int) -> None:
    with contextlib.suppress(OSError, ValueError, ProcessLookupError):
        os.kill(json.loads(path_of(container).read_text())["pid"], number)


def follow(container: str) -> int:
    with (ROOT / f"{container}.log").open("rb") as output:
        while True:
            if not path_of(container).exists():  # removed by somebody
                return 137
            with contextlib.suppress(ValueError):
                entry = json.loads(path_of(container).read_text())
                data = output.read()
                os.write(1, data)
                if entry["code"] is not None and not data:
                    return entry["code"]
            time.sleep(0.02)


def parse(arguments: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    options: dict[str, list[str]] = {}
    left = list(arguments)
    while left and left[0].startswith("-"):
        name, equals, value = left.pop(0).partition("=")
        options.setdefault(name, []).append(value if equals or name in SWITCHES else left.pop(0))
    return options, left


def remove(ids: list[str]) -> int:
    if "rm-hangs" in FAULTS:
        time.sleep(60)
    for entry in containers():
        if entry["id"] in ids:
            path_of(entry["id"]).unlink(missing_ok=True)
            if entry["pid"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(entry["pid"], signal.SIGKILL)
    return 0


def listed(arguments: list[str]) -> int:
    wanted = arguments[arguments.index("--filter") + 1].removeprefix("label=")
    for entry in containers():
        if wanted in entry["labels"]:
            print(entry["id"])
    return 0


def inspected(arguments: list[str]) -> int:
    entry = next((entry for entry in containers() if arguments[-1] in (entry["id"], entry["name"])), None)
    if entry is None:
        print(f"Error: No such object: {arguments[-1]}", file=sys.stderr)
        return 1
    print(f"{entry['id']} {entry['pid']}")
    return 0


def image(arguments: list[str]) -> int:
    reference = arguments[-1]
    if "no-image" in FAULTS and not (ROOT / "pulled").exists():
        print(f"Error: No such image: {reference}", file=sys.stderr)
        return 1
    print(json.dumps([{"Id": "sha256:" + "a" * 64, "RepoDigests": [reference]}]))
    return 0


def pull() -> int:
    if "no-pull" in FAULTS:
        print("Error response from daemon: manifest unknown", file=sys.stderr)
        return 1
    (ROOT / "pulled").touch()
    return 0


def client(arguments: list[str]) -> int:
    with (ROOT / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([Path(sys.argv[0]).name, *arguments]) + "\n")
    if "down" in FAULTS:
        print("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", file=sys.stderr)
        return 1
    match arguments[0]:
        case "version" | "info":
            print("28.2.2")
            return 0
        case "image":
            return image(arguments)
        case "pull":
            return pull()
        case "run":
            return run(arguments[1:])
        case "rm":
            return remove(arguments[1:])
        case "ps":
            return listed(arguments)
        case "inspect":
            return inspected(arguments)
    print(f"unknown command {arguments[0]}", file=sys.stderr)
    return 125


if __name__ == "__main__":
    if sys.argv[1:] == ["service"]:
        service()
    sys.exit(client(sys.argv[1:]))
