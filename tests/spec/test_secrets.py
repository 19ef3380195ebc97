"""What is secret has no place in a profile: every run keeps its profiles, and its reports show the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.spec.loading import load_profile


@pytest.mark.parametrize("flag", ["api-key", "--api_key", "hf-token", "hf_token"])
def test_a_key_or_token_among_the_flags_is_refused_and_not_repeated(tmp_path: Path, flag: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"name: p\nengine:\n  kind: vllm\n  model: tiny\n  args: {{{flag}: s3cr3t}}\n")
    with pytest.raises(InputError, match="secrets do not belong in a profile") as caught:
        load_profile(file)
    assert str(caught.value).startswith(f"{file}:5: ")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "db_password"])
def test_a_secret_in_the_environment_is_refused_and_not_repeated(tmp_path: Path, name: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"name: p\nengine:\n  kind: vllm\n  environment: vllm-cpu\n  model: tiny\n  env: {{{name}: s3cr3t}}\n"
    )
    with pytest.raises(InputError, match=f"export {name} instead") as caught:
        load_profile(file)
    assert str(caught.value).startswith(f"{file}:6: engine.env.{name}: ")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "KEYS"])
def test_other_variables_are_taken(tmp_path: Path, name: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"name: p\nengine:\n  kind: vllm\n  environment: vllm-cpu\n  model: tiny\n  env: {{{name}: 4}}\n"
    )
    assert load_profile(file).engine.env == {name: "4"}
