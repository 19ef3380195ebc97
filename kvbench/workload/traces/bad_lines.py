"""Lines of a trace that cannot be read: told with their number and left out, up to a limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvbench.errors import InputError

__all__ = ["BadLines"]

_KEPT = 20
"""Of so many, what was wrong is kept; the others are counted."""


@dataclass
class BadLines:
    """`limit` 0: the first one is an error."""

    limit: int = 0
    count: int = 0
    first: list[tuple[int | None, str]] = field(default_factory=list)
    """(line, what was wrong); a file that is one document has places instead of lines, which `what` then names."""

    @contextmanager
    def skipping(self) -> Iterator[None]:
        """Reads one record; an InputError inside is noted, or raised when there have been too many."""
        try:
            yield
        except InputError as error:
            self.count += 1
            if self.limit == 0:
                raise
            if len(self.first) < _KEPT:
                line, key = (error.where.line, error.where.key) if error.where else (None, None)
                self.first.append((line, f"{key}: {error.what}" if line is None and key else error.what))
            if self.count > self.limit:
                raise InputError(
                    f"more than {self.limit} lines cannot be read; this one: {error.what}",
                    where=error.where,
                    do="say what the file is with --format, or mend it",
                ) from None

    def document(self) -> dict[str, object]:
        """For machines."""
        return {"count": self.count, "first": [{"line": line, "what": what} for line, what in self.first]}
