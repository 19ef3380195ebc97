"""Request logs in the style of OpenAI's and vLLM's servers: a JSON record a line, with token ids, text or messages.

Blocks are told by their content: each has a hash of everything up to its end, so that equal beginnings have equal
blocks. Contents are hashed line by line and kept nowhere. Without token ids a token counts as four characters of a
plain rendering, unless the record says how many tokens its prompt had; the chat template is not known.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from kvbench.errors import InputError, Where
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.fields import Json, parse_json
from kvbench.workload.traces.trace import Columns, Record

__all__ = ["BLOCK_TOKENS", "CHARACTERS_A_TOKEN", "looks_like", "read_requests"]

BLOCK_TOKENS = 16
"""vLLM's block on a GPU; contents are cut into blocks of this size unless another is asked for."""
CHARACTERS_A_TOKEN = 4
"""A rule of thumb for English text, as OpenAI's documentation gives it."""
_TIMES = ("timestamp", "created", "created_at", "time", "ts", "arrival_time")
_IDS = ("prompt_token_ids", "token_ids", "input_ids", "prompt_ids")
_TEXTS = ("messages", "prompt", "input")
_SESSIONS = ("session_id", "conversation_id", "thread_id")
_BODIES = ("body", "request", "params")
_OUTPUTS = ("output_tokens", "completion_tokens", "output_length")
_INPUTS = ("input_tokens", "prompt_tokens", "input_length")
_ALLOWED = ("max_completion_tokens", "max_tokens")


def looks_like(record: Json) -> bool:
    """Whether a record has a prompt in it, by itself or in the request that it wraps."""
    return any(key in part for part in _parts(record) for key in (*_IDS, *_TEXTS))


def read_requests(lines: Iterable[bytes], path: Path, columns: Columns, block_tokens: int, bad: BadLines) -> None:
    """Add every record. Blank lines are skipped; InputError names the line at fault."""
    for line_number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        where = Where(path, line_number)
        with bad.skipping():
            record = parse_json(line, where)
            if not isinstance(record, dict):
                raise InputError("expected a JSON object", where=where)
            columns.add(_record(record, block_tokens, where), where)


def _parts(record: Json) -> list[Json]:
    """The record itself, then the request that it wraps."""
    return [record, *(part for key in _BODIES if isinstance(part := record.get(key), dict))]


def _record(record: Json, block_tokens: int, where: Where) -> Record:
    parts = _parts(record)
    time_s = _time_s(_first(parts, _TIMES), where)
    usage = _usage(record)
    ids = _first(parts, _IDS)
    width: float = CHARACTERS_A_TOKEN
    prompt = _first(parts, _TEXTS) if ids is None else None
    completed = _first(parts, ("prompt",)) if ids is None else None
    if isinstance(completed, list) and completed and all(type(item) is int for item in completed):
        ids = completed  # OpenAI's completions take token ids as a prompt
    if ids is not None:
        content, width, tokens = _id_bytes(ids, where)
    else:
        content = _rendered(prompt, where)
        told = _whole(usage.get("prompt_tokens")) or _whole(_first(parts, _INPUTS))
        tokens = told or -(-len(content) // CHARACTERS_A_TOKEN)
    output = _whole(usage.get("completion_tokens")) or _whole(_first(parts, _OUTPUTS)) or _answered(record)
    session = _first(parts, _SESSIONS)
    model = _first(parts, ("model",))
    return Record(
        time=time_s,
        input_tokens=tokens,
        output_tokens=output if output is not None else _whole(_first(parts, _ALLOWED)) or 1,
        blocks=list(_hashes(content, block_tokens, width, tokens)),
        session=session if isinstance(session, str | int) and not isinstance(session, bool) else None,
        label=model if isinstance(model, str) else None,
    )


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
    """Seconds since 1970 (or any other start); milliseconds and dates are recognised."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value / 1000.0 if value > 1e11 else float(value)  # seconds reach 1e11 in the year 5138
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
        except ValueError:
            raise InputError(f"expected a time, got {value[:40]!r}", where=where) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise InputError(f"has no time under any of {', '.join(_TIMES)}", where=where)


def _id_bytes(ids: object, where: Where) -> tuple[bytes, int, int]:
    """(Eight bytes a token, 8, tokens)."""
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise InputError("expected token ids as a list of whole numbers", where=where)
    try:
        return array("q", ids).tobytes(), 8, len(ids)
    except OverflowError:
        raise InputError("a token id cannot be so large", where=where) from None


def _rendered(prompt: object, where: Where) -> bytes:
    """Text as it is; messages one after the other, each with its role; anything else as canonical JSON."""
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    if not isinstance(prompt, list):
        raise InputError("expected messages, a prompt or token ids", where=where)
    parts: list[str] = []
    for message in prompt:
        if isinstance(message, str):
            parts.append(message)
        elif isinstance(message, dict):
            content = message.get("content")
            rest = {key: value for key, value in message.items() if key not in ("role", "content") and value}
            text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
            more = json.dumps(rest, sort_keys=True) if rest else ""
            parts.append(f"<{message.get('role')}>{text}{more}\n")
        else:
            raise InputError("expected messages as objects with role and content", where=where)
    return "".join(parts).encode("utf-8", "surrogatepass")


def _hashes(content: bytes, block_tokens: int, width: float, tokens: int) -> Iterator[int]:
    """Of every block of `tokens` tokens, the hash of all up to its end; the last one may be partial."""
    size = max(1, round(block_tokens * width))
    chain = hashlib.blake2b(digest_size=7)  # 56 bits: a number that any reader holds
    blocks = -(-tokens // block_tokens)
    for number in range(blocks):
        chain.update(content[number * size : (number + 1) * size])
        chain.update(b"|")
        yield int.from_bytes(chain.digest())
