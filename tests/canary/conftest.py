"""A real Prometheus for the tests: the one on the PATH, else Debian's package, unpacked into KVBENCH_HOME/tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.canary.prometheus_tools import prometheus


@pytest.fixture(scope="session")
def prometheus_binary() -> Path:
    """Skips with the reason where there is none and none can be had; under CI that is an error."""
    return prometheus()
