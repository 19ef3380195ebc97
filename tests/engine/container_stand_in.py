"""Stands in for docker and podman: records every call and really runs what a container would.

As `docker ...` it is the client of a service (`container_stand_in.py service`), whose containers are no children of
the client; as `podman ...` there is no service, and every container has a monitor of its own, which leaves its
parent as conmon does. What they share lies in the directory STAND_IN_CONTAINERS. Words and exit codes are those of
docker 28.2.2 with a service 20.10.24, and of podman 4.3.1. STAND_IN_RUNTIME in the environment adds faults: `down`,
`no-image`, `no-pull`, `no-command`, `rm-hangs`.
"""

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

PODMAN = Path(sys.argv[0]).name == "podman"
ROOT = Path(os.environ["STAND_IN_CONTAINERS"])
FAULTS = os.environ.get("STAND_IN_RUNTIME", "").split(",")
SWITCHES = {"--init", "--rm", "--interactive"}
"""Options of `run` that take no value."""

DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
HELP = "\n\nRun 'docker run --help' for more information"
NO_COMMAND = (
    "ERROR (catatonit:2): failed to exec pid1: No such file or directory"
    if PODMAN
    else "[FATAL tini (7)] exec no-such-server failed: No such file or directory"
)
STOP_TIMEOUT_S = 10
"""Of podman, between SIGTERM and SIGKILL of `rm --force`; docker kills at once."""


def refuse(words: str, code: int | None = None) -> int:
    """As docker says it; podman has its own way and one exit code."""
    print(f"Error: {words}" if PODMAN else words, file=sys.stderr)
    return code or (125 if PODMAN else 1)


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


def begin(order: dict) -> subprocess.Popen:
    """Start what is asked for, and note that it runs."""
    with Path(order["output"]).open("wb") as output:
        process = subprocess.Popen(
            order["argv"], env=order["env"], stdout=output, stderr=output, start_new_session=True, cwd="/"
        )
    put(path_of(order["id"]), {**order, "pid": process.pid, "code": None})
    return process


def note_end(container: str, code: int) -> None:
    if path_of(container).exists():
        entry = json.loads(path_of(container).read_text())
        put(path_of(container), {**entry, "pid": 0, "code": 128 - code if code < 0 else code})


def service() -> None:
    """docker's: start what is asked for, note how it ends."""
    running: dict[str, subprocess.Popen] = {}
    while True:
        for asked in (ROOT / "asked").glob("*.json"):
            order = json.loads(asked.read_text())
            asked.unlink()
            running[order["id"]] = begin(order)
        for container, process in list(running.items()):
            if process.poll() is not None:
                del running[container]
                note_end(container, process.returncode)
        time.sleep(0.02)


def monitor(asked: Path) -> None:
    """podman's of one container: it hands signals on, and is nobody's child but the next subreaper's."""
    if os.fork():
        os._exit(0)
    order = json.loads(asked.read_text())
    asked.unlink()
    process = begin(order)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: process.send_signal(n))
    note_end(order["id"], process.wait())


def run(arguments: list[str]) -> int:
    """`run`: the client stays until the container ends, and hands signals on."""
    options, rest = parse(arguments)
    environment = {"PATH": os.environ["PATH"], "STAND_IN_CONTAINERS": str(ROOT)}
    for given in options.get("--env", []):
        name, equals, value = given.partition("=")
        if equals or name in os.environ:
            environment[name] = value if equals else os.environ[name]
    container = secrets.token_hex(32)
    taken = next((entry for entry in containers() if entry["name"] in options.get("--name", [])), None)
    if taken is not None:
        return name_taken(taken)
    order = {
        "id": container,
        "name": options.get("--name", [container[:8]])[0],
        "labels": options.get("--label", []),
        "stop_timeout": int(options.get("--stop-timeout", [STOP_TIMEOUT_S])[0]),
        "image": rest[0],
        "argv": [sys.executable, "-S", *program(rest[1:])],
        "ipc": options.get("--ipc", [""])[0],
        "env": environment,
        "output": str(ROOT / f"{container}.log"),
    }
    if "no-command" in FAULTS:
        order["argv"] = ["/bin/sh", "-c", f"echo {shlex.quote(NO_COMMAND)} >&2; exit {1 if PODMAN else 127}"]
    asked = ROOT / "asked" / f"{container}.json"
    put(asked, order)
    if PODMAN:
        argv, quiet = [sys.executable, "-S", __file__, "monitor", asked], subprocess.DEVNULL
        subprocess.run(argv, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet, check=True)
    while not path_of(container).exists():
        time.sleep(0.01)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: hand_on(container, n))
    code = follow(container)
    if "--rm" in options:
        path_of(container).unlink(missing_ok=True)
    return code


def program(arguments: list[str]) -> list[str]:
    """The engine, whatever the entry point is, unless LMCache's server is asked for by its module."""
    return arguments if arguments[:2] == ["-m", "lmcache.cli.main"] else [os.environ["STAND_IN_ENGINE"], *arguments]


def name_taken(owner: dict) -> int:
    name, owner_id = owner["name"], owner["id"]
    if PODMAN:
        return refuse(
            f'creating container storage: the container name "{name}" is already in use by {owner_id}. You have to '
            "remove that container to be able to reuse that name: that name is already in use"
        )
    return refuse(
        f'docker: Error response from daemon: Conflict. The container name "/{name}" is already in use by '
        f'container "{owner_id}". You have to remove (or rename) that container to be able to reuse that name.'
        + HELP,
        125,
    )


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
            dependents = [other for other in containers() if other.get("ipc") == f"container:{entry['name']}"]
            if PODMAN and dependents:
                return refuse(depended_on(entry, dependents[0]))
            if entry["pid"]:
                end(entry)
            path_of(entry["id"]).unlink(missing_ok=True)
    return 0


def depended_on(entry: dict, dependent: dict) -> str:
    return (
        f"container {entry['id']} has dependent containers which must be removed before it: {dependent['id']}: "
        "container already exists"
    )


def end(entry: dict) -> None:
    with contextlib.suppress(ProcessLookupError):
        if PODMAN and entry["stop_timeout"]:
            os.kill(entry["pid"], signal.SIGTERM)
            deadline = time.monotonic() + entry["stop_timeout"]
            while path_of(entry["id"]).exists() and time.monotonic() < deadline:
                if not json.loads(path_of(entry["id"]).read_text())["pid"]:
                    return
                time.sleep(0.02)
        os.kill(entry["pid"], signal.SIGKILL)


def listed(arguments: list[str]) -> int:
    wanted = arguments[arguments.index("--filter") + 1].removeprefix("label=")
    for entry in containers():
        if wanted in entry["labels"]:
            print(entry["id"])
    return 0


def inspected(arguments: list[str]) -> int:
    entry = next((entry for entry in containers() if arguments[-1] in (entry["id"], entry["name"])), None)
    if entry is None:
        if not PODMAN:
            print()
        name = arguments[-1]
        return refuse(
            f'inspecting object: no such object: "{name}"' if PODMAN else f"Error: No such object: {name}"
        )
    print(f"{entry['id']} {entry['pid']}")
    return 0


def image(arguments: list[str]) -> int:
    reference = arguments[-1]
    if "no-image" in FAULTS and not (ROOT / "pulled").exists():
        print("[]")
        return refuse(
            f"inspecting object: {reference}: image not known"
            if PODMAN
            else f"Error response from daemon: no such image: {reference}: No such image: {reference}"
        )
    print(json.dumps([{"Id": ("" if PODMAN else "sha256:") + "a" * 64, "RepoDigests": [reference]}]))
    return 0


def pull(reference: str) -> int:
    if "no-pull" in FAULTS and PODMAN:
        return refuse(
            f"initializing source docker://{reference}: reading manifest in registry.example: manifest unknown"
        )
    if "no-pull" in FAULTS:
        return refuse("Error response from daemon: manifest unknown")
    (ROOT / "pulled").touch()
    return 0


def down(command: str) -> int:
    """docker's client without its service."""
    if command == "run":
        return refuse(f"docker: {DOWN}{HELP}", 125)
    print({"version": "", "inspect": "", "image": "[]"}.get(command, ""), end="\n" if command != "ps" else "")
    return refuse(DOWN)


def client(arguments: list[str]) -> int:
    with (ROOT / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([Path(sys.argv[0]).name, *arguments]) + "\n")
    if "down" in FAULTS:
        return down(arguments[0])
    match arguments[0]:
        case "version" | "info":
            print("4.3.1" if PODMAN else "20.10.24")
            return 0
        case "image":
            return image(arguments)
        case "pull":
            return pull(arguments[-1])
        case "run":
            return run(arguments[1:])
        case "rm":
            return remove(arguments[1:])
        case "ps":
            return listed(arguments)
        case "inspect":
            return inspected(arguments)
    return refuse(f"unknown command {arguments[0]}", 125)


if __name__ == "__main__":
    if sys.argv[1:] == ["service"]:
        service()
    if sys.argv[1] == "monitor":
        monitor(Path(sys.argv[2]))
        sys.exit()
    sys.exit(client(sys.argv[1:]))
