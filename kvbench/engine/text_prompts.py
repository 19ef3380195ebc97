"""Prompts for servers that take only text: words of exactly one token each, whatever stands beside them.

The words are found with the server's own `/tokenize` and `/detokenize`, or in a local tokenizer.json; in both cases
the server's count of prompt tokens has to agree. Token number k of a prompt then is word k. What a chat template
puts around a text is the same for every text, and is taken out of the planned tokens.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kvbench.engine.common_words import COMMON_WORDS
from kvbench.errors import InputError
from kvbench.load.outcome import encodable
from kvbench.load.target import ROUTES
from kvbench.load.usage import usage_of_answer
from kvbench.spec.access import Api

__all__ = ["OPENING", "TextPrompts", "find_text_prompts", "sides"]

OPENING = "A"
"""What the text of a chat begins with. Many templates strip its ends, and a word without the space before it may be
of other tokens; so no word stands there."""

FEWEST, MOST = 16, 256
"""As many words as make equal blocks by chance impossible; as many as ids are used where ids are taken."""
_IDS = tuple(range(256, 4352, 8))
"""Ids whose text is looked at where no word is known to be a token: a sample of the commonest pieces."""
_LETTERS = tuple(string.ascii_letters + string.digits)
_TOGETHER = 16
"""Words whose tokens are counted in one request."""
_WORD = re.compile(r" [A-Za-z]{1,12}")
_SPACES = str.maketrans({"Ġ": " ", "▁": " "})
"""How byte-level vocabularies and SentencePiece write a space."""
_MOST_EXTRA: dict[Api, int] = {"completions": FEWEST, "chat": 4096}
"""More than this around a text is a wrong count; templates may hold a system prompt."""
_CHECKED = (3, 400)
"""Random texts, and words in each, that must have one token a word."""


@dataclass(frozen=True)
class TextPrompts:
    """How a prompt of token numbers is written."""

    words: tuple[str, ...]
    extra_tokens: int
    """Tokens in front of the words: what the server itself puts there, such as a begin mark, and the opening's."""
    opening: str = ""
    """Every text begins with it."""
    tokens_behind: int = 0
    """Tokens that the server puts behind."""
    unknown: tuple[str, ...] = ()
    """What could not be found out, as sentences."""


def find_text_prompts(
    client: httpx.Client, model: str, tokenizer: Path | None, api: Api = "completions"
) -> TextPrompts:
    """Find the words and prove them. InputError says what is missing and what to do."""
    words = _words_of_server(client, model) if tokenizer is None else _words_of(_vocabulary(tokenizer))
    if len(words) < FEWEST:
        raise InputError(
            f"only {len(words)} words of one token each were found for {model}; prompts that differ need {FEWEST}",
            key=("engine", "tokenizer"),
            do="name the model's tokenizer.json as engine.tokenizer",
        )
    if api == "completions":
        return TextPrompts(tuple(words), _extra_tokens(client, model, words))
    return _through_chat(client, model, words)


def _through_chat(client: httpx.Client, model: str, words: Sequence[str]) -> TextPrompts:
    added = _extra_tokens(client, model, words, "chat")
    around = _around(client, model, words)
    if around is not None and sum(around) == added:
        return TextPrompts(tuple(words), around[0], OPENING, around[1])
    return TextPrompts(
        tuple(words),
        added,
        OPENING,
        unknown=(
            f"how many of the {added} tokens of the chat template stand in front is not known, so shared prefixes "
            f"may be up to {added} tokens shorter than planned",
        ),
    )


def _around(client: httpx.Client, model: str, words: Sequence[str]) -> tuple[int, int] | None:
    """Tokens in front of the words of a message and behind them; None when the server does not tell."""
    texts = (words[:FEWEST], words[FEWEST - 1 :: -1])
    first, second = (_chat_ids(client, model, OPENING + "".join(text)) for text in texts)
    return None if first is None or second is None else sides(first, second, FEWEST)


def _chat_ids(client: httpx.Client, model: str, text: str) -> list[int] | None:
    body: dict[str, object] = {"model": model, "messages": _message_of(text)}
    try:
        answer = client.post("/tokenize", json=body)
        tokens = answer.json()["tokens"] if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, list) else None


def sides(first: Sequence[int], second: Sequence[int], middle: int) -> tuple[int, int] | None:
    """How many tokens two prompts have in common at their beginning and at their end, where between these there are
    `middle` tokens that begin and end differently. None: they are not of that form."""
    if len(first) != len(second):
        return None
    same = [here == there for here, there in zip(first, second, strict=True)]
    if all(same):
        return None
    front, behind = same.index(False), same[::-1].index(False)
    return (front, behind) if front + middle + behind == len(first) else None


def _message_of(text: str) -> list[dict[str, str]]:
    """The messages of a chat with this text alone."""
    return [{"role": "user", "content": text}]


def _vocabulary(path: Path) -> list[str]:
    """Every piece of a tokenizer.json (or of the directory that holds it), with its spaces as spaces."""
    file = path.expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        pieces = list(vocabulary) if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} is not a tokenizer.json: {error or type(error).__name__}",
            key=("engine", "tokenizer"),
            do="give the file, or the directory that holds it",
        ) from None
    return [str(piece).translate(_SPACES) for piece in pieces]


def _words_of(pieces: Iterable[str]) -> list[str]:
    """Whole words with the space before them: text is split at spaces, so they do not grow together.

    Common ones where there are enough: rare pieces may stand in a vocabulary and yet never come of a text.
    """
    words = {piece for piece in pieces if _WORD.fullmatch(piece) and len(piece) > 2}
    common = sorted(words.intersection(COMMON_WORDS))
    return (common if len(common) >= FEWEST else sorted(words))[:MOST]


def _words_of_server(client: httpx.Client, model: str) -> list[str]:
    """Common words, else single letters (vocabularies of bytes have nothing longer), else what the server has."""
    for candidates in (lambda: COMMON_WORDS, lambda: _LETTERS, lambda: _pieces_of_server(client, model)):
        words = sorted(_single_tokens(client, model, candidates()))[:MOST]
        if len(words) >= FEWEST and _hold_together(client, model, words):
            return words
    return []


def _single_tokens(client: httpx.Client, model: str, words: Sequence[str]) -> list[str]:
    """Those of one token each: a group of n words with n tokens has no other, and any other group is halved."""
    found: list[str] = []
    groups = [words[start : start + _TOGETHER] for start in range(0, len(words), _TOGETHER)]
    while groups:
        group = groups.pop()
        if _count(client, model, "".join(group)) == len(group):
            found += group
        elif len(group) > 1:
            groups += [group[: len(group) // 2], group[len(group) // 2 :]]
    return found


def _hold_together(client: httpx.Client, model: str, words: Sequence[str]) -> bool:
    """Whether random texts of them have one token a word: none grow together with their neighbours."""
    draw = random.Random(1)  # noqa: S311 - any texts will do
    texts, count = _CHECKED
    return all(_count(client, model, "".join(draw.choices(words, k=count))) == count for _ in range(texts))


def _pieces_of_server(client: httpx.Client, model: str) -> list[str]:
    """A sample of the vocabulary: whole words with the space before them."""
    return _words_of(text for id_ in _IDS if (text := _text_of(client, model, id_)) is not None)


def _text_of(client: httpx.Client, model: str, id_: int) -> str | None:
    answer = _post(client, "/detokenize", {"model": model, "tokens": [id_]})
    text = answer.get("prompt") if answer is not None else None
    return text if isinstance(text, str) else None


def _count(client: httpx.Client, model: str, text: str) -> int | None:
    """Tokens of a text without what the server puts in front."""
    answer = _post(client, "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
    tokens = answer.get("tokens") if answer is not None else None
    return len(tokens) if isinstance(tokens, list) else None


def _post(client: httpx.Client, path: str, body: dict[str, object]) -> dict[str, Any] | None:
    """A JSON object; None for an id that is not in the vocabulary. InputError where there is no such route."""
    try:
        answer = client.post(path, json=body)
        if answer.status_code in (404, 405, 501):
            raise InputError(
                f"the server at {client.base_url} takes prompts as text alone and has no {path}, so the length of "
                "a prompt cannot be known",
                key=("engine", "tokenizer"),
                do="name the model's tokenizer.json as engine.tokenizer",
            )
        content = answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _extra_tokens(client: httpx.Client, model: str, words: Sequence[str], api: Api = "completions") -> int:
    """What the server counts beyond the words; InputError when that is not the same for every text."""
    seen = []
    texts = (words[:FEWEST], words, words[::-1])
    for text in texts:
        written = "".join(text)
        prompt = {"messages": _message_of(OPENING + written)} if api == "chat" else {"prompt": written}
        body = {"model": model, **prompt, "max_tokens": 1, "temperature": 0}
        try:
            answer = client.post(ROUTES[api], json=body, timeout=60.0)
            if answer.status_code != 200:
                raise ValueError(f"{answer.status_code} {answer.text}")
            counted = usage_of_answer(answer.json()).prompt_tokens
            if counted is None:
                raise ValueError(f"no usage in {answer.text}")
            seen.append(counted - len(text))
        except (httpx.HTTPError, ValueError) as error:
            raise InputError(
                f"the server at {client.base_url} does not say how many tokens a text has: "
                f"{encodable(str(error))[:200] or type(error).__name__}",
                do=f"attach to a server whose answers at {ROUTES[api]} carry usage",
            ) from None
    if len(set(seen)) > 1 or not 0 <= seen[0] < _MOST_EXTRA[api]:
        shown = ", ".join(f"{len(text)} as {len(text) + extra}" for text, extra in zip(texts, seen, strict=True))
        raise InputError(
            f"words that should be one token each are counted otherwise by the server: {shown}",
            key=("engine", "tokenizer"),
            do="name the tokenizer.json of the very model that is served as engine.tokenizer",
        )
    return seen[0]
