"""What the emulated server says: token ids of answers, keys of prompts, event streams, errors. No sockets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvbench.engine.emulated.fates import LEAKED_FROM

__all__ = [
    "BadRequest",
    "Completion",
    "answer_ids",
    "block_keys",
    "leaked_ids",
    "parse_completion",
    "tokens_asked",
    "usage",
]

FIRST_ID, LAST_ID = 32, 255
"""Token ids of answers: printable in byte-level vocabularies, and the default range of prompts."""


class BadRequest(ValueError):
    """The body is no completion that this server can serve; says why, in vLLM's form."""

    def body(self) -> bytes:
        error = {"message": str(self), "type": "BadRequestError", "param": None, "code": 400}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True)
class Completion:
    """A request as the body asks for it."""

    prompt: Sequence[int]
    output_tokens: int
    stream: bool
    with_ids: bool
    with_usage: bool
    past_secondary: bool = False
    """Nothing is to be loaded from the tiers behind the host (`kv_transfer_params.kv_load_tiers` without any)."""


def parse_completion(body: bytes, *, model: str, max_model_len: int, chat: bool = False) -> Completion:
    """BadRequest for anything else; `chat`: the prompt is in `messages`."""
    fields = _fields(body)
    if fields.get("model") not in (None, model):
        raise BadRequest(f"The model `{fields.get('model')}` does not exist.")
    prompt = _prompt(_rendered(fields.get("messages")) if chat else fields.get("prompt"))
    count = fields.get("max_tokens", 16)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {count!r}.")
    if len(prompt) + count > max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens, but {len(prompt)} prompt and {count} "
            "output tokens were asked for."
        )
    options, transfer = fields.get("stream_options"), fields.get("kv_transfer_params")
    return Completion(
        prompt=prompt,
        output_tokens=count,
        stream=fields.get("stream") is True,
        with_ids=fields.get("return_token_ids") is True,
        with_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        past_secondary=isinstance(transfer, Mapping) and transfer.get("kv_load_tiers") == [],
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        raise BadRequest("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise BadRequest("the body is not an object")
    return fields


def _rendered(messages: object) -> str:
    """The text that the built-in model's chat template makes of them (`tiny_model.CHAT_TEMPLATE`)."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list, and not empty")
    if not all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages):
        raise BadRequest("each message must have a role and a text as content")
    return "".join(f"<{m.get('role')}>{m['content']}\n" for m in messages) + "<assistant>"


def tokens_asked(body: bytes, *, back: bool) -> tuple[int, bytes]:
    """Status and answer of `/tokenize`, or `back` of `/detokenize`, in the built-in model's vocabulary of bytes."""
    try:
        fields = _fields(body)
        if back:
            return 200, json.dumps({"prompt": bytes(_prompt(fields.get("tokens"))).decode("latin-1")}).encode()
        asked = _rendered(fields["messages"]) if "messages" in fields else fields.get("prompt")
        tokens = _prompt(asked)
    except BadRequest as error:
        return 400, error.body()
    except ValueError:
        return 400, BadRequest("no such token").body()
    return 200, json.dumps({"count": len(tokens), "tokens": list(tokens)}).encode()


def _prompt(given: object) -> Sequence[int]:
    """Token ids; text counts as its bytes, as in the built-in model's vocabulary."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list | str):
        given = given[0]
    if isinstance(given, str):
        given = list(given.encode("utf-8", "surrogatepass"))
    if not isinstance(given, list) or not given:
        raise BadRequest("prompt must be text or a list of token ids, and not empty")
    if set(map(type, given)) != {int} or min(given) < 0 or max(given) >= 2**31:
        raise BadRequest("prompt must be a list of token ids")
    return given


def answer_ids(prompt: Sequence[int], count: int, *, corrupt: bool = False) -> list[int]:
    """A function of the prompt alone; a corrupt answer has every token but the first moved by one."""
    seed = hashlib.blake2b(np.asarray(prompt, "<i4").tobytes(), digest_size=32).digest()
    size = LAST_ID - FIRST_ID + 1
    ids = [FIRST_ID + (seed[index % 32] + index // 32 * 7) % size for index in range(count)]
    return ids[:1] + [FIRST_ID + (token - FIRST_ID + 1) % size for token in ids[1:]] if corrupt else ids


def leaked_ids(prompt: Sequence[int], others: Iterable[Sequence[int]], count: int) -> list[int]:
    """`count` tokens out of the first of the other prompts that begins otherwise; empty: no such has them."""
    head = list(prompt[:LEAKED_FROM])
    for other in others:
        if list(other[:LEAKED_FROM]) != head and len(other) >= LEAKED_FROM + count:
            return list(other[LEAKED_FROM : LEAKED_FROM + count])
    return []


def block_keys(tokens: Sequence[int], block_tokens: int) -> list[int]:
    """A key for every whole block, chained: equal keys mean equal tokens from the beginning on."""
    data = np.asarray(tokens, "<i4").tobytes()
    width = 4 * block_tokens
    keys: list[int] = []
    parent = b""
    for start in range(0, len(data) - width + 1, width):
        parent = hashlib.blake2b(parent + data[start : start + width], digest_size=8).digest()
        keys.append(int.from_bytes(parent, "little"))
    return keys


def usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, object]:
    """vLLM's, with `--enable-prompt-tokens-details`."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
