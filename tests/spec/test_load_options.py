"""What a workload may say about rates and about its users, loaded from a file."""

from __future__ import annotations

from pathlib import Path

from kvbench.spec.loading import load_workload, where
from kvbench.spec.support import check_supported
from kvbench.spec.workload import Burst, Empirical, OnOff, RateTarget, Sinusoid, ThinkLogNormal, Workload

FILE = """\
name: users
arrivals: {process: gamma, gamma: {cv: 2}, rate: {sinusoid: {mean: 4/s, amplitude: 120/m, period: 1m}}}
phases:
  - {name: warm, for: 20s, measured: false, rate: 2/s}
  - {name: waves, for: 2m}
  - {name: crowds, for: 2m, rate: {burst: {size: 20, every: 30s, over: 500ms}}}
  - {name: work, for: 2m, rate: {on_off: {rate: 8/s, on: 10s, off: 20s, base: 1/s}}}
  - {name: ramp, for: 30s, rate: {to: 12/s}}
classes:
  agent:
    turns: 6
    prefix: {tokens: 500, pool: 3}
    suffix_tokens: 64
    output_tokens: 32
    branch: {share: 30%, count: {uniform: [1, 3]}, turns: 2, suffix_tokens: {empirical: calls.txt}, wait: false}
    compact: {after_tokens: 6000, to_tokens: 2000}
    abort: {share: 5%, after: {lognormal: {median: 4s, p95: 20s}}}
"""


def loaded(folder: Path) -> Workload:
    (folder / "w.yaml").write_text(FILE)
    (folder / "calls.txt").write_text("100\n2000\n")
    return load_workload(folder / "w.yaml")


def test_rates_are_loaded_in_their_forms_and_base_units(tmp_path: Path) -> None:
    workload = loaded(tmp_path)
    waves = workload.arrivals.rate
    assert isinstance(waves, Sinusoid)
    assert (waves.sinusoid.mean, waves.sinusoid.amplitude, waves.sinusoid.period) == (4, 2, 60)
    steady, none, crowds, work, ramp = (phase.rate for phase in workload.phases)
    assert (steady, none, ramp) == (2, None, RateTarget(to=12))
    assert isinstance(crowds, Burst)
    assert (crowds.burst.size, crowds.burst.every, crowds.burst.over, crowds.burst.base) == (20, 30, 0.5, None)
    assert isinstance(work, OnOff)
    assert (work.on_off.rate, work.on_off.on, work.on_off.off, work.on_off.base) == (8, 10, 20, 1)


def test_users_are_loaded_with_the_files_of_their_lengths(tmp_path: Path) -> None:
    workload = loaded(tmp_path)
    agent = workload.classes["agent"]
    assert agent.branch is not None
    assert (agent.branch.share, agent.branch.turns, agent.branch.wait) == (0.3, 2, False)
    assert isinstance(agent.branch.suffix_tokens, Empirical)
    assert agent.branch.suffix_tokens.values == (100, 2000)
    assert agent.compact is not None
    assert (agent.compact.after_tokens, agent.compact.to_tokens) == (6000, 2000)
    assert agent.abort is not None
    assert isinstance(agent.abort.after, ThinkLogNormal)
    assert str(where(workload, "classes.agent.abort")).startswith(f"{tmp_path}/w.yaml:17")


def test_they_are_supported_and_survive_the_manifest(tmp_path: Path) -> None:
    workload = loaded(tmp_path)
    check_supported(workload)
    assert Workload.model_validate_json(workload.model_dump_json(by_alias=True)) == workload
