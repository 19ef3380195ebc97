"""The manifest of a new run: everything that is known before the first engine starts."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import psutil

from kvbench import __version__
from kvbench.compare.difference import allowed_differences, forbidden_differences, rendered_differences
from kvbench.engine.base import Rendered
from kvbench.engine.create import render_profile
from kvbench.record.content import content_digests
from kvbench.record.manifest import ArmRecord, Manifest, PredictionRecord
from kvbench.record.run_directory import utc_now
from kvbench.spec.loading import Experiment
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = ["host_facts", "new_manifest", "single_arm_manifest"]


def host_facts() -> dict[str, str | int | float]:
    """What this machine is; goes into run.json and every report."""
    return {
        "cpu_model": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        **({"gpu_driver": driver} if (driver := _gpu_driver()) else {}),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpu_driver() -> str | None:
    """The version of NVIDIA's kernel module, where one is loaded."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return found[1] if found else None


def new_manifest(
    experiment: Experiment, warnings: list[str], predictions: Sequence[PredictionRecord] = ()
) -> Manifest:
    """Of a comparison; the run has no name yet."""
    arms = [_arm(experiment.baseline, "baseline"), *(_arm(p, "candidate") for p in experiment.candidates)]
    manifest = _manifest("compare", arms, experiment.workload, experiment.rules)
    manifest = manifest.model_copy(
        update={
            "predictions": list(predictions),
            "arm_differences": forbidden_differences(experiment),
            "allowed_differences": allowed_differences(experiment),
            "rendered_differences": rendered_differences(experiment),
            "warnings": warnings,
            "rounds_planned": experiment.rules.rounds.max,
        }
    )
    return manifest.model_copy(update={"digests": content_digests(manifest)})


def single_arm_manifest(profile: Profile, workload: Workload, rounds: int, warnings: list[str]) -> Manifest:
    """Of a recording of one arm; it has no rules, and the run no name yet."""
    manifest = _manifest("run", [_arm(profile, "baseline")], workload, Rules(name="none"))
    return manifest.model_copy(update={"warnings": warnings, "rounds_planned": rounds})


def _manifest(kind: Literal["compare", "run"], arms: list[ArmRecord], workload: Workload, rules: Rules) -> Manifest:
    manifest = Manifest(
        kvbench=__version__,
        name="-vs-".join(arm.name for arm in arms),
        run_id="",
        kind=kind,
        state="running",
        created_utc=utc_now(),
        host=host_facts(),
        seed=workload.seed,
        arms=arms,
        workload=workload,
        rules=rules,
        rounds_planned=1,
    )
    return manifest.model_copy(update={"digests": content_digests(manifest)})


def _arm(profile: Profile, role: str) -> ArmRecord:
    attached = profile.engine.kind == "attached"
    rendered = Rendered(argv=(), env={}) if attached else render_profile(profile)
    return ArmRecord.model_validate(
        {
            "name": profile.name,
            "role": role,
            "profile": profile,
            "argv": list(rendered.argv),
            "env": rendered.env,
            "files": rendered.files,
            "beside": {name: _start(each) for name, each in rendered.beside.items()},
        }
    )


def _start(rendered: Rendered) -> dict[str, object]:
    return {"argv": list(rendered.argv), "env": rendered.env, "files": rendered.files}
