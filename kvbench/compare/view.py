"""What carrying out a run tells whoever watches it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Silent", "View"]


class View(Protocol):
    """Progress of a run. `kvbench.report.progress.LiveView` shows it to people."""

    def stage(self, text: str) -> None:
        """What is being done now."""
        ...

    def round_progress(
        self,
        *,
        arm: str,
        round: int,
        t_s: float,
        duration_s: float,
        sent: int,
        done: int,
        failed: int,
        ttft_p50_s: float | None,
    ) -> None:
        """Once a second while load runs."""
        ...

    def note(self, text: str) -> None:
        """A sentence that stays."""
        ...


class Silent:
    """Shows nothing."""

    def stage(self, text: str) -> None:
        """Nothing."""

    def round_progress(self, **_: object) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
