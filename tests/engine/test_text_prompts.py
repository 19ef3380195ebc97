"""Servers that take only text get prompts of exactly the planned length, and equal prefixes stay equal."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from kvbench.compare.load_plan import prompts_of
from kvbench.engine.attached import AttachedEngine
from kvbench.engine.base import Endpoint, Launch
from kvbench.errors import InputError
from kvbench.load.bodies import Bodies
from kvbench.load.plan import LoadPlan
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import Segment
from tests.cli.invoke import kvbench
from tests.standin.text_server import FOREIGN, MODEL, WORDS, TextBehaviour, text_server


def attach(url: str, **engine: object) -> Endpoint:
    spec = {"kind": "attached", "base_url": url, "model": MODEL, **engine}
    profile = Profile.model_validate({"name": "arm", "engine": spec})
    return AttachedEngine(profile, Launch(Path(), Path("log"), None, "arm-1")).start(lambda line: None)


def bodies(endpoint: Endpoint) -> Bodies:
    return Bodies(LoadPlan(schedule=Path("s"), out=Path(), arm="a", round=1, **prompts_of(endpoint)))


@pytest.mark.parametrize("begin", [0, 1, 3])
@pytest.mark.parametrize(
    ("words", "runs"),
    [(WORDS, True), ((), False), (FOREIGN, True)],
    ids=["words", "bytes alone", "a foreign language"],
)
def test_a_prompt_has_as_many_tokens_as_planned(words: tuple[str, ...], runs: bool, begin: int) -> None:
    behaviour = TextBehaviour(words=words, runs=runs, begin=begin)
    with text_server(behaviour) as url:
        endpoint = attach(url)
    assert endpoint.extra_prompt_tokens == begin
    made = bodies(endpoint)
    for tokens in (16, 257, 4096):
        body = made.make((Segment(7, tokens),), 4)
        text = json.loads(body.content)["prompt"]
        assert begin + len(behaviour.ids(text)) == body.prompt_tokens == tokens


def test_equal_prefixes_are_equal_text_and_different_ones_differ_at_once() -> None:
    with text_server(TextBehaviour()) as url:
        made = bodies(attach(url))
    first, second, other = (
        json.loads(made.make(pieces, 4).content)["prompt"].split()
        for pieces in (
            (Segment(1, 256), Segment(2, 16)),
            (Segment(1, 256), Segment(3, 16)),
            (Segment(4, 256), Segment(2, 16)),
        )
    )
    assert first[:255] == second[:255]
    assert first[255:] != second[255:]
    assert first[:16] != other[:16]


def test_without_the_routes_a_local_tokenizer_does(tmp_path: Path) -> None:
    vocabulary = {word.replace(" ", "Ġ"): index for index, word in enumerate(WORDS)}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}), encoding="utf-8")
    with text_server(TextBehaviour(routes=False)) as url:
        with pytest.raises(InputError, match=r"engine\.tokenizer"):
            attach(url)
        endpoint = attach(url, tokenizer=str(tmp_path))
    assert set(endpoint.words) == set(WORDS)
    assert endpoint.extra_prompt_tokens == 1


def test_a_tokenizer_of_another_model_is_found_out_by_the_servers_count(tmp_path: Path) -> None:
    vocabulary = {f"Ġ{first}{second}zzz": 1 for first in "abcdef" for second in "abcdef"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}), encoding="utf-8")
    with (
        text_server(TextBehaviour(routes=False)) as url,
        pytest.raises(InputError, match="counted otherwise by the server"),
    ):
        attach(url, tokenizer=str(tmp_path / "tokenizer.json"))


def test_words_that_grow_together_are_not_taken() -> None:
    with text_server(TextBehaviour(merges=True)) as url:
        endpoint = attach(url)
    assert all(len(word) == 1 for word in endpoint.words)


@pytest.mark.parametrize("content", ["", "[]", '{"model": 3}'])
def test_what_is_no_tokenizer_is_told_with_its_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with text_server(TextBehaviour(routes=False)) as url, pytest.raises(InputError, match=r"tokenizer\.json"):
        attach(url, tokenizer=str(tmp_path))


WORKLOAD = """
name: text
seed: 3
arrivals: {{process: constant, rate: 10/s}}
phases: [{{name: steady, for: 2s}}]
classes:
  long: {{prefix: {{tokens: 256, pool: 3, popularity: uniform}}, suffix_tokens: {suffix}, output_tokens: 4}}
  talk: {{turns: 2, think: 100ms, prefix: {{tokens: 128, pool: 2, popularity: uniform}}, suffix_tokens: {suffix},
         output_tokens: 4}}
"""


def requests_of_a_run(engine: str, folder: Path, *, suffix_tokens: int) -> pd.DataFrame:
    """What `kvbench run` recorded of two seconds of documents and talks, all of them answered."""
    (folder / "w.yaml").write_text(WORKLOAD.format(suffix=suffix_tokens), encoding="utf-8")
    (folder / "p.yaml").write_text(f"name: text\nengine: {engine}\n", encoding="utf-8")
    answer = kvbench("run", folder / "p.yaml", "-w", folder / "w.yaml", "--out", folder / "out")
    assert answer.code == 0, answer.text
    (table,) = (folder / "out").rglob("requests.parquet")
    rows = pd.read_parquet(table)
    assert len(rows) >= 20
    assert (rows["status"] == "ok").all(), rows["error"].tolist()
    return rows


def test_a_run_over_text_counts_every_prompt_as_planned(tmp_path: Path) -> None:
    with text_server(TextBehaviour()) as url:
        engine = f"{{kind: attached, base_url: '{url}', model: {MODEL}}}"
        rows = requests_of_a_run(engine, tmp_path, suffix_tokens=16)
    assert (rows["prompt_tokens_engine"] == rows["prompt_tokens_planned"]).all()
    assert rows.groupby("prefix")["id"].count().max() > 1
