"""Through a chat template prompts keep their planned length, and shared prefixes are really shared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.compare.load_plan import room_for_prompts
from kvbench.engine.attached import AttachedEngine
from kvbench.engine.base import Endpoint, Launch
from kvbench.engine.text_prompts import OPENING, TextPrompts, find_text_prompts, sides
from kvbench.errors import InputError
from kvbench.load.bodies import Bodies
from kvbench.load.plan import LoadPlan
from kvbench.probe.sender import Sender
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import Segment
from tests.engine.test_text_prompts import requests_of_a_run
from tests.load.play import request, schedule
from tests.standin.text_server import FOREIGN, MODEL, WORDS, TextBehaviour, text_server


def find(url: str, tokenizer: Path | None = None) -> TextPrompts:
    with httpx.Client(base_url=url, trust_env=False) as client:
        return find_text_prompts(client, MODEL, tokenizer, "chat")


def bodies(found: TextPrompts) -> Bodies:
    return Bodies(
        LoadPlan(
            schedule=Path("s"),
            out=Path(),
            arm="a",
            round=1,
            base_url="http://127.0.0.1:1",
            model=MODEL,
            token_id_range=(0, len(found.words) - 1),
            api="chat",
            words=found.words,
            opening=found.opening,
            extra_prompt_tokens=found.extra_tokens,
            extra_tokens_behind=found.tokens_behind,
        )
    )


def ids_of(behaviour: TextBehaviour, made: Bodies, *segments: Segment) -> list[int]:
    """The tokens that the server makes of a body."""
    content = json.loads(made.make(segments, 4).content)
    assert "prompt" not in content
    return [1] * behaviour.begin + behaviour.ids(behaviour.rendered(content["messages"]))


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))


@pytest.mark.parametrize(
    ("words", "runs", "strips", "begin"),
    [(WORDS, True, True, 1), (WORDS, False, False, 0), ((), False, True, 3), (FOREIGN, True, True, 1)],
    ids=["words, stripped", "words as they are", "bytes alone", "a foreign language"],
)
def test_a_prompt_has_the_planned_length_and_shares_the_planned_prefix(
    words: tuple[str, ...], runs: bool, strips: bool, begin: int
) -> None:
    behaviour = TextBehaviour(words=words, runs=runs, strips=strips, begin=begin)
    with text_server(behaviour) as url:
        found = find(url)
    assert found.unknown == ()
    front, behind = (len(behaviour.ids(part)) for part in behaviour.template)
    assert (found.extra_tokens, found.tokens_behind) == (begin + front + len(OPENING), behind)
    made = bodies(found)
    for prefix in (64, 257, 4096):
        first, second, other = (
            ids_of(behaviour, made, *pieces)
            for pieces in (
                (Segment(1, prefix), Segment(2, 40)),
                (Segment(1, prefix), Segment(3, 48)),
                (Segment(4, prefix), Segment(2, 40)),
            )
        )
        assert [len(first), len(second), len(other)] == [prefix + 40, prefix + 48, prefix + 40]
        # Words are drawn out of few, so that the two that come after the prefix may be equal by chance.
        assert prefix <= shared(first, second) <= prefix + 4
        assert found.extra_tokens <= shared(first, other) <= found.extra_tokens + 4


def test_where_the_server_does_not_tell_prefixes_are_rather_shorter_and_that_is_said() -> None:
    behaviour = TextBehaviour(tells_template=False)
    with text_server(behaviour) as url:
        found = find(url)
    total = behaviour.begin + sum(len(behaviour.ids(part)) for part in behaviour.template) + len(OPENING)
    assert (found.extra_tokens, found.tokens_behind) == (total, 0)
    assert found.unknown == (
        f"how many of the {total} tokens of the chat template stand in front is not known, so shared prefixes may "
        f"be up to {total} tokens shorter than planned",
    )
    made = bodies(found)
    first, second = (ids_of(behaviour, made, Segment(1, 256), Segment(suffix, 64)) for suffix in (2, 3))
    assert len(first) == len(second) == 320
    assert 256 - total <= shared(first, second) <= 256


def test_the_unknown_is_part_of_what_an_attached_server_could_not_prove() -> None:
    with text_server(TextBehaviour(tells_template=False)) as url:
        spec = {"kind": "attached", "base_url": url, "model": MODEL, "api": "chat"}
        profile = Profile.model_validate({"name": "arm", "engine": spec})
        engine = AttachedEngine(profile, Launch(Path(), Path("log"), None, "arm-1"))
        endpoint = engine.start(lambda line: None)
        assert any(
            "of the chat template stand in front is not known" in text for text in engine.effective().unknown
        )
    assert (endpoint.api, endpoint.opening) == ("chat", OPENING)


def test_probes_and_the_nudges_between_them_have_their_length_through_chat() -> None:
    behaviour = TextBehaviour()
    with text_server(behaviour) as url:
        spec = {"kind": "attached", "base_url": url, "model": MODEL, "api": "chat"}
        profile = Profile.model_validate({"name": "arm", "engine": spec})
        endpoint = AttachedEngine(profile, Launch(Path(), Path("log"), None, "arm-1")).start(lambda line: None)
        sender = Sender(endpoint, seed=1)
        assert sender.probe(1, 256, suffix_tokens=40).prompt_tokens == 296
        sender.nudge()
        sender.close()
    asked, nudged = behaviour.prompts[-2:]
    assert behaviour.begin + len(behaviour.ids(asked)) == 296
    assert len(nudged) < len(asked)


def test_a_local_tokenizer_does_for_the_words_of_a_chat(tmp_path: Path) -> None:
    vocabulary = {word.replace(" ", "Ġ"): index for index, word in enumerate(WORDS)}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}), encoding="utf-8")
    behaviour = TextBehaviour(routes=False)
    with text_server(behaviour) as url:
        found = find(url, tmp_path)
    assert set(found.words) == set(WORDS)
    assert len(ids_of(behaviour, bodies(found), Segment(1, 300))) == 300


def test_a_server_without_chat_is_told_with_its_answer() -> None:
    behaviour = TextBehaviour()
    behaviour.rendered = lambda messages: None  # type: ignore[assignment,method-assign,return-value]
    with text_server(behaviour) as url, pytest.raises(InputError, match=r"400 .*must be a string"):
        find(url)


words_apart = st.lists(st.integers(300, 400), min_size=2, max_size=20, unique=True)
around = st.lists(st.integers(0, 299), max_size=30)


@given(around, words_apart, around)
def test_the_sides_of_a_template_are_found_whatever_they_are(
    front: list[int], middle: list[int], behind: list[int]
) -> None:
    """Given the same words forwards and backwards, then what they have in common at both ends is the template."""
    first, second = ([*front, *words, *behind] for words in (middle, middle[::-1]))
    assert sides(first, second, len(middle)) == (len(front), len(behind))
    assert sides(first, second, len(middle) + 1) is None
    assert sides(first, first, len(middle)) is None
    assert sides(first, [*second, 1], len(middle)) is None


@given(
    front=st.integers(0, 60),
    behind=st.integers(0, 40),
    prefix=st.integers(0, 300),
    suffix=st.integers(1, 100),
)
def test_any_prompt_with_room_has_its_length_and_its_prefix(
    front: int, behind: int, prefix: int, suffix: int
) -> None:
    found = TextPrompts(tuple(f" w{number}" for number in range(64)), front + 1, OPENING, behind)
    prefixes = (Segment(1, prefix),) if prefix else ()
    made = bodies(found)
    body = made.make((*prefixes, Segment(2, suffix)), 4)
    text = json.loads(body.content)["messages"][0]["content"]
    assert body.prompt_tokens == prefix + suffix
    written = text.removeprefix(OPENING).split()
    room = prefix + suffix - front - 1 - behind
    assert len(written) == max(room, 1)
    if room > 0 and suffix > behind and prefix > front + 1:
        alone = json.loads(made.make((Segment(1, prefix + behind),), 4).content)["messages"][0]["content"]
        assert written[: prefix - front - 1] == alone.removeprefix(OPENING).split()


def endpoint_with(front: int, behind: int) -> Endpoint:
    return Endpoint(
        "http://h", "http://h/metrics", "m", (0, 63), extra_prompt_tokens=front, extra_tokens_behind=behind
    )


def test_prompts_that_have_no_room_are_refused_before_they_are_sent() -> None:
    planned = schedule(
        request(0, segments=(Segment(1, 64), Segment(2, 20))), request(1, segments=(Segment(3, 21),))
    )
    assert room_for_prompts(planned, endpoint_with(0, 0)) == ()
    assert room_for_prompts(planned, endpoint_with(10, 10)) == ()
    with pytest.raises(InputError, match="a prompt of 21 tokens is planned, and the server at http://h puts 21"):
        room_for_prompts(planned, endpoint_with(11, 10))


def test_suffixes_shorter_than_what_stands_behind_are_said() -> None:
    planned = schedule(
        request(0, segments=(Segment(1, 64), Segment(2, 12))), request(1, segments=(Segment(1, 64), Segment(3, 13)))
    )
    (said,) = room_for_prompts(planned, endpoint_with(7, 12))
    assert said.startswith("the end of the prefix of some prompts of short: the server puts 12 tokens behind each")
    assert room_for_prompts(planned, endpoint_with(7, 11)) == ()


def test_a_run_over_chat_counts_every_prompt_as_planned_and_has_one_message(tmp_path: Path) -> None:
    behaviour = TextBehaviour()
    with text_server(behaviour) as url:
        engine = f"{{kind: attached, base_url: '{url}', model: {MODEL}, api: chat}}"
        rows = requests_of_a_run(engine, tmp_path, suffix_tokens=48)
    assert (rows["prompt_tokens_engine"] == rows["prompt_tokens_planned"]).all()
    assert rows["turn"].max() == 1
    assert all(prompt.startswith(behaviour.template[0] + OPENING) for prompt in behaviour.prompts)
