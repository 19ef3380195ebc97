"""Request logs in the style of OpenAI's and vLLM's servers: a JSON record a line, with token ids, text or messages.

Blocks are told by their content: each has a hash of everything up to its end, so that equal beginnings have equal
blocks. Contents are hashed line by line and kept nowhere. Without token ids a token counts as so many bytes of a
plain rendering as it has on average over the whole file, where records say how many tokens their prompts had, else
as four; the chat template is not known. Pictures, sounds and files that messages carry are told by a short digest:
engines do not read their letters as tokens.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvbench.errors import InputError, Where
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.fields import Json, parse_json
from kvbench.workload.traces.trace import MOST_TOKENS, Columns, Record

__all__ = ["BLOCK_TOKENS", "CHARACTERS_A_TOKEN", "bytes_a_token", "looks_like", "read_requests"]

BLOCK_TOKENS = 16
"""vLLM's block on a GPU; contents are cut into blocks of this size unless another is asked for."""
CHARACTERS_A_TOKEN = 4
"""A rule of thumb for English text, as OpenAI's documentation gives it."""
_TIMES = ("timestamp", "created", "created_at", "time", "ts", "arrival_time")
_IDS = ("prompt_token_ids", "token_ids", "input_ids", "prompt_ids")
_TEXTS = ("messages", "prompt", "input")
_BEFORE = (("messages", "system"), ("input", "instructions"))
"""Beside which prompt a text stands that the model reads first (Anthropic's messages, OpenAI's responses)."""
_SESSIONS = ("session_id", "conversation_id", "thread_id")
_BODIES = ("body", "request", "params")
_OUTPUTS = ("output_tokens", "completion_tokens", "output_length")
_INPUTS = ("input_tokens", "prompt_tokens", "input_length")
_ALLOWED = ("max_completion_tokens", "max_tokens")
_ID_BYTES = 8
_EPOCH_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""From which number on a time is in ns, µs or ms, and how many of them a second has: since 1970, seconds reach 1e11
in the year 5138, and the smaller units passed these figures in 1973."""
_LATEST = 1e20
_MEDIA = ("image", "audio", "video", "file")
"""Of parts of a message whose `type` has one of these words in it, long texts are data."""
_LONG_CHARACTERS = 256
_TEMPLATE_TOKENS, _MEDIA_TOKENS = 1_000, 200_000
"""What a chat template may add to a prompt, and what one picture or film may have. A token of text has a byte or
more, so that a log with fewer has cut its prompts off."""
_UTF8 = ("utf-8", "surrogatepass")


@dataclass(frozen=True)
class _Prompt:
    """What was sent: text, or eight bytes for each token id."""

    content: bytes
    token_ids: bool
    told_tokens: int | None
    """As the engine counted them, where the record says so."""


def looks_like(record: Json) -> bool:
    """Whether a record has a prompt in it, by itself or in the request that it wraps."""
    return any(key in part for part in _parts(record) for key in (*_IDS, *_TEXTS))


def bytes_a_token(lines: Iterable[bytes], path: Path) -> float:
    """Over all texts whose tokens were counted, what a token has on average; four where none was.

    One figure for the whole file: prompts that begin alike have their blocks cut at the same places only if every
    record is cut by the same one. Lines that cannot be read are left to `read_requests`.
    """
    content = tokens = 0
    for line_number, line in enumerate(lines, start=1):
        where = Where(path, line_number)
        try:
            record = parse_json(line, where)
            if not isinstance(record, dict):
                continue
            prompt = _prompt(record, where)
        except InputError:
            continue
        if prompt.told_tokens and not prompt.token_ids:
            content += len(prompt.content)
            tokens += prompt.told_tokens
    return content / tokens if content and tokens else float(CHARACTERS_A_TOKEN)


def read_requests(
    lines: Iterable[bytes], path: Path, columns: Columns, block_tokens: int, width: float, bad: BadLines
) -> None:
    """Add every record, cut at `width` bytes a token. Blank lines are skipped; InputError names the line."""
    for line_number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        where = Where(path, line_number)
        with bad.skipping():
            record = parse_json(line, where)
            if not isinstance(record, dict):
                raise InputError("expected a JSON object", where=where)
            columns.add(_record(record, block_tokens, width, where), where)


def _parts(record: Json) -> list[Json]:
    """The record itself, then the request that it wraps."""
    return [record, *(part for key in _BODIES if isinstance(part := record.get(key), dict))]


def _record(record: Json, block_tokens: int, width: float, where: Where) -> Record:
    parts = _parts(record)
    time_s = _time_s(_first(parts, _TIMES), where)
    prompt = _prompt(record, where)
    cut = _ID_BYTES if prompt.token_ids else width
    tokens = prompt.told_tokens or math.ceil(len(prompt.content) / cut)
    told = (_whole(_usage(record).get("completion_tokens")), _whole(_first(parts, _OUTPUTS)), _answered(record))
    output = next((count for count in told if count is not None), None)
    session = _first(parts, _SESSIONS)
    model = _first(parts, ("model",))
    return Record(
        time=time_s,
        input_tokens=tokens,
        output_tokens=output if output is not None else _whole(_first(parts, _ALLOWED)) or 1,
        blocks=list(_hashes(prompt.content, block_tokens, cut, tokens)),
        session=session if isinstance(session, str | int) and not isinstance(session, bool) else None,
        label=model if isinstance(model, str) else None,
    )


def _prompt(record: Json, where: Where) -> _Prompt:
    parts = _parts(record)
    ids = _first(parts, _IDS)
    completed = _first(parts, ("prompt",)) if ids is None else None
    if isinstance(completed, list) and completed and all(type(item) is int for item in completed):
        ids = completed  # OpenAI's completions take token ids as a prompt
    if ids is not None:
        content = _id_bytes(ids, where)
        return _Prompt(content, True, len(content) // _ID_BYTES)
    told = _whole(_usage(record).get("prompt_tokens")) or _whole(_first(parts, _INPUTS))
    if told is not None and told > MOST_TOKENS:
        raise InputError(f"an input of {told} tokens cannot be", where=where)
    prompt = _first(parts, _TEXTS)
    content = _rendered(prompt, where)
    if not content and (told or 0) > BLOCK_TOKENS:
        raise InputError(f"its prompt had {told} tokens, and the log kept no text of them", where=where)
    content = b"".join(_before(parts)) + content
    if told is not None and told > len(content) + _TEMPLATE_TOKENS + _MEDIA_TOKENS * _media_parts(prompt):
        raise InputError(
            f"its prompt had {told} tokens, and the log kept {len(content)} bytes of it: what was cut off would "
            "count as equal in all",
            where=where,
        )
    return _Prompt(content, False, told or None)


def _before(parts: Sequence[Json]) -> Iterator[bytes]:
    """What the chat template puts before the messages; the engine's count of tokens has it in."""
    told = [_first(parts, ("tools",))]
    told += [part.get(name) for part in parts for beside, name in _BEFORE if part.get(beside) is not None]
    for each in told:
        if each:
            yield (each if isinstance(each, str) else json.dumps(each, sort_keys=True)).encode(*_UTF8)


def _first(parts: Iterable[Json], names: Iterable[str]) -> object:
    chosen = list(names)
    return next((part[name] for part in parts for name in chosen if part.get(name) is not None), None)


def _usage(record: Json) -> Json:
    answer = record.get("response")
    inner = answer.get("body", answer) if isinstance(answer, dict) else {}
    for place in (record, answer, inner):
        usage = place.get("usage") if isinstance(place, dict) else None
        if isinstance(usage, dict):
            return usage
    return {}


def _answered(record: Json) -> int | None:
    """Tokens of the answer that a log keeps as token ids."""
    ids = record.get("output_token_ids")
    return len(ids) if isinstance(ids, list) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _time_s(value: object, where: Where) -> float:
    """Seconds since 1970 (or any other start); dates, and ms, µs and ns since 1970, are recognised."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= _LATEST:
            raise InputError("the time is not a finite number, or beyond all times", where=where)
        return value / next((unit for least, unit in _EPOCH_UNITS if value > least), 1.0)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
        except ValueError:
            raise InputError(f"expected a time, got {value[:40]!r}", where=where) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise InputError(f"has no time under any of {', '.join(_TIMES)}", where=where)


def _id_bytes(ids: object, where: Where) -> bytes:
    """Eight bytes a token."""
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise InputError("expected token ids as a list of whole numbers", where=where)
    try:
        return array("q", ids).tobytes()
    except OverflowError:
        raise InputError("a token id cannot be so large", where=where) from None


def _rendered(prompt: object, where: Where) -> bytes:
    """Text as it is; messages one after the other, each with its role; anything else as canonical JSON."""
    if isinstance(prompt, str):
        return prompt.encode(*_UTF8)
    if not isinstance(prompt, list):
        raise InputError("expected messages, a prompt or token ids", where=where)
    parts: list[str] = []
    for message in prompt:
        if isinstance(message, str):
            parts.append(message)
        elif isinstance(message, dict):
            content = message.get("content")
            rest = {key: value for key, value in message.items() if key not in ("role", "content") and value}
            text = content if isinstance(content, str) else json.dumps(_told(content), sort_keys=True)
            more = json.dumps(rest, sort_keys=True) if rest else ""
            parts.append(f"<{message.get('role')}>{text}{more}\n")
        else:
            raise InputError("expected messages as objects with role and content", where=where)
    return "".join(parts).encode(*_UTF8)


def _told(content: object) -> object:
    """The parts of a message, with digests in the place of data."""
    if not isinstance(content, list):
        return content
    return [_digested(part) if _is_media(part) else part for part in content]


def _media_parts(prompt: object) -> int:
    """Pictures, sounds and files in all messages."""
    messages = prompt if isinstance(prompt, list) else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return sum(_is_media(part) for content in contents if isinstance(content, list) for part in content)


def _is_media(part: object) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and any(word in kind for word in _MEDIA)


def _digested(value: object) -> object:
    if isinstance(value, dict):
        return {key: _digested(inner) for key, inner in value.items()}
    if isinstance(value, str) and len(value) > _LONG_CHARACTERS:
        return hashlib.blake2b(value.encode(*_UTF8), digest_size=16).hexdigest()
    return value


def _hashes(content: bytes, block_tokens: int, width: float, tokens: int) -> Iterator[int]:
    """Of every block of `tokens` tokens, the hash of all up to its end; the last one may be partial.

    The last one takes all bytes that are left. Where they are more than a block has, which the record's own count
    of tokens leaves no blocks for, the last whole one takes them as well: prompts that differ there differ in a
    block that counts.
    """
    chain = hashlib.blake2b(digest_size=7)  # 56 bits: a number that any reader holds
    blocks = -(-tokens // block_tokens)
    ends = [round(number * block_tokens * width) for number in range(1, blocks)]
    whole = tokens // block_tokens
    if whole and whole <= len(ends) and len(content) - ends[whole - 1] > block_tokens * width:
        ends[whole - 1] = len(content)
    start = 0
    for end in (*ends, len(content)) if blocks else ():
        chain.update(content[start:end])
        chain.update(b"|")
        yield int.from_bytes(chain.digest())
        start = max(start, end)
