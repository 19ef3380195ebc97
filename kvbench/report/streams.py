"""The two streams of a command: stderr for people, stdout for documents. What cannot be shown is replaced."""

from __future__ import annotations

import json
import os
import sys

from rich.console import Console
from rich.text import Text

from kvbench.report.plain import plain_lines

__all__ = ["discard", "flush", "people", "print_document", "say", "tolerate_any_encoding"]


def people() -> Console:
    """People's text goes to stderr, so that stdout is free for machines."""
    return Console(stderr=True, highlight=False)


def say(console: Console, text: str) -> None:
    """One message, never wrapped or interpreted: it may hold paths to copy, brackets, or foreign control codes."""
    console.print(Text(plain_lines(text)), soft_wrap=True, highlight=False)


def print_document(document: object) -> None:
    """JSON on stdout, in ASCII, so that no locale can break it. ValueError for what JSON cannot hold (NaN)."""
    print(json.dumps(document, indent=1, allow_nan=False))


def tolerate_any_encoding() -> None:
    """Letters that a stream's encoding lacks are written as escapes instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def flush() -> None:
    """Write out what is buffered. OSError when a reader is gone or a disk is full."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def discard() -> None:
    """Let the interpreter's own flush at exit succeed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (AttributeError, OSError, ValueError):
            continue  # closed from the start
