"""Whether the process that answers one scrape is the one that answered the last. Unix seconds."""

from __future__ import annotations

from kvbench.observe.attempts import Result
from kvbench.observe.continuity import Beginning, beginning, carried
from kvbench.observe.exposition import Exposition

__all__ = ["Beginnings"]

CLOCKS_APART_S = 60.0
"""A server's clock may differ from ours by so much. One that began longer before it was first seen to answer stood
beside the other all the time, behind the same address: that is no restart."""


class Beginnings:
    """Takes in scrapes as they come."""

    def __init__(self) -> None:
        self._before: Exposition | None = None
        self._answered_s = 0.0
        self._was_gone = False

    def missed(self, result: Result) -> None:
        """A scrape brought nothing."""
        self._was_gone = self._was_gone or result is Result.UNREACHABLE

    def seen(self, exposition: Exposition, now_s: float) -> Beginning | None:
        """A scrape brought this; what has begun since the one before."""
        before, self._before = self._before, carried(self._before, exposition)
        since, self._answered_s = self._answered_s, now_s
        was_gone, self._was_gone = self._was_gone, False
        found = None if before is None else beginning(before, exposition)
        if found is None or found.at_s < since - CLOCKS_APART_S:
            return None
        # Counters that are new after nobody listened are those of a new process.
        return found._replace(process=True) if found.process is None and was_gone else found
