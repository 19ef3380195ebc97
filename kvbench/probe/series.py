"""One series of probes: send, verify by counters, keep or throw away, until the costs are known well enough.

Times in seconds, sizes in tokens.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvbench.plan.costs import CostLine, fit_cost
from kvbench.probe.counters import Counters, came_from, hotter
from kvbench.probe.line import FRUITLESS, Line, Step
from kvbench.probe.sender import Sender
from kvbench.probe.setting import Options, Room

__all__ = ["Sample", "Series", "costs_of", "record_series", "settle_s"]

LEAST = 5
"""Samples at every length of every source before an interval is looked at."""
LOOK_EVERY_S = 2.0
SETTLE_S = 0.15
"""After a prompt was computed: what it left to be stored is on its way. 64 blocks of 256 KiB took 70 ms."""
STORE_BYTES_PER_S = 1e9
"""So much a second is allowed for besides: a slow disk's cascade takes longer, and then reads wait for it as they
would in production."""


@dataclass(frozen=True)
class Sample:
    """One verified probe."""

    source: str
    prefix_tokens: int
    ttft_s: float
    group: int
    """Samples taken within the same few seconds share it."""


@dataclass
class Series:
    """What was measured, and how it ended."""

    samples: list[Sample] = field(default_factory=list)
    thrown_away: Counter[str] = field(default_factory=Counter)
    """Probes that came from elsewhere than they should, by the source that they should have come from."""
    given_up: list[str] = field(default_factory=list)
    """Sources that could not be forced."""
    reached: bool = False
    """Whether every interval got as narrow as was asked."""
    seconds: float = 0.0

    def of(self, source: str) -> list[Sample]:
        """Samples of one source."""
        return [sample for sample in self.samples if sample.source == source]


def costs_of(samples: Sequence[Sample], confidence: float) -> dict[str, CostLine]:
    """A line for every source that has one."""
    lines: dict[str, CostLine] = {}
    for source in dict.fromkeys(sample.source for sample in samples):
        own = [sample for sample in samples if sample.source == source]
        line = fit_cost(
            [sample.prefix_tokens for sample in own],
            [sample.ttft_s for sample in own],
            [sample.group for sample in own],
            curved=source == "computed",
            confidence=confidence,
        )
        if line is not None:
            lines[source] = line
    return lines


def record_series(
    room: Room,
    lengths: Sequence[int],
    options: Options,
    sender: Sender,
    counters: Counters,
    *,
    limit_s: float,
    wanted: dict[str, bool] | None = None,
    line: Line | None = None,
    first_number: int = 0,
    group_s: float = 5.0,
    told: Callable[[Series], None] = lambda series: None,
) -> Series:
    """Probe until every cost is known within `options.interval`, or until `limit_s`.

    `wanted` leaves sources out; then only the limit ends the series. `line` is one that an earlier series left,
    with the same lengths and sources, to go on with its prompts. `first_number` keeps prompts of several lines
    apart; `group_s` is how long the machine's mood lasts.
    """
    line = line or Line(room, lengths, dict(wanted or {}))
    series = Series()
    began = looked = time.monotonic()
    sent_before = sender.background.sent if sender.background else 0
    while True:
        step = line.step()
        _take(step, line, series, sender, counters, room, first_number=first_number, group_s=group_s)
        if sender.background is not None:
            for _ in range(sender.background.sent - sent_before):
                line.pushed(sender.background.prompt_tokens)
            sent_before = sender.background.sent
        now = time.monotonic()
        if now - looked >= min(LOOK_EVERY_S, limit_s / 20):
            looked = now
            told(series)
            _give_up_the_fruitless(line, series)
            series.reached = wanted is None and _narrow(series, line, lengths, options)
        if series.reached or now - began >= limit_s:
            series.seconds = now - began
            return series


def _take(
    step: Step,
    line: Line,
    series: Series,
    sender: Sender,
    counters: Counters,
    room: Room,
    *,
    first_number: int,
    group_s: float,
) -> None:
    """One probe."""
    source = step.source or "computed"
    before = counters.read()
    answer = sender.probe(first_number + step.prompt.number, step.prompt.tokens)
    rise = counters.increase(before, answer.prompt_tokens, answer.cached_tokens)
    alone = sender.background is None
    line.used(step)
    if came_from(source, rise, step.prompt.tokens, answer.prompt_tokens, alone=alone):
        series.samples.append(
            Sample(source, step.prompt.tokens, answer.ttft_s, int(answer.at_s // group_s)),
        )
        line.hit(step)
    else:
        series.thrown_away[source] += 1
        line.missed(step, hotter(source, rise))
    if rise["computed"] > answer.prompt_tokens - step.prompt.tokens and room.host is not None:
        sender.nudge()
        sender.wait(settle_s(room, step.prompt.tokens))


def settle_s(room: Room, tokens: int) -> float:
    """How long is waited for what a computed prompt leaves to be stored."""
    return SETTLE_S + tokens * (room.kv_bytes_per_token or 0) / STORE_BYTES_PER_S if room.host is not None else 0.0


def _give_up_the_fruitless(line: Line, series: Series) -> None:
    for source, wanted in line.wanted.items():
        if wanted and not series.of(source) and series.thrown_away[source] >= FRUITLESS:
            line.wanted[source] = False
            series.given_up.append(source)


def _narrow(series: Series, line: Line, lengths: Sequence[int], options: Options) -> bool:
    """Whether every cost that can be measured is known well enough."""
    sources = [source for source, wanted in line.wanted.items() if wanted]
    counts = Counter((sample.source, sample.prefix_tokens) for sample in series.samples)
    if any(counts[source, length] < LEAST for source in sources for length in lengths):
        return False
    lines = costs_of(series.samples, options.confidence)
    for source in sources:
        cost = lines.get(source)
        if cost is None or cost.ci is None:
            return False
        if (cost.ci[1] - cost.ci[0]) / 2 > options.interval * abs(cost.per_token_s):
            return False
    return True
