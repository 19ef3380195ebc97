"""Flags that kvbench writes itself are checked against the engine's help as a profile's own are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine.flags import Flags, shipped_flags
from kvbench.engine.vllm_engine import check_startable
from kvbench.engine.vllm_flags import check_written_flags
from kvbench.errors import InputError
from kvbench.spec.profile import Profile
from tests.engine import stand_in

COMMAND = [sys.executable, "-S", stand_in.__file__]


def a_profile(*, engine: dict[str, Any] | None = None, **tiers: object) -> Profile:
    spec = {"kind": "vllm", "command": COMMAND, "version": "0.32.0", "model": "/m", **(engine or {})}
    return Profile.model_validate({"name": "arm", "engine": spec, "tiers": tiers})


def without(*names: str) -> Flags:
    """The pinned version's flags but these."""
    flags = shipped_flags("0.32.0")
    assert flags is not None
    return Flags({name: values for name, values in flags.choices.items() if name not in names})


def refused(profile: Profile, argv: list[str], flags: Flags) -> str:
    with pytest.raises(InputError) as caught:
        check_written_flags(profile, argv, flags, engine="vLLM 0.10.0")
    return str(caught.value)


def test_a_flag_that_a_tier_needs_is_named_with_the_tier_and_the_nearest_that_there_is() -> None:
    told = refused(a_profile(host={"size": "1GiB"}), ["--kv-offloading-size", "1"], without("kv-offloading-size"))
    assert "tiers.host: vLLM 0.10.0 has no flag --kv-offloading-size, which this key needs" in told
    assert "the nearest that it has is --kv-offloading-backend" in told
    assert "leave tiers.host out" in told


def test_a_flag_of_kvbenchs_own_is_said_to_be_one() -> None:
    told = refused(a_profile(), ["--disable-uvicorn-access-log"], without("disable-uvicorn-access-log"))
    assert "profile arm: vLLM 0.10.0 has no flag --disable-uvicorn-access-log, with which kvbench starts" in told
    assert "kind: attached" in told


def test_a_flag_of_a_built_in_model_is_said_to_be_its() -> None:
    told = refused(a_profile(engine={"model": "tiny"}), ["--dtype", "float32"], without("dtype"))
    assert "engine.model: vLLM 0.10.0 has no flag --dtype, which the built-in model tiny needs" in told


def test_a_value_that_the_engine_does_not_take_is_named_with_the_key_it_comes_from() -> None:
    told = refused(a_profile(device={"kv_dtype": "octave_k3v4"}), ["--kv-cache-dtype", "octave_k3v4"], without())
    assert "tiers.device.kv_dtype: vLLM 0.10.0 does not take 'octave_k3v4' for --kv-cache-dtype" in told
    assert "fp8_e4m3" in told


def test_flags_of_the_profile_are_left_to_their_own_check() -> None:
    profile = a_profile(engine={"args": {"max-model-len": 5, "enforce-eager": False}})
    check_written_flags(profile, ["--max-model-len", "5", "--no-enforce-eager"], Flags({"port": ()}), engine="vLLM")


@pytest.mark.parametrize("args", [{}, {"max-model-len": 4096}])
def test_nothing_is_started_with_a_flag_of_kvbenchs_that_the_command_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: dict[str, Any]
) -> None:
    """Given an engine whose help lacks one flag, whether or not the profile has flags of its own."""
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path))
    older = tmp_path / "older.py"
    help_ = stand_in.HELP.replace("  --kv-events-config KV_EVENTS_CONFIG\n", "")
    older.write_text(f"print({json.dumps(help_)})")
    profile = a_profile(engine={"command": [sys.executable, str(older)], "args": args})
    with pytest.raises(InputError, match="no flag --kv-events-config, with which kvbench starts every vLLM"):
        check_startable(profile, lambda _: None)
    check_startable(a_profile(engine={"args": args}, host={"size": "1GiB"}), lambda _: None)
