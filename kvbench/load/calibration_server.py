"""The loopback server that the client is calibrated against: `python -m kvbench.load.calibration_server TRUTH.npz`.

Streams completions as vLLM does, a token each 10 ms, and keeps the time at which it sent each. Writes its port on
stdout; on the end of stdin it writes its truth (`ids`, `counts`, `sent_ns`) and ends.
"""

from __future__ import annotations

import heapq
import json
import re
import select
import socket
import sys
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvbench.load.precedence import take_precedence

__all__ = ["main"]

FIRST_NS = 20_000_000
GAP_NS = 10_000_000
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_NAME = re.compile(rb"\r\nx-request-id: *kvbench-\d+-(\d+)", re.IGNORECASE)


def _chunk(value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(finish: str | None) -> bytes:
    choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": finish, "stop_reason": None}
    whole = {"id": "cmpl-" + 32 * "0", "object": "text_completion", "created": 0, "model": "calibration"}
    return _chunk(whole | {"choices": [choice | {"prompt_token_ids": None, "token_ids": None}], "usage": None})


_TOKEN, _LAST = _event(None), _event("length")


def _end(tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "total_tokens": 1 + tokens, "completion_tokens": tokens}
    return _chunk({"choices": [], "usage": usage}) + _chunk("[DONE]") + b"0\r\n\r\n"


@dataclass(eq=False)
class _Stream:
    """One connection and the answer that it carries."""

    sock: socket.socket
    received: bytes = b""
    request: int = -1
    tokens: int = 0
    sent_ns: array[int] = field(default_factory=lambda: array("q"))

    def request_arrived(self) -> bool:
        """Whether a whole request is there; it is taken then."""
        head, blank, body = self.received.partition(b"\r\n\r\n")
        length, name = _LENGTH.search(head), _NAME.search(head)
        if not blank or length is None or name is None or len(body) < int(length[1]):
            return False
        self.request = int(name[1])
        self.tokens = int(json.loads(body)["max_tokens"])
        self.received = b""
        self.sent_ns = array("q")
        return True

    def send_token(self) -> bool:
        """Send the next token; whether it was the last."""
        count = len(self.sent_ns)
        last = count + 1 == self.tokens
        message = (b"" if count else _HEAD) + (_LAST + _end(self.tokens) if last else _TOKEN)
        self.sent_ns.append(time.monotonic_ns())
        self.sock.send(message)
        return last


class _Server:
    def __init__(self, truth: Path) -> None:
        self._truth = truth
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self._streams: dict[int, _Stream] = {}
        self._due: list[tuple[int, int, _Stream]] = []
        self._done: list[tuple[int, array[int]]] = []
        self._number = 0

    def serve(self) -> None:
        print(self._listener.getsockname()[1], flush=True)
        poll = select.epoll()
        poll.register(self._listener.fileno(), select.EPOLLIN)
        poll.register(0, select.EPOLLIN | select.EPOLLHUP)
        while True:
            wait_ns = self._due[0][0] - time.monotonic_ns() if self._due else 1_000_000_000
            if wait_ns > 0:
                select.select((poll,), (), (), wait_ns / 1e9)
            for fd, _ in poll.poll(0):
                if fd == 0:
                    self._write_truth()
                    return
                if fd == self._listener.fileno():
                    self._accept(poll)
                else:
                    self._read(fd)
            self._send_due()

    def _accept(self, poll: select.epoll) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._streams[sock.fileno()] = _Stream(sock)
        poll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, fd: int) -> None:
        stream = self._streams[fd]
        data = stream.sock.recv(65536)
        if not data:
            self._streams.pop(fd).sock.close()  # closing takes it out of the poll set
            stream.request = -1
            return
        stream.received += data
        if stream.request_arrived():
            self._schedule(time.monotonic_ns() + FIRST_NS, stream)

    def _schedule(self, at_ns: int, stream: _Stream) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_ns, self._number, stream))

    def _send_due(self) -> None:
        now_ns = time.monotonic_ns()
        while self._due and self._due[0][0] <= now_ns:
            at_ns, _, stream = heapq.heappop(self._due)
            if stream.request < 0:
                continue
            if stream.send_token():
                self._done.append((stream.request, stream.sent_ns))
            else:
                self._schedule(at_ns + GAP_NS, stream)

    def _write_truth(self) -> None:
        np.savez(
            self._truth,
            ids=np.array([request for request, _ in self._done], np.int64),
            counts=np.array([len(sent) for _, sent in self._done], np.int64),
            sent_ns=np.concatenate([np.empty(0, np.int64), *(np.array(sent) for _, sent in self._done)]),
        )


def main() -> None:
    """Serve until stdin ends."""
    take_precedence()
    _Server(Path(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
