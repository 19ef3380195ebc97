"""Real docker and podman for tests: whether one can run a container here, and how it is then told to.

The image holds nothing (`registry.py`): the host's own interpreter, mounted, is what runs in it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kvbench.engine.container_remains import reason
from kvbench.engine.containers import _is_podman, _limit_options, hard_limit
from kvbench.spec.container import ContainerSpec
from kvbench.spec.profile import Profile
from tests.engine.registry import Registry

__all__ = ["ENGINE", "PYTHON", "Runtime", "a_profile", "found_or_skip", "real_runtime"]

ENGINE = Path(__file__).with_name("stand_in.py")
PYTHON = Path("/usr/bin/python3") if Path("/usr/bin/python3").exists() else Path(sys.executable).resolve()
ANSWER_S = 60.0


@dataclass(frozen=True)
class Runtime:
    """docker or podman, an image that it can run, and limits that its service may set on this machine."""

    name: str
    image: str
    ulimits: dict[str, int] = field(default_factory=dict)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.name, *arguments], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )

    def names(self) -> list[str]:
        """Of kvbench's containers that there are, stopped ones too."""
        shown = self("ps", "--all", "--filter", "label=kvbench.lease", "--format", "{{.Names}}")
        assert shown.returncode == 0, shown.stderr
        return shown.stdout.split()

    def inspect(self, name: str) -> dict:
        return json.loads(self("inspect", name).stdout)[0]

    def refusal(self, *options: str) -> str | None:
        """None when it runs a container with kvbench's own limits and these options, else what it says."""
        own = (*_limit_options(ContainerSpec(), self.name), *options)
        mounted = ("--mount", "type=bind,source=/usr,target=/usr,readonly", "--entrypoint", "/usr/bin/true")
        answer = self("run", "--rm", "--init", "--network", "host", *own, *mounted, self.image)
        return None if answer.returncode == 0 else reason(answer.returncode, answer.stderr)


def real_runtime(name: str, folder: Path) -> Iterator[Runtime]:
    """Skips with the runtime's own words where it is not here or cannot run a container."""
    found_or_skip(name)
    registry = Registry()
    with pytest.MonkeyPatch.context() as patch:
        if name == "podman":
            registries = folder / "registries.conf"
            registries.write_text(f'[[registry]]\nlocation = "{registry.host}"\ninsecure = true\n')
            patch.setenv("CONTAINERS_REGISTRIES_CONF", str(registries))
        runtime = Runtime(name, registry.image)
        try:
            yield _able(runtime, folder, patch)
        finally:
            runtime("rmi", "--force", runtime.image)
            registry.close()


def found_or_skip(name: str) -> str:
    """The name of a runtime that is here under its own name."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on the PATH")
    if name == "docker" and _is_podman(Path(found)):
        pytest.skip("docker is podman here")
    return name


def _able(runtime: Runtime, folder: Path, patch: pytest.MonkeyPatch) -> Runtime:
    """`runtime` as it can run containers on this machine."""
    try:
        pulled = runtime("pull", "--quiet", runtime.image)
        if pulled.returncode != 0:
            pytest.skip(f"{runtime.name} cannot pull here: {reason(pulled.returncode, pulled.stderr)}")
        refusal = runtime.refusal()
        if refusal is not None and runtime.name == "docker":
            # A service without the right to raise limits is a matter of its host: a profile then says lower ones.
            limits = {name: hard_limit(name) for name in ("memlock", "nofile")}
            if runtime.refusal(*(f"--ulimit={name}={limit}:{limit}" for name, limit in limits.items())) is None:
                return replace(runtime, ulimits=limits)
        if refusal is not None and runtime.name == "podman" and shutil.which("runc") is not None:
            # crun takes no mixture of control groups of version 1 and 2.
            (folder / "containers.conf").write_text('[engine]\nruntime = "runc"\n')
            patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
            refusal = runtime.refusal()
    except subprocess.TimeoutExpired as error:
        pytest.skip(f"{' '.join(error.cmd[:2])} gives no answer")
    if refusal is not None:
        pytest.skip(f"{runtime.name} cannot run a container here: {refusal}")
    return runtime


def a_profile(
    real: Runtime, *, env: dict | None = None, container: dict | None = None, **engine: object
) -> Profile:
    interpreter = {Path(sys.base_prefix)} if PYTHON.is_relative_to(sys.base_prefix) else set()
    outside = {path for path in (ENGINE.parent, *interpreter) if not path.is_relative_to("/usr")}
    given = {
        "runtime": real.name,
        "gpus": "none",
        "mounts": [{"source": str(path)} for path in (Path("/usr"), *sorted(outside))],
        "entrypoint": [str(PYTHON), "-S", str(ENGINE)],
        **(container or {}),
    }
    given["ulimits"] = {**real.ulimits, **given.get("ulimits", {})}
    given["mounts"] += given.pop("also", [])
    spec = {
        "kind": "vllm",
        "image": real.image,
        "version": "0.32.0",
        "model": "org/model",
        "revision": "abc",
        "env": env or {},
        "container": given,
        **engine,
    }
    return Profile.model_validate({"name": "arm", "engine": spec, "tiers": {"device": {}}})
