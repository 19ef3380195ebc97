"""Profiles of emulated engines: what they take, and what they refuse with the line at fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.spec.crosscheck import differences
from kvbench.spec.loading import load_profile
from kvbench.spec.shipped import shipped_names

HEAD = "name: arm\nengine:\n  kind: emulated\n  model: tiny\n"


def load(tmp_path: Path, text: str):
    file = tmp_path / "arm.yaml"
    file.write_text(text)
    return load_profile(file)


def test_shipped_ones_load() -> None:
    names = [name for name in shipped_names("profile") if name.startswith("emulated/")]
    assert {name.partition("/")[2] for name in names} >= {"baseline", "baseline-copy", "host", "disk"}
    for name in names:
        assert load_profile(name).engine.kind == "emulated"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  inject: {stall: {every: 1s, by: 1s}}\n", "stalls"),
        ("  inject: {stalls: {every: 1s}}\n", "by"),
        ("  inject: {errors: {share: 0%}}\n", "0"),
        ("  emulation: {costs: {tokens: 1ms}}\n", "token"),
        ("  args: {max-model-length: 100}\n", "max-model-len"),
        ("  args: {block-size: 0}\n", "whole number"),
        ("  environment: vllm-cpu\n", "no effect"),
        ("tiers:\n  device: {blocks: 10}\n", "needs"),
        ("tiers:\n  device: {memory_utilization: 0.5}\n", "blocks"),
        ("tiers:\n  host: {size: 1GiB, via: offloading}\n", "tiers.host.via: has no effect"),
        ("tiers:\n  host: {size: 1GiB, chunk_tokens: 64}\n", "must be a multiple of the KV block, 128 tokens"),
        ("tiers:\n  host: {size: 1GiB, min_priority: 5}\n", "tiers.host.min_priority: has no effect"),
        (
            "tiers:\n  host: {size: 1GiB}\n  disk: {path: /x, locality: LOCAL}\n",
            "tiers.disk.locality: has no effect",
        ),
    ],
)
def test_what_it_does_not_know_is_an_error_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, HEAD + text)
    assert says in str(caught.value)
    assert "arm.yaml:" in str(caught.value)


def test_a_real_engine_takes_no_injection(tmp_path: Path) -> None:
    text = HEAD.replace("emulated", "vllm\n  environment: vllm-cpu") + "  inject: {residue: true}\n"
    with pytest.raises(InputError, match="real engine"):
        load(tmp_path, text)


def test_an_injection_is_no_difference_between_arms_and_costs_are(tmp_path: Path) -> None:
    plain = load(tmp_path, HEAD)
    injected = load(tmp_path, HEAD + "  inject: {residue: true}\n")
    slower = load(tmp_path, HEAD + "  emulation: {costs: {token: 1ms}}\n")
    assert differences(plain, injected) == ()
    assert differences(plain, slower) != ()
