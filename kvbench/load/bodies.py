"""Request bodies: prompts as token ids or as text, and the fields around them, made before their time."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvbench.load.plan import LoadPlan
from kvbench.spec.access import Api
from kvbench.workload.prompts import Ids, PromptWriter, prompt_digest, text_digest
from kvbench.workload.schedule import Segment

__all__ = ["Bodies", "Body", "Piece"]

Piece = Segment | tuple[int, ...]
"""Part of a prompt: content by identity, or token ids that the server returned earlier."""

KEPT_BYTES = 64 * 2**20
"""Token ids of segments that are kept for the next request that begins with them; 16 million tokens."""


_PROMPT_IN: dict[Api, tuple[bytes, bytes]] = {
    "completions": (b', "prompt": ', b""),
    "chat": (b', "messages": [{"role": "user", "content": ', b"}]"),
}
"""What stands before and behind the prompt, by route."""


class Body:
    """An encoded request with what is to be recorded about its prompt. `content` is all that is sent."""

    __slots__ = ("content", "prompt_digest", "prompt_tokens")

    def __init__(self, content: bytes, prompt_tokens: int, digest: str) -> None:
        self.content = content
        self.prompt_tokens = prompt_tokens
        self.prompt_digest = digest


class Bodies:
    """Makes the body of a completion, or of a chat with one message, for any prompt of one round."""

    def __init__(self, plan: LoadPlan) -> None:
        self._prompts = PromptWriter(plan.token_id_range)
        before, self._behind = _PROMPT_IN[plan.api]
        self._before = json.dumps({"model": plan.model})[:-1].encode() + before
        self._words = np.array(plan.words, object) if plan.words else None
        self._opening = plan.opening
        self._tokens_before, self._tokens_behind = plan.extra_prompt_tokens, plan.extra_tokens_behind
        self._extra = plan.extra_body
        self._past_secondary = plan.past_secondary or {}
        self._after: dict[tuple[int, bool], bytes] = {}
        self._kept: OrderedDict[Segment, Ids] = OrderedDict()
        self._kept_bytes = 0

    def make(self, pieces: Sequence[Piece], output_tokens: int, *, holdout: bool = False) -> Body:
        """The body whose prompt is `pieces` one after the other; `holdout`: it goes past the secondary tier."""
        parts = [
            self._segment(piece) if isinstance(piece, Segment) else np.asarray(piece, np.int32) for piece in pieces
        ]
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        prompt = self._prompts.ids_json(ids) if self._words is None else self._text(ids, self._words)
        content = self._before + prompt + self._behind + self._fields(output_tokens, holdout)
        return Body(content, len(ids), prompt_digest(ids) if self._words is None else text_digest(prompt))

    def _text(self, ids: Ids, words: NDArray[np.object_]) -> bytes:
        """A JSON string with a word for every token but those that the server puts around it; one word at least."""
        first = min(self._tokens_before, len(ids) - 1)
        written = ids[first : max(len(ids) - self._tokens_behind, first + 1)]
        return json.dumps(self._opening + "".join(words[written])).encode()

    def whole(self, pieces: Sequence[Segment]) -> tuple[Segment, ...]:
        """`pieces`, and behind them as many tokens as the server's own take the place of: all content is sent."""
        behind = self._tokens_behind
        return (*pieces, Segment(-1 - pieces[-1].identity, behind)) if behind else tuple(pieces)

    def _segment(self, segment: Segment) -> Ids:
        ids = self._kept.get(segment)
        if ids is not None:
            self._kept.move_to_end(segment)
            return ids
        ids = self._prompts.segment_ids(segment)
        self._kept[segment] = ids
        self._kept_bytes += ids.nbytes
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return ids

    def _fields(self, output_tokens: int, holdout: bool) -> bytes:
        """Everything after the prompt; the same for all requests of one output length, held out or not."""
        fields = self._after.get((output_tokens, holdout))
        if fields is None:
            body: dict[str, object] = {
                "max_tokens": output_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._extra,
                **(self._past_secondary if holdout else {}),
            }
            if body.get("min_tokens") == "output":
                body["min_tokens"] = output_tokens
            fields = self._after[output_tokens, holdout] = b", " + json.dumps(body).encode()[1:]
        return fields
