"""A gateway in front of a server: asks for a header, may speak TLS, notes every request, hands the bytes on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 13\r\nContent-Type: text/plain\r\n\r\nnot let in..\n"


@dataclass
class Passed:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    let_in: bool


@dataclass
class Gateway:
    """What it asks for, and what has come."""

    url: str = ""
    requires: dict[str, str] = field(default_factory=dict)
    passed: list[Passed] = field(default_factory=list)

    def _note(self, head: bytes) -> Passed:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
        }
        let_in = all(headers.get(name.lower()) == value for name, value in self.requires.items())
        self.passed.append(Passed(method, path.partition("?")[0], headers, let_in))
        return self.passed[-1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        """One client's connection, with one of its own to the server behind."""
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        answers = asyncio.ensure_future(_copy(inner, writer))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                passed = self._note(head)
                body = await reader.readexactly(int(passed.headers.get("content-length", 0)))
                (outer if passed.let_in else writer).write(head + body if passed.let_in else REFUSED)
                await (outer if passed.let_in else writer).drain()
        answers.cancel()
        outer.close()
        writer.close()


async def _copy(inner: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await inner.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextmanager
def gateway(
    behind: str, *, requires: dict[str, str] | None = None, certificate: tuple[Path, Path] | None = None
) -> Iterator[Gateway]:
    """In front of the loopback server at `behind`; with `certificate` (key, certificate) over TLS."""
    tls: ssl.SSLContext | None = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate[1], certificate[0])
    made = Gateway(requires=requires or {})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    port = urlsplit(behind).port or 80

    async def start() -> asyncio.Server:
        return await asyncio.start_server(lambda r, w: made.serve(r, w, port), "127.0.0.1", 0, ssl=tls, backlog=512)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(server: asyncio.Server) -> None:
    """Connections that clients keep open end with it."""
    server.close()
    under_way = asyncio.all_tasks() - {asyncio.current_task()}
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Key and certificate of 127.0.0.1 that vouches for itself. FileNotFoundError without openssl."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True)
    return key, cert
