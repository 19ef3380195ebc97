"""How far another machine's monotonic clock is from this one's, and how wrong that may be. Pure; nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Offset", "Reading", "clock_offset"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One question and its answer: sent and got back by our clock, received and replied to by the other's."""

    sent_ns: int
    received_ns: int
    replied_ns: int
    back_ns: int

    @property
    def round_trip_ns(self) -> int:
        """Time on the way, both ways together."""
        return (self.back_ns - self.sent_ns) - (self.replied_ns - self.received_ns)


@dataclass(frozen=True, slots=True)
class Offset:
    """The other clock minus ours. The truth lies within `error_ns` of it, whatever the two ways took each."""

    offset_ns: int
    error_ns: int

    def there(self, here_ns: int) -> int:
        """A moment of our clock as the other shows it."""
        return here_ns + self.offset_ns


def clock_offset(readings: Iterable[Reading]) -> Offset:
    """From the reading with the shortest round trip, as NTP does (RFC 5905, clock filter): the others waited
    somewhere. The bound is half of that round trip. ValueError without a reading."""
    best = min(readings, key=lambda reading: reading.round_trip_ns)
    there, back = best.received_ns - best.sent_ns, best.replied_ns - best.back_ns
    return Offset((there + back) // 2, best.round_trip_ns // 2 + 1)
