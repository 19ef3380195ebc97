"""A real Prometheus for the tests: the one on the PATH, else Debian's package, unpacked into KVBENCH_HOME/tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kvbench.engine.environment import kvbench_home


@pytest.fixture(scope="session")
def prometheus_binary() -> Path:
    """Skips with the reason where there is none and none can be had."""
    found = shutil.which("prometheus")
    if found is not None:
        return Path(found)
    unpacked = kvbench_home() / "tools" / "prometheus-deb"
    binary = unpacked / "usr" / "bin" / "prometheus"
    if not binary.is_file():
        reason = _unpack(unpacked)
        if reason is not None or not binary.is_file():
            pytest.skip(f"no Prometheus: {reason or 'the package has another layout'}")
    return binary


def _unpack(directory: Path) -> str | None:
    """Fetch and unpack the package without installing it; why not, where it cannot be done."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "not on the PATH, and this is no Debian"
    work = directory.with_name(f"prometheus-{os.getpid()}")
    work.mkdir(parents=True)
    try:
        fetched = subprocess.run(
            ["apt-get", "download", "prometheus"],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        packages = list(work.glob("prometheus_*.deb"))
        if fetched.returncode != 0 or not packages:
            return f"apt-get download prometheus failed: {fetched.stderr.strip()[-200:]}"
        subprocess.run(["dpkg", "-x", str(packages[0]), str(work / "root")], check=True, timeout=120)
        if not directory.exists():
            (work / "root").rename(directory)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return None
