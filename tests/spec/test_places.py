"""A fault is told with the place of its key, however a flag is spelt, or of the nearest that was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import InputError, NotSupportedYetError, Where
from kvbench.spec.document import KeyPath
from kvbench.spec.loading import load_profile
from kvbench.spec.places import about, placed
from kvbench.spec.profile import Profile

PROFILE = """\
name: arm
engine:
  kind: vllm
  command: [vllm, serve]
  model: tiny
  args:
    --max_model_len: 4096
    compilation-config.mode: 3
tiers:
  host:
    size: 1GiB
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "arm.yaml"
    path.write_text(PROFILE)
    return path


@pytest.mark.parametrize(
    ("key", "line", "named"),
    [
        (("engine", "model"), 5, "engine.model"),
        (("engine", "args", "max-model-len"), 7, "engine.args.--max_model_len"),
        (("engine", "args", "compilation-config.mode"), 8, "engine.args.compilation-config.mode"),
        (("engine", "version"), 2, "engine.version"),
        (("tiers", "disk", "path"), 9, "tiers.disk.path"),
        (("nowhere",), 1, "nowhere"),
    ],
)
def test_a_key_is_placed_in_the_file_of_its_profile(file: Path, key: KeyPath, line: int, named: str) -> None:
    with pytest.raises(InputError) as told, placed(load_profile(file)):
        raise InputError("it is wrong", key=key, do="mend it")
    assert str(told.value) == f"{file}:{line}: {named}: it is wrong\n  → mend it"


def test_the_same_words_are_said_of_a_profile_that_came_from_no_file() -> None:
    profile = Profile.model_validate({"name": "arm", "engine": {"kind": "emulated", "model": "tiny"}})
    with pytest.raises(InputError) as told, placed(profile):
        raise InputError("it is wrong", key=("tiers", "secondary", 1), do="mend it")
    assert str(told.value) == "tiers.secondary[1]: it is wrong\n  → mend it"


def test_a_place_that_is_known_already_and_an_error_about_nothing_in_the_file_stay_as_they_are(file: Path) -> None:
    elsewhere = Where(Path("trace.jsonl"), 3)
    with pytest.raises(InputError) as told, placed(load_profile(file)), about("engine"):
        raise InputError("it is wrong", where=elsewhere)
    assert told.value.where == elsewhere
    with pytest.raises(InputError) as told, placed(load_profile(file)):
        raise InputError("the network is down")
    assert str(told.value) == "the network is down"


def test_what_an_error_is_about_can_be_said_around_it_and_what_it_says_itself_counts(file: Path) -> None:
    with pytest.raises(InputError) as told, placed(load_profile(file)), about("engine", "command"):
        raise InputError("it cannot be found")
    assert str(told.value) == f"{file}:4: engine.command: it cannot be found"
    with pytest.raises(InputError) as told, placed(load_profile(file)), about("engine", "command"):
        raise NotSupportedYetError("this model", key=("engine", "model"))
    assert str(told.value) == f"{file}:5: engine.model: this model is not supported yet"
