"""Flags of a profile are checked against the engine's own help before anything starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.flags import Flags, argv_of, check_flags, flag_name, known_flags, parse_help, shipped_flags
from kvbench.engine.interpreter import installation
from kvbench.errors import InputError

STAND_IN = Path(__file__).with_name("stand_in.py")

HELP = """usage: api_server.py [-h]
                     [--only-in-usage X]

options:
  -h, --help            show this help message and exit
  --enforce-eager, --no-enforce-eager
                        Whether to always use eager-mode PyTorch.
  --kv-cache-dtype {auto,fp8,
                        not a choice list}
  --kv-offloading-backend {lmcache,native}
                        See --not-an-option.
  --quantization QUANTIZATION, -q QUANTIZATION
  --max-model-len MAX_MODEL_LEN
"""


@pytest.fixture
def flags() -> Flags:
    return parse_help(HELP)


def test_options_and_their_choices_are_read_from_the_help(flags: Flags) -> None:
    assert set(flags.choices) == {
        "help",
        "enforce-eager",
        "no-enforce-eager",
        "kv-cache-dtype",
        "kv-offloading-backend",
        "quantization",
        "max-model-len",
    }
    assert flags.choices["kv-offloading-backend"] == ("lmcache", "native")


def test_args_become_arguments() -> None:
    args = {
        "max_model_len": 8192,
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "a": [1, 2],
        "b": {"c": "d"},
    }
    expected = ["--max-model-len", "8192", "--enforce-eager", "--no-enable-prefix-caching"]
    assert argv_of(args) == [*expected, "--a", "[1, 2]", "--b", '{"c": "d"}']


@given(st.from_regex(r"[a-z][a-z_-]{0,20}(\.[a-z_]{1,8})?", fullmatch=True))
def test_a_flags_name_has_one_spelling(key: str) -> None:
    assert flag_name(flag_name(key)) == flag_name(key)
    assert "_" not in flag_name(key).partition(".")[0]
    assert flag_name(f"--{key}") == flag_name(key)


@pytest.mark.parametrize(
    ("args", "message", "near"),
    [
        ({"max-modle-len": 1}, "has no flag --max-modle-len", "max-model-len"),
        ({"kv-offload-backend": "native"}, "has no flag --kv-offload-backend", "kv-offloading-backend"),
        ({"kv-offloading-backend": "disk"}, "does not take 'disk'", "lmcache, native"),
        ({"max-model-len": False}, "has no --no-max-model-len", "leave max-model-len out"),
        ({"enforce-eagre": False}, "has no flag --enforce-eagre", "enforce-eager"),
        ({"zzz": 1}, "has no flag --zzz", "--help=all"),
    ],
)
def test_what_the_engine_does_not_know_is_refused_with_the_nearest_name(
    flags: Flags, args: dict, message: str, near: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_flags(args, flags, engine="vLLM 0.32.0")
    assert message in str(caught.value)
    assert near in str(caught.value)


def test_what_the_engine_knows_passes(flags: Flags) -> None:
    args = {"max_model_len": 1, "enforce-eager": False, "kv-offloading-backend": "native", "max-model-len.x": 1}
    check_flags(args, flags, engine="vLLM")


def test_the_shipped_list_is_that_of_the_pinned_version() -> None:
    flags = shipped_flags("0.32.0+cpu")
    assert flags is not None
    assert "fp8" in flags.choices["kv-cache-dtype"]
    assert {"num-gpu-blocks-override", "enable-prompt-tokens-details", "no-enforce-eager"} <= set(flags.choices)
    assert shipped_flags("0.31.0") is None
    assert shipped_flags(None) is None


def test_another_versions_help_is_asked_for_once(tmp_path: Path) -> None:
    said: list[str] = []
    command = (sys.executable, "-S", str(STAND_IN))
    first = known_flags(command, "0.99", tmp_path, said.append)
    again = known_flags(command, "0.99", tmp_path, said.append)
    assert first is not None
    assert first == again
    assert first.choices["kv-cache-dtype"] == ("auto", "fp8")
    assert len(said) == 1


def test_where_nothing_can_be_kept_it_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    command = (sys.executable, "-S", str(STAND_IN))
    assert known_flags(command, "0.99", tmp_path / "home", lambda _: None) is not None


def test_a_command_without_such_a_help_is_not_checked(tmp_path: Path) -> None:
    assert known_flags(("false",), None, tmp_path, lambda _: None) is None


def test_a_command_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be found"):
        known_flags(("/nowhere/vllm",), None, tmp_path, lambda _: None)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}'])
def test_a_cache_that_was_cut_short_is_asked_for_again(tmp_path: Path, content: str) -> None:
    stand_in = (sys.executable, str(Path(__file__).with_name("stand_in.py")))
    first = known_flags(stand_in, "1.0", tmp_path, lambda _: None)
    (cache,) = (tmp_path / "flags").iterdir()
    cache.write_text(content)
    assert known_flags(stand_in, "1.0", tmp_path, lambda _: None) == first


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter with packages of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    return tmp_path / "env" / "bin" / "python"


def install_vllm(python: Path, version: str, help_: str) -> None:
    """As an upgrade does: the command stays as it is, and so does its interpreter."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    for old in (*site.glob("vllm"), *site.glob("vllm-*")):
        shutil.rmtree(old)
    for folder in ("vllm", f"vllm-{version}.dist-info"):
        (site / folder).mkdir()
    (site / "vllm" / "__init__.py").write_text("raise SystemExit('the engine is not imported to look at it')")
    (site / "server.py").write_text(f"print({help_!r})")


@pytest.mark.parametrize("form", ["module", "script", "script by env"])
def test_after_an_upgrade_behind_one_interpreter_the_help_is_asked_for_again(
    tmp_path: Path, python: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a profile that pins no version."""
    monkeypatch.setenv("PATH", f"{python.parent}:/usr/bin:/bin")
    script = python.with_name("vllm")
    line = "/usr/bin/env python" if form == "script by env" else str(python)
    script.write_text(f"#!{line}\nimport server")
    script.chmod(0o755)
    command = (str(python), "-m", "server") if form == "module" else (str(script),)
    said: list[str] = []
    install_vllm(python, "0.98.0", "options:\n  --old-name X\n")
    first = known_flags(command, None, tmp_path, said.append)
    install_vllm(python, "0.99.0", "options:\n  --newer-name X\n")
    second, again = (known_flags(command, None, tmp_path, said.append) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (set(first.choices), set(second.choices)) == ({"old-name"}, {"newer-name"})
    assert again == second
    assert len(said) == 2, "once for each"


def test_an_interpreter_that_cannot_be_asked_has_nothing_to_be_seen(tmp_path: Path) -> None:
    assert installation(str(tmp_path / "python"), "vllm", {}) == ""
    assert installation("false", "vllm", {}) == ""
