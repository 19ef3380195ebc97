"""Broken spec files: each gives one message that names the file, the line, the key and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.spec.document import read_document
from kvbench.spec.loading import load_experiment, load_profile, load_rules, load_workload
from tests.spec.broken_values import BROKEN, LOADERS, PROFILE, RULES, WORKLOAD


@pytest.mark.parametrize(
    ("kind", "good", "bad", "line", "key", "words"), BROKEN, ids=[f"{b[0]}-{b[4]}-{b[5][:24]}" for b in BROKEN]
)
def test_a_broken_value_is_named_with_line_and_key(
    tmp_path: Path, kind: str, good: str, bad: str, line: int, key: str, words: str
) -> None:
    text, load = LOADERS[kind]
    assert text.count(good) == 1, "the table must change one place of the good file"
    file = tmp_path / f"{kind}.yaml"
    file.write_text(text.replace(good, bad))
    with pytest.raises(InputError) as caught:
        load(file)
    message = str(caught.value)
    assert f"{file}:{line}: {key}: " in message
    assert words in message
    assert caught.value.exit_code == 2
    assert "pydantic" not in message
    assert "validation error" not in message


@pytest.mark.parametrize("kind", LOADERS)
def test_the_files_that_the_table_breaks_are_good(tmp_path: Path, kind: str) -> None:
    text, load = LOADERS[kind]
    file = tmp_path / f"{kind}.yaml"
    file.write_text(text)
    load(file)


# Files that are no YAML mapping at all: (content, line or None, words)
UNREADABLE = [
    (b"", None, "the file is empty"),
    (b"# only a comment\n", None, "the file is empty"),
    (b"\xff\xfe\x00n", 1, "not UTF-8 text (byte 0xff)"),
    (b"name: x\nmore: \xe9\n", 2, "not UTF-8 text (byte 0xe9)"),
    (b"name: \x00", None, "NUL bytes"),
    (b"name: x\nother: \x07", 2, "character U+0007 is not allowed"),
    (b"- a\n- b\n", 1, "expected a profile: keys with values beneath"),
    (b"just text", 1, "expected a profile"),
    (b"name: x\n\tengine: y\n", 2, "a tab; YAML indents with spaces"),
    (b"name: x\nname: y\n", 2, "name: the key is given twice (first on line 1)"),
    (b"name: [1, 2\n", 2, "not valid YAML"),
    (b"name: x\n---\nname: y\n", 2, "a second document begins (---)"),
    (b"name: !!python/object:os.system x\n", 1, "the tag tag:yaml.org,2002:python/object:os.system is not used"),
    (b"engine: !thing {a: 1}\n", 1, "the tag !thing is not used"),
    (b"name: !!bool perhaps\n", 1, "is not used here"),
    (b"name: !!int perhaps\n", 1, "'perhaps' is not a number"),
    (b"name: " + b"9" * 5000 + b"\n", 1, "a number of 5000 characters"),
    (b"name: *nowhere\n", 1, "undefined alias"),
    (b"name: &a [*a]\n", 1, "an anchor contains itself"),
    (b"? [a, b]\n: 1\n", 1, "a key must be plain text"),
    (b"<<: 1\n", 1, "'<<' merges a mapping"),
    (b"a: " + b"[" * 2000 + b"]" * 2000, 1, "nested deeper than 32 levels"),
    (
        b"a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + b"".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n".encode() for i in range(8)
        ),
        None,
        "expands to too many values",
    ),
    (b"#" * 600_000, None, "larger than 512 KiB, so not a spec file"),
]


@pytest.mark.parametrize(("content", "line", "words"), UNREADABLE, ids=[u[2][:40] for u in UNREADABLE])
def test_a_file_that_is_no_spec_gives_one_clear_error(
    tmp_path: Path, content: bytes, line: int | None, words: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_profile(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert line is None or f"{file}:{line}: " in str(caught.value)


def test_all_problems_of_a_file_come_in_one_message_in_the_order_of_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        PROFILE.replace("size: 64MiB", "szie: 64MB").replace("10m", "10x").replace("kind: vllm", "kind: x")
    )
    with pytest.raises(InputError) as caught:
        load_profile(file)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{file}:{n}" for n in (3, 9, 12, 13)]
    assert caught.value.where is not None
    assert caught.value.where.line == 3


def test_a_workload_that_measures_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "name: w\narrivals: {process: constant, rate: 1}\nphases:\n  - {name: a, for: 1s, measured: false}\n"
        "classes: {c: {suffix_tokens: 1, output_tokens: 1}}\n"
    )
    with pytest.raises(InputError, match=r"w\.yaml:3: phases: no phase is measured"):
        load_workload(file)


def test_a_file_that_disappears_or_is_a_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_document(tmp_path / "gone.yaml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_document(tmp_path)


def test_a_file_of_another_kind_is_recognised(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    with pytest.raises(InputError, match="this looks like a workload; expected a profile"):
        load_profile(file)
    file.write_text(RULES)
    with pytest.raises(InputError, match="this looks like rules; expected a workload"):
        load_workload(file)
    file.write_text("experiment: {}\n")
    with pytest.raises(InputError, match="this looks like an experiment; expected rules"):
        load_rules(file)


def test_a_secret_in_the_place_of_a_name_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("name: a\nengine: {kind: attached, model: m, base_url: 'http://x', api_key_env: sk-secret}\n")
    with pytest.raises(InputError, match="NAME of an environment variable") as caught:
        load_profile(file)
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "tiers", "line", "key"),
    [
        ("\n  ready_timeout: 2s", "", 6, "engine.ready_timeout"),
        ("", "tiers:\n  disk: {path: /mnt/kv, size_limit: 1GiB}\n", 7, "tiers.disk.size_limit"),
    ],
)
def test_what_has_no_effect_on_a_server_that_runs_already_is_refused(
    tmp_path: Path, engine: str, tiers: str, line: int, key: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"name: a\nengine:\n  kind: attached\n  model: m\n  base_url: http://h{engine}\n{tiers}")
    with pytest.raises(InputError, match="an attached server") as caught:
        load_profile(file)
    assert f"{file}:{line}: {key}: " in str(caught.value)


def test_missing_files_name_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "baseline.yaml").write_text(PROFILE)
    with pytest.raises(InputError, match=r"there is no such file\n  → did you mean baseline.yaml\?"):
        load_profile(tmp_path / "basline.yaml")
    with pytest.raises(InputError, match="there is no such file"):
        load_profile(tmp_path / "nowhere" / "x.yaml")
    with pytest.raises(InputError, match="is a directory"):
        load_profile(tmp_path)
    with pytest.raises(InputError, match="neither a file nor a shipped workload; did you mean 'mixed'"):
        load_workload("mixd")


def test_unreadable_permissions_or_devices_are_told(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        load_profile(loop)
    with pytest.raises(InputError, match="larger than"):
        load_profile(Path("/dev/zero"))


EXPERIMENT = """\
experiment:
  baseline: {name: base, engine: {kind: vllm, environment: vllm-cpu, model: tiny}}
  candidates:
    - tiered.yaml
  workload: demo
  rules: demo
"""
BROKEN_EXPERIMENTS = [
    ("  baseline:", "  basline:", 2, "experiment.basline", "did you mean 'baseline'?"),
    ("    - tiered.yaml", "    - teired.yaml", 4, "experiment.candidates[0]", "did you mean tiered.yaml?"),
    ("    - tiered.yaml", "    []", 3, "experiment.candidates", "needs at least one candidate"),
    ("    - tiered.yaml", "    - 3", 4, "experiment.candidates[0]", "a path to a file with it, or a shipped name"),
    ("kind: vllm", "kind: vlm", 2, "experiment.baseline.engine.kind", "did you mean 'vllm'?"),
    ("workload: demo", "workload: dmo", 5, "experiment.workload", "did you mean 'demo'?"),
    ("workload: demo", "workload: [demo]", 5, "experiment.workload", "expected a workload, a path to a file"),
    ("  candidates:\n    - tiered.yaml\n", "", 1, "experiment", "needs the key 'candidates'"),
    ("  rules: demo", "  rules: demo\nname: x", 7, "name", "unknown key beside experiment"),
]


@pytest.mark.parametrize(("good", "bad", "line", "key", "words"), BROKEN_EXPERIMENTS)
def test_a_broken_experiment_names_the_member(
    tmp_path: Path, good: str, bad: str, line: int, key: str, words: str
) -> None:
    (tmp_path / "tiered.yaml").write_text(PROFILE)
    file = tmp_path / "experiment.yaml"
    assert EXPERIMENT.count(good) == 1
    file.write_text(EXPERIMENT.replace(good, bad))
    with pytest.raises(InputError) as caught:
        load_experiment(file)
    assert f"{file}:{line}: {key}: " in str(caught.value)
    assert words in str(caught.value)


def test_an_experiment_must_be_one(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("experiment: 3\n")
    with pytest.raises(InputError, match="expected the keys baseline, candidates, workload, rules"):
        load_experiment(file)
    file.write_text(PROFILE)
    with pytest.raises(InputError, match="is not an experiment"):
        load_experiment(file)
