"""How the emulated server words its answers: vLLM's JSON of completions and chats, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence

__all__ = ["Wording", "text_of"]


def text_of(ids: Sequence[int]) -> str:
    """Printable ASCII; other bytes have no text of their own."""
    return "".join(chr(token) for token in ids if 32 <= token < 127)


class Wording:
    """Of the answers of one route of one server."""

    def __init__(self, model: str, version: str, *, chat: bool) -> None:
        self._model = model
        self._model_json = json.dumps(model)
        self._version = version
        self._chat = chat
        self.prefix = "chatcmpl-" if chat else "cmpl-"
        """Of the names of answers."""
        self._whole = "chat.completion" if chat else "text_completion"
        self._streamed = "chat.completion.chunk" if chat else "text_completion"

    def opening(self, name: str, created_s: int) -> list[bytes]:
        """Events before the first token: in a chat, who speaks."""
        if not self._chat:
            return []
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return [self._event(name, created_s, choice, ',"prompt_token_ids":null,"prompt_text":null')]

    def token(self, name: str, created_s: int, token: int, reason: str | None, *, with_ids: bool) -> bytes:
        """The event of one token."""
        ids = f"[{token}]" if with_ids else "null"
        text, why = json.dumps(text_of([token])), json.dumps(reason)
        if self._chat:
            stop = ',"stop_reason":null' if reason else ""
            choice = f'"delta":{{"content":{text}}},"logprobs":null,"finish_reason":{why}{stop},"token_ids":{ids}'
        else:
            choice = (
                f'"text":{text},"logprobs":null,"finish_reason":{why},"stop_reason":null,"prompt_token_ids":null,'
                f'"token_ids":{ids}'
            )
        return self._event(name, created_s, f'{{"index":0,{choice}}}')

    def _event(self, name: str, created_s: int, choice: str, more: str = "") -> bytes:
        return (
            f'{{"id":{json.dumps(name)},"object":"{self._streamed}","created":{created_s},"model":{self._model_json},'
            f'"choices":[{choice}]{more}}}'
        ).encode()

    def usage(self, name: str, created_s: int, usage: dict[str, object]) -> bytes:
        """The event that counts, after the last token."""
        return self._json(name, self._streamed, created_s, [], usage)

    def whole(
        self,
        name: str,
        created_s: int,
        ids: Sequence[int],
        reason: str,
        usage: dict[str, object],
        *,
        with_ids: bool,
    ) -> bytes:
        """The body of an answer that is not streamed."""
        text = text_of(ids)
        said: dict[str, object] = (
            {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        )
        choice = {"index": 0, **said, "finish_reason": reason, "token_ids": list(ids) if with_ids else None}
        return self._json(name, self._whole, created_s, [choice], usage)

    def _json(
        self, name: str, kind: str, created_s: int, choices: list[dict[str, object]], usage: dict[str, object]
    ) -> bytes:
        body = {
            "id": name,
            "object": kind,
            "created": created_s,
            "model": self._model,
            "choices": choices,
            "usage": usage,
            "system_fingerprint": self._version,
        }
        return json.dumps(body, separators=(",", ":")).encode()
