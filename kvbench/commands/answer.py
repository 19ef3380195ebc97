"""One document as a command's answer: JSON for machines, or tables for people, both on stdout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from kvbench.report.streams import print_document

__all__ = ["answer"]


def answer(
    document: Mapping[str, Any], show: Callable[[Console, Mapping[str, Any]], None], *, as_json: bool
) -> None:
    """Print `document`, or let `show` lay it out."""
    if as_json:
        print_document(document)
    else:
        show(Console(highlight=False), document)
