"""Request bodies: prompts as token ids and the fields around them, made before their time."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from kvbench.load.plan import LoadPlan
from kvbench.workload.prompts import Ids, PromptWriter, prompt_digest
from kvbench.workload.schedule import Segment

__all__ = ["Bodies", "Body", "Piece"]

Piece = Segment | tuple[int, ...]
"""Part of a prompt: content by identity, or token ids that the server returned earlier."""

KEPT_BYTES = 64 * 2**20
"""Token ids of segments that are kept for the next request that begins with them; 16 million tokens."""


class Body:
    """An encoded request with what is to be recorded about its prompt. `content` is all that is sent."""

    __slots__ = ("content", "prompt_digest", "prompt_tokens")

    def __init__(self, content: bytes, prompt_tokens: int, digest: str) -> None:
        self.content = content
        self.prompt_tokens = prompt_tokens
        self.prompt_digest = digest


class Bodies:
    """Makes the body of `POST /v1/completions` for any prompt of one round."""

    def __init__(self, plan: LoadPlan) -> None:
        self._prompts = PromptWriter(plan.token_id_range)
        self._before = json.dumps({"model": plan.model})[:-1].encode() + b', "prompt": '
        self._extra = plan.extra_body
        self._after: dict[int, bytes] = {}
        self._kept: OrderedDict[Segment, Ids] = OrderedDict()
        self._kept_bytes = 0

    def make(self, pieces: Sequence[Piece], output_tokens: int) -> Body:
        """The body whose prompt is `pieces` one after the other."""
        parts = [
            self._segment(piece) if isinstance(piece, Segment) else np.asarray(piece, np.int32) for piece in pieces
        ]
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        content = self._before + self._prompts.ids_json(ids) + self._fields(output_tokens)
        return Body(content, len(ids), prompt_digest(ids))

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

    def _fields(self, output_tokens: int) -> bytes:
        """Everything after the prompt; the same for all requests of one output length."""
        fields = self._after.get(output_tokens)
        if fields is None:
            body: dict[str, object] = {
                "max_tokens": output_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._extra,
            }
            if body.get("min_tokens") == "output":
                body["min_tokens"] = output_tokens
            fields = self._after[output_tokens] = b", " + json.dumps(body).encode()[1:]
        return fields
