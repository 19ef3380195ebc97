"""What the master knows of one worker while it conducts a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvbench.load.messages import Failed, Finished, Progress
from kvbench.load.offset import Offset, Reading, clock_offset

__all__ = ["Member"]

SAME_CLOCK = Offset(0, 0)


@dataclass(eq=False)
class Member:
    """Changed as its messages come; times are monotonic seconds of the master unless said."""

    index: int
    id: str
    host: str
    machine: str
    local: bool
    """Started by the master: its clock is the master's own."""
    news_s: float
    """When it last said anything about its round."""
    prepared: bool = False
    at_line: bool = False
    readings: dict[int, Reading] = field(default_factory=dict)
    clock: Offset = SAME_CLOCK
    clock_after: Offset | None = None
    """Measured again at the end: two machines' clocks drift apart."""
    progress: Progress | None = None
    finished: Finished | None = None
    failed: Failed | None = None
    fault: str | None = None
    """Why the round does not count because of it."""

    @property
    def name(self) -> str:
        """For sentences."""
        return f"worker {self.index}" if self.local else f"worker {self.index} on {self.host}"

    def take_readings(self) -> Offset:
        """The offset from the readings so far, which are then forgotten."""
        offset = clock_offset(self.readings.values())
        self.readings.clear()
        return offset

    @property
    def clock_error_s(self) -> float:
        """How far its time zero may have been from the common one at any time of the round."""
        if self.clock_after is None:
            return self.clock.error_ns / 1e9
        moved = abs(self.clock_after.offset_ns - self.clock.offset_ns)
        return max(self.clock.error_ns, moved + self.clock_after.error_ns) / 1e9

    def about(self) -> dict[str, object]:
        """Its entry in `load.json`."""
        return {
            "worker": self.index,
            "host": self.host,
            "local": self.local,
            "clock_offset_s": self.clock.offset_ns / 1e9,
            "clock_offset_after_s": None if self.clock_after is None else self.clock_after.offset_ns / 1e9,
            "clock_error_s": self.clock_error_s,
            "figures": self.finished.figures if self.finished else {},
        }
