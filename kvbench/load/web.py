"""Locust's web view of a round, to look at: on loopback, and nothing can be started, stopped or changed there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

from flask import abort, request
from locust.env import Environment

from kvbench.errors import InputError

__all__ = ["web_view"]

HOST = "127.0.0.1"


@contextmanager
def web_view(environment: Environment, port: int) -> Iterator[None]:
    """Serve it while the block runs. InputError when the port is taken."""
    _check_free(port)
    view = environment.create_web_ui(HOST, port, delayed_start=True)

    def look_only() -> None:
        # The schedule is fixed before the run: a click must not start users or throw statistics away. Names that
        # resolve to loopback are not this page's either.
        if request.method not in ("GET", "HEAD") or request.host not in (f"{HOST}:{port}", f"localhost:{port}"):
            abort(403)

    assert view.app is not None  # noqa: S101  (made with the view)
    view.app.before_request(look_only)
    view.start()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if view.server is not None:
            view.stop()  # type: ignore[no-untyped-call]


def _check_free(port: int) -> None:
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((HOST, port))
    except OSError as error:
        raise InputError(
            f"the web view cannot be served on port {port}: {error.strerror}", do="give another port with --web"
        ) from error
