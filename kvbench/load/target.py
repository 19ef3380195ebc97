"""Where requests go: the server's address, resolved once, and the head that every request to it has."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from kvbench.access import request_headers, trust
from kvbench.errors import InputError
from kvbench.load.connection import Address
from kvbench.spec.access import Access, Api

__all__ = ["ROUTES", "Target"]

ROUTES: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Target:
    """One server and one of its routes."""

    def __init__(
        self,
        base_url: str,
        *,
        api: Api = "completions",
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`base_url` as in a profile, with or without `/v1`; `tls` None: the system's authorities are trusted.

        InputError for a URL, a host name or a header that is wrong.
        """
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError as error:
            raise InputError(f"base_url {base_url!r} is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"base_url {base_url!r} is not an http(s) URL", do="write it as http://HOST:PORT, without /v1"
            )
        lines = [f"{name}: {value}" for name, value in (headers or {}).items()]
        if not all(text.isascii() and text.isprintable() for text in (base_url, *lines)):
            raise InputError("base_url, the API key and headers may only have printable ASCII characters")
        context = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self.addresses = _resolve(parts.hostname, port or (443 if context else 80), context)
        path = parts.path.rstrip("/").removesuffix("/v1")
        self._head = (
            f"POST {path}{ROUTES[api]} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            + "".join(line + "\r\n" for line in lines)
            + "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            "Accept-Encoding: identity\r\nUser-Agent: kvbench\r\nContent-Length: "
        ).encode("latin-1")

    @classmethod
    def of(cls, base_url: str, api: Api, access: Access) -> Target:
        """With what `access` names. InputError also for what the environment lacks, and a broken `ca_file`."""
        tls = trust(access) if access.ca_file is not None else None
        return cls(base_url, api=api, headers=request_headers(access), tls=tls)

    def message(self, name: str, body: bytes) -> bytes:
        """The whole request, head and body; `name` goes with it as X-Request-Id."""
        return b"%s%d\r\nX-Request-Id: %s\r\n\r\n%s" % (self._head, len(body), name.encode("ascii"), body)


def _resolve(host: str, port: int, tls: ssl.SSLContext | None) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(
            f"the server's host name {host!r} cannot be resolved: {error.strerror}", do="check base_url"
        ) from error
    return [Address(family, sockaddr, tls, host) for family, _, _, _, sockaddr in found]
