"""Hears what the load driver says during a round and passes it on."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.compare.watch import Watch
from kvbench.observe.scrape import Scraper
from kvbench.report.progress import LiveView

__all__ = ["LoadListener"]


@dataclass
class LoadListener:
    """Takes in what the load driver says: for whoever watches, and for the watch and the scraper."""

    arm: str
    round: int
    duration_s: float
    watch: Watch
    scraper: Scraper
    view: LiveView
    begun: bool = False
    """Whether the driver has been told to play; before that it cannot be told to stop."""

    def __call__(self, event: dict[str, object]) -> None:
        self.begun = True
        kind = event["event"]
        if kind == "prime":
            _show_priming(self.view, self.arm, int(str(event["done"])), int(str(event["of"])))
        elif kind == "primed":
            self.scraper.scrape_now()
        elif kind == "started":
            self.watch.time_zero = float(str(event["monotonic"]))
        elif kind == "progress":
            self.watch.tokens_received(float(str(event["tokens"])))
            self.watch.requests_failed(float(str(event["failed"])))
            self.watch.answers(
                refused=int(str(event["refused"])),
                served=float(str(event["served"])),
                status=_whole_or_none(event["refused_with"]),
            )
            self.view.round_progress(
                arm=self.arm,
                round=self.round,
                t_s=float(str(event["t_s"])),
                duration_s=self.duration_s,
                sent=int(str(event["sent"])),
                done=int(str(event["done"])),
                failed=int(str(event["failed"])),
                ttft_p50_s=_optional(event.get("ttft_p50_s")),
            )


def _show_priming(view: LiveView, name: str, done: int, of: int) -> None:
    if done == of or done % 10 == 1:
        view.stage(f"{name}: filling the tiers, prefix {done} of {of}")


def _whole_or_none(value: object) -> int | None:
    return None if value is None else int(str(value))


def _optional(value: object) -> float | None:
    return None if value is None else float(str(value))
