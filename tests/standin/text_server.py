"""A loopback server that takes prompts as text alone, with a small tokenizer of its own; answers at once.

Its vocabulary: every byte, and some words with a space before them. It puts one begin mark before a prompt, and a
chat template around a message.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvbench.engine.common_words import COMMON_WORDS

MODEL = "text-only"
BEGIN = 1
WORDS = COMMON_WORDS[::2]
FOREIGN = tuple(f" {first}{second}{third}x" for first in "bdfgkl" for second in "aeiou" for third in "mnprst")
_PIECE = re.compile(r" [a-zA-Z]+|.", re.DOTALL)
_RUN = re.compile(r" ?[a-zA-Z]+|.", re.DOTALL)


@dataclass
class TextBehaviour:
    """What the server has and how it counts."""

    words: tuple[str, ...] = WORDS
    routes: bool = True
    """Whether there are `/tokenize` and `/detokenize`."""
    begin: int = 1
    """Begin marks in front of a prompt."""
    merges: bool = False
    """Two equal words in a row are one token: no word then has a token of its own."""
    runs: bool = False
    """Letters without a space before them are one token together."""
    template: tuple[str, str] = ("<|user|>\n", "<|end|>\n<|assistant|>\n")
    """Stands around the text of a chat."""
    strips: bool = False
    """The template takes blanks from both ends of the text."""
    tells_template: bool = True
    """Whether `/tokenize` takes messages."""
    prompts: list[str] = field(default_factory=list)
    """Every prompt that was completed; of chats, as the template made it."""

    def ids(self, text: str) -> list[int]:
        """Tokens of `text` without the begin mark."""
        found: list[int] = []
        for piece in (_RUN if self.runs else _PIECE).findall(text):
            if self.runs and piece[0] != " " and len(piece) > 1:
                found.append(2)
            elif piece in self.words:
                id_ = 256 + 8 * self.words.index(piece)
                if self.merges and found and found[-1] == id_:
                    continue
                found.append(id_)
            else:
                found += piece.encode()
        return found

    def rendered(self, messages: list[dict[str, str]]) -> str:
        """What the template makes of one message."""
        (message,) = messages
        assert message["role"] == "user"
        content = message["content"].strip() if self.strips else message["content"]
        return self.template[0] + content + self.template[1]

    def text(self, id_: int) -> str | None:
        """What a token stands for; None beyond the vocabulary."""
        if id_ < 256:
            return chr(id_)
        index, rest = divmod(id_ - 256, 8)
        return self.words[index] if rest == 0 and index < len(self.words) else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # head and body in one segment, or each answer waits for a delayed acknowledgement
    behaviour: TextBehaviour

    def log_message(self, *_args: object) -> None:
        pass

    def _send(self, status: int, content: object, kind: str = "application/json") -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, b"")
        elif self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": MODEL, "owned_by": "somebody"}]})
        else:
            self._send(404, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        b = self.behaviour
        if self.path == "/v1/completions":
            self._complete(asked, asked.get("prompt"))
        elif self.path == "/v1/chat/completions":
            self._complete(asked, b.rendered(asked["messages"]))
        elif self.path == "/tokenize" and b.routes:
            if "messages" in asked and not b.tells_template:
                self._send(400, {"error": "prompt is missing"})
                return
            chat = "messages" in asked
            tokens = [1] * b.begin + b.ids(b.rendered(asked["messages"])) if chat else b.ids(asked["prompt"])
            self._send(200, {"tokens": tokens, "count": len(tokens)})
        elif self.path == "/detokenize" and b.routes:
            text = b.text(asked["tokens"][0])
            self._send(400, {"error": "no such id"}) if text is None else self._send(200, {"prompt": text})
        else:
            self._send(404, {"detail": "Not Found"})

    def _complete(self, asked: dict, prompt: object) -> None:
        count = asked["max_tokens"]
        if not isinstance(prompt, str):
            self._send(400, {"error": "prompt must be a string"})
            return
        self.behaviour.prompts.append(prompt)
        tokens = self.behaviour.begin + len(self.behaviour.ids(prompt))
        usage = {"prompt_tokens": tokens, "completion_tokens": count, "total_tokens": tokens + count}
        if not asked.get("stream"):
            self._send(200, {"choices": [{"text": "x" * count, "finish_reason": "length"}], "usage": usage})
            return
        events = [
            {"choices": [{"index": 0, "text": "x", "finish_reason": "length" if i == count - 1 else None}]}
            for i in range(count)
        ]
        payloads = [json.dumps(event) for event in [*events, {"choices": [], "usage": usage}]] + ["[DONE]"]
        self._send(200, "".join(f"data: {payload}\n\n" for payload in payloads).encode(), "text/event-stream")


@contextmanager
def text_server(behaviour: TextBehaviour) -> Iterator[str]:
    """Its base URL."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
