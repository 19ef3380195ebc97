"""A loopback HTTP/1.1 server that behaves as a test says: one thread a connection, every byte under control."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED_HEAD = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass
class Request:
    """What the server got."""

    connection: int
    nth_on_connection: int
    head: str
    body: dict
    at: float
    peer: str = ""
    """The client's address."""

    @property
    def prompt(self) -> list[int]:
        return self.body["prompt"]

    @property
    def output_tokens(self) -> int:
        return self.body["max_tokens"]


class Hangup(Exception):
    """Raised by a behaviour to close the connection."""


@dataclass
class Peer:
    """The server's end of a connection, for behaviours to write on."""

    sock: socket.socket
    server: ScriptedServer

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Close with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Hangup

    def hang(self) -> None:
        """Say nothing until the client goes away or the server is closed."""
        while not self.server.closing.wait(0.02):
            try:
                if self.sock.recv(1, socket.MSG_DONTWAIT) == b"":
                    break
            except BlockingIOError:
                continue
            except OSError:
                break
        raise Hangup


Behaviour = Callable[[Request, Peer], None]


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


DONE = event(b"[DONE]")


def token_event(ids: Iterable[int], finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": "", "finish_reason": finish, "token_ids": list(ids)}]})


def usage_event(prompt: int, output: int, cached: int = 0) -> bytes:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return event({"choices": [], "usage": usage})


def returned_ids(request: Request) -> list[int]:
    """The scripted model's answer: depends on the prompt, and is not made of prompt tokens."""
    start = sum(request.prompt) % 97
    return [1000 + start + index for index in range(request.output_tokens)]


def completion_events(request: Request) -> list[bytes]:
    ids = returned_ids(request)
    events = [token_event([id_], "length" if id_ == ids[-1] else None) for id_ in ids]
    return [*events, usage_event(len(request.prompt), len(ids), 16), DONE]


@dataclass
class Normal:
    """A well-behaved completion: one chunk a token."""

    first_s: float = 0.0
    gap_s: float = 0.0

    def __call__(self, request: Request, peer: Peer) -> None:
        time.sleep(self.first_s)
        peer.send(CHUNKED_HEAD)
        for piece in completion_events(request):
            peer.chunk(piece)
            time.sleep(self.gap_s)
        peer.end()


def with_length(request: Request, peer: Peer) -> None:
    body = b"".join(completion_events(request))
    peer.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def until_close(request: Request, peer: Peer) -> None:
    peer.send(HEAD + b"Connection: close\r\n\r\n" + b"".join(completion_events(request)))
    raise Hangup


def gzipped(request: Request, peer: Peer) -> None:
    body = gzip.compress(b"".join(completion_events(request)))
    peer.send(HEAD + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
    for start in range(0, len(body), 7):
        peer.chunk(body[start : start + 7])
    peer.end()


def refuse(status: int, words: str) -> Behaviour:
    def behave(request: Request, peer: Peer) -> None:
        body = json.dumps({"error": {"message": words}}).encode()
        peer.send(b"HTTP/1.1 %d Sorry\r\nContent-Type: application/json\r\n" % status)
        peer.send(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return behave


def stream(*pieces: bytes, end: bool = True) -> Behaviour:
    """Exactly these chunks."""

    def behave(request: Request, peer: Peer) -> None:
        peer.send(CHUNKED_HEAD)
        for piece in pieces:
            peer.chunk(piece)
        if not end:
            raise Hangup
        peer.end()

    return behave


def raw(data: bytes) -> Behaviour:
    """Exactly these bytes, and then nothing."""

    def behave(request: Request, peer: Peer) -> None:
        peer.send(data)
        peer.hang()

    return behave


def hang(request: Request, peer: Peer) -> None:
    peer.hang()


def reset_midway(request: Request, peer: Peer) -> None:
    peer.send(CHUNKED_HEAD)
    peer.chunk(token_event([1]))
    peer.reset()


def interim_then_normal(request: Request, peer: Peer) -> None:
    peer.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    Normal()(request, peer)


def garbage(request: Request, peer: Peer) -> None:
    peer.send(b"\x00\x01 this is not HTTP\r\n\r\n")


def cut_short(request: Request, peer: Peer) -> None:
    peer.send(HEAD + b"Content-Length: 5000\r\n\r\n" + token_event([1]))
    raise Hangup


def not_a_stream(request: Request, peer: Peer) -> None:
    body = json.dumps({"choices": [{"text": "hello", "finish_reason": "stop"}]}).encode()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def bad_gzip(request: Request, peer: Peer) -> None:
    peer.send(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!")


SHORT = [token_event([1]), token_event([2], "length"), usage_event(20, 2), DONE]


@contextlib.contextmanager
def full_queue(address: tuple[str, int], connections: int = 4) -> Iterator[None]:
    """Given a backlog of 0 and nobody who accepts there, no further connection comes about at `address`."""
    fillers = [socket.socket() for _ in range(connections)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(address)
    try:
        yield
    finally:
        for filler in fillers:
            filler.close()


@contextlib.contextmanager
def silent_at(host: str, port: int = 0) -> Iterator[int]:
    """An address that does not answer: the port of a listener whose queue is full."""
    with socket.create_server((host, port), backlog=0) as listener, full_queue(listener.getsockname()):
        yield listener.getsockname()[1]


@dataclass
class ScriptedServer:
    """`with ScriptedServer(behaviour) as server:`; `behaviour` may be replaced while it runs."""

    behaviour: Behaviour
    tls: ssl.SSLContext | None = None
    family: socket.AddressFamily = socket.AF_INET
    host: str = ""
    """Where it listens; loopback unless said."""
    requests: list[Request] = field(default_factory=list)
    running: int = 0
    peak: int = 0
    backlog: int = 512
    gate: threading.Event = field(default_factory=threading.Event)
    """While clear, nobody is answered and no TLS is begun: the whole server stands still."""
    accepting: threading.Event = field(default_factory=threading.Event)
    """Cleared by `stop_accepting`."""
    parked: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> ScriptedServer:
        self.gate.set()
        self.accepting.set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []
        self._listener = socket.create_server(
            (self.host or ("::1" if self.family == socket.AF_INET6 else "127.0.0.1"), 0),
            family=self.family,
            backlog=self.backlog,
        )
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.gate.set()
        self.accepting.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    @property
    def url(self) -> str:
        host = self.host or ("[::1]" if self.family == socket.AF_INET6 else "127.0.0.1")
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def stop_accepting(self) -> None:
        """Accept no connection until `accepting` is set; the kernel completes `backlog` + 1 all the same."""
        self.parked.clear()
        self.accepting.clear()
        with socket.create_connection(self._listener.getsockname()):  # what it waits for now
            self.parked.wait()

    @property
    def accepted(self) -> int:
        """Connections so far, also those that nothing was asked on."""
        return len(self._socks)

    @property
    def connections(self) -> int:
        return len({request.connection for request in self.requests})

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        number = 0
        while not self.closing.is_set():
            if not self.accepting.is_set():
                self.parked.set()
                self.accepting.wait()
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._socks.append(sock)
            self._start(self._serve, sock, number)
            number += 1

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            if self.tls:
                self.gate.wait()
                sock = self.tls.wrap_socket(sock, server_side=True)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(sock, self)
            nth = 0
            while (request := self._read(sock, number, nth)) is not None:
                nth += 1
                with self._lock:
                    self.requests.append(request)
                    self.running += 1
                    self.peak = max(self.peak, self.running)
                try:
                    self.gate.wait()
                    self.behaviour(request, peer)
                finally:
                    with self._lock:
                        self.running -= 1
        except (Hangup, OSError):
            pass
        finally:
            sock.close()

    def _read(self, sock: socket.socket, number: int, nth: int) -> Request | None:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := sock.recv(65536)):
                return None
            data += more
        at = time.monotonic()
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        while len(body) < length:
            body += sock.recv(65536)
        return Request(number, nth, head.decode(), json.loads(body), at, sock.getpeername()[0])
