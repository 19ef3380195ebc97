"""What proofs print: a line at once, and whether one thing holds."""

from __future__ import annotations

__all__ = ["checked", "say"]


def say(line: str) -> None:
    """Also when the output is a file that somebody watches."""
    print(line, flush=True)


def checked(name: str, holds: bool, seen: object) -> bool:
    """`holds`, told beside what was seen."""
    say(f"{'holds' if holds else 'FAILS'}  {name}: {seen}")
    return holds
