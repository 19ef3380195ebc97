"""The one gate for text that came from elsewhere (engines, servers, traces, files) before it is shown."""

from __future__ import annotations

import re

__all__ = ["plain", "plain_lines"]

_UNSHOWABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # marks that hide or reorder text on screen
    "\ud800-\udfff\ufffe\uffff]"  # lone surrogates and non-characters, which XML cannot hold
)


def plain(text: object) -> str:
    """`text` on one line; every character that could move, hide or reorder other text becomes U+FFFD."""
    return _UNSHOWABLE.sub("\ufffd", re.sub(r"[\t\n\r]+", " ", str(text)))


def plain_lines(text: str) -> str:
    """`plain`, line by line."""
    return "\n".join(plain(line) for line in text.split("\n"))
