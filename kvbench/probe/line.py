"""Which prompt is sent next, and from where it is then to come. Pure; sizes in tokens.

Every prompt is computed when it is new, hit on the device when it is sent again at once, a few times, found in the
host once enough others have pushed it off the device, and on disk once enough others have pushed it out of the
host. The prompts push each other on, so that none is sent for nothing but that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvbench.probe.setting import Room

__all__ = ["FRUITLESS", "Line", "Prompt", "Step"]

FRUITLESS = 8
"""A source that was missed so often without having been hit once is given up: it cannot be forced here."""

DEVICE_HITS = 3
"""Of every prompt that was computed. They take milliseconds where computing took a second, and what a token costs
from the device is the smallest of all costs, so that it takes most samples to tell it from the next."""
PUSH = 1.1
"""How many times a tier's size is sent before a prompt counts as pushed out of it. A miss raises it by RAISE."""
REACH = 0.95
"""Share of the host that counts as kept: what is being written takes room too. A miss lowers it by LOWER."""
RAISE, LOWER = 1.15, 0.9
MOST_PUSH = 3.0


@dataclass(eq=False)
class Prompt:
    """One prompt on its way out of the tiers."""

    number: int
    tokens: int
    """Of its prefix."""
    waits_for: str | None = None
    """The source that it is to come from when it is sent the next time; None: it is done."""


@dataclass(frozen=True)
class Step:
    """Send this prompt; it should come from this source. Without one it only pushes others."""

    prompt: Prompt
    source: str | None


@dataclass
class Line:
    """The prompts in the order of their last use, and what is still wanted of them."""

    room: Room
    lengths: Sequence[int]
    wanted: dict[str, bool] = field(default_factory=dict)
    """Sources that are still probed."""
    push_device: float = PUSH
    push_host: float = PUSH
    reach_host: float = REACH
    asked: dict[str, bool] = field(init=False)
    """`wanted` as it was in the beginning; a source may be given up later."""
    _used: list[Prompt] = field(default_factory=list)
    _next: Prompt | None = None
    _again: int = 0
    """How often it is still to be hit on the device."""
    _number: int = 0
    _sent: dict[int, int] = field(default_factory=dict)
    """New prompts by length."""

    def __post_init__(self) -> None:
        self.wanted = self.wanted or dict.fromkeys(self.room.sources, True)
        self.asked = dict(self.wanted)
        if self.room.host is not None and self.room.host * self.reach_host <= self.room.device * self.push_device:
            self.wanted["host"] = False

    def step(self) -> Step:
        """What to send now."""
        if self._next is not None:
            prompt, self._again = self._next, self._again - 1
            if self._again == 0:
                self._next = None
            return Step(prompt, "device")
        waiting = [(prompt, behind) for prompt, behind in self._behind() if prompt.waits_for is not None]
        self._let_go(waiting)
        for prompt, behind in waiting:
            if self._ripe(prompt, behind):
                return Step(prompt, prompt.waits_for)
        prompt = self._new(waiting)
        if self.wanted["device"]:
            self._next, self._again = prompt, DEVICE_HITS
        return Step(prompt, "computed")

    def used(self, step: Step) -> None:
        """It has been sent, whatever it hit, so it is the last to be pushed out."""
        if step.prompt in self._used:
            self._used.remove(step.prompt)
        self._used.append(step.prompt)
        self._forget()

    def pushed(self, tokens: int) -> None:
        """Something else of this size was sent."""
        self._number += 1
        self._used.append(Prompt(self._number, tokens))

    def hit(self, step: Step) -> None:
        """It came from where it should."""
        if step.source != "computed":  # one that was computed is still to be sent again as it was planned
            step.prompt.waits_for = self._after(step.source)
        elif not self.wanted["device"]:
            step.prompt.waits_for = self._after("device")

    def missed(self, step: Step, shallower: bool) -> None:
        """It came from elsewhere; `shallower`: part of it from a hotter tier than it should, so push harder."""
        if step.source == "host" and shallower:
            self.push_device = min(self.push_device * RAISE, MOST_PUSH)
        elif step.source == "host":
            self.reach_host *= LOWER
        elif step.source == "disk" and shallower:
            self.push_host = min(self.push_host * RAISE, MOST_PUSH)
        if step.source == "device":
            self._next = None
        if step.source in ("computed", "device"):
            step.prompt.waits_for = None
        elif not shallower:
            step.prompt.waits_for = self._after(step.source)

    def _after(self, source: str | None) -> str | None:
        order = ("device", "host", "disk")
        for later in order[order.index(source) + 1 if source in order else 0 :]:
            if self.wanted.get(later, False):
                return later
        return None

    def _behind(self) -> list[tuple[Prompt, int]]:
        """Every prompt with the tokens used since it was; the one longest ago first."""
        found, behind = [], 0
        for prompt in reversed(self._used):
            found.append((prompt, behind))
            behind += prompt.tokens
        return found[::-1]

    def _ripe(self, prompt: Prompt, behind: int) -> bool:
        off_device = self.room.device * self.push_device
        if prompt.waits_for == "host":
            return off_device <= behind <= self._latest(prompt)
        return behind >= max((self.room.host or 0) * self.push_host, off_device)

    def _latest(self, prompt: Prompt) -> float:
        """How much may be sent behind it while it is still whole in the host."""
        return (self.room.host or 0) * self.reach_host - prompt.tokens

    def _let_go(self, waiting: list[tuple[Prompt, int]]) -> None:
        """What can no longer be wholly in the host waits for the disk; what nobody wants is done."""
        for prompt, behind in waiting:
            if prompt.waits_for == "host" and (not self.wanted["host"] or behind > self._latest(prompt)):
                prompt.waits_for = self._after("host")
            if prompt.waits_for == "disk" and not self.wanted["disk"]:
                prompt.waits_for = None

    def _new(self, waiting: list[tuple[Prompt, int]]) -> Prompt:
        """The length sent least so far that pushes no waiting prompt past its time in the host."""
        rooms = [self._latest(p) - behind for p, behind in waiting if p.waits_for == "host"]
        left = min(rooms, default=float("inf"))
        fitting = [length for length in self.lengths if length <= left] or list(self.lengths[:1])
        tokens = min(fitting, key=lambda length: (self._sent.get(length, 0), length))
        self._sent[tokens] = self._sent.get(tokens, 0) + 1
        self._number += 1
        return Prompt(self._number, tokens)

    def _forget(self) -> None:
        """Prompts that nobody waits for, and that lie behind every one that is waited for, push nothing."""
        for index, prompt in enumerate(self._used):
            if prompt.waits_for is not None or prompt is self._next:
                del self._used[:index]
                return
