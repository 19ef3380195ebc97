"""What is installed from the wheel alone, with no repository beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

SHIPPED = ("workloads", "profiles", "deploy", "dashboards")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as `pip install` fills it."""
    folder = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(built, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("kvbench-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def installed(site: Path, folder: Path, *arguments: str) -> str:
    """What kvbench prints that lies in `site`, called from elsewhere."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: Path) -> set[Path]:
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def test_every_file_of_the_package_and_all_that_is_shipped_is_in_it(site: Path) -> None:
    within = files(site / "kvbench")
    assert files(REPOSITORY / "kvbench") <= within
    for name in SHIPPED:
        assert {Path("shipped", name, file) for file in files(REPOSITORY / name)} <= within


def test_the_demo_can_be_had_from_it(site: Path, tmp_path: Path) -> None:
    arms = ("cpu/demo-baseline", "cpu/demo-host-and-disk")
    plan = installed(site, tmp_path, "kvbench", "compare", *arms, "-w", "demo", "-r", "demo", "--dry-run", "--json")
    assert json.loads(plan)["rounds"] == {"min": 3, "max": 3}
    shown = json.loads(installed(site, tmp_path, "kvbench", "render", arms[1], "--json"))
    plugin = next(value for name, value in shown["env"].items() if name == "PYTHONPATH")
    assert plugin.startswith(str(site)), "the engine's plugin is that of the wheel"
