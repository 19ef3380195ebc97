"""docker and podman played by `container_stand_in.py`, alone on the PATH; docker's client with its service."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["Runtime", "stand_in_runtime"]

STAND_IN = Path(__file__).with_name("container_stand_in.py")
ENGINE = Path(__file__).with_name("stand_in.py")


class Runtime:
    """What runs, and what was called."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder

    def names(self) -> list[str]:
        """Of the containers that there are, stopped ones too."""
        return [json.loads(path.read_text())["name"] for path in (self.folder / "containers").glob("*.json")]

    def calls(self, command: str) -> list[list[str]]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [call[1:] for call in map(json.loads, lines) if call[1] == command]


@contextmanager
def stand_in_runtime(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """`name`: docker or podman. Containers and calls lie in a folder of `tmp_path`."""
    folder = tmp_path / "runtime"
    for part in ("bin", "containers", "asked"):
        (folder / part).mkdir(parents=True)
    client = folder / "bin" / name
    client.write_text(f"#!{sys.executable} -S\n" + STAND_IN.read_text())
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setenv("STAND_IN_CONTAINERS", str(folder))
    monkeypatch.setenv("STAND_IN_ENGINE", str(ENGINE))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-cache"))
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    service = subprocess.Popen([sys.executable, "-S", str(STAND_IN), "service"]) if name == "docker" else None
    try:
        yield Runtime(name, folder)
    finally:
        if service is not None:
            service.kill()
            service.wait()
