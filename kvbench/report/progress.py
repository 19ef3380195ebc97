"""What is shown while a comparison runs: one live block on a terminal, few plain lines anywhere else.

Progress must never end a run: a terminal that goes away is written to no more, and nothing is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kvbench.judge.sources import SOURCES
from kvbench.report.plain import plain
from kvbench.report.terminal import encodable
from kvbench.report.wording import show_share
from kvbench.spec.quantity import show_seconds

__all__ = ["LiveView"]

PLAIN_EVERY_S = 10.0
"""How often a line about the same round is printed where there is no terminal."""


class _Unbreakable:
    """A text stream that outlives its reader: what cannot be written is dropped."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write, or drop where the reader is gone."""
        if self._stream is not None:
            try:
                self._stream.write(encodable(text, self.encoding))
            except (OSError, ValueError):  # broken pipe, or closed on our side
                self._stream = None
        return len(text)

    def flush(self) -> None:
        """Flush, or drop where the reader is gone."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._stream = None

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("the stream is closed")
        return self._stream.fileno()


@dataclass(frozen=True)
class _Round:
    """The latest figures of the round under way."""

    arm: str
    index: int
    t_s: float
    duration_s: float
    figures: str


class LiveView:
    """Shows stages, the round under way, and notes that stay. Use as a context, or call `finish`."""

    def __init__(
        self, console: Console, arms: Sequence[str], rounds: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console, clock
        self._rounds = rounds
        self._width = max((len(plain(arm)) for arm in arms), default=0)
        self._stage, self._stage_since = "", clock()
        self._round: _Round | None = None
        self._printed_at = -PLAIN_EVERY_S
        self._file = console.file
        console.file = cast("IO[str]", _Unbreakable(console.file))
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line")
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(
                console=console,
                get_renderable=self._block,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def stage(self, text: str) -> None:
        """What is being done now; on a terminal it replaces the stage before."""
        cleaned = plain(text)
        if cleaned == self._stage:
            return
        self._stage, self._stage_since, self._round = cleaned, self._clock(), None
        if self._live is None:
            self._line(cleaned)

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
        sources: Mapping[str, float | None] | None = None,
    ) -> None:
        """The state of the round under way, once a second or so; `sources` are tokens so far."""
        parts = [f"{sent} sent", f"{done} done", f"{failed} failed"]
        if ttft_p50_s is not None:
            parts.append(f"TTFT p50 {show_seconds(ttft_p50_s)}")
        if told := _shares(sources or {}):
            parts.append(told)
        self._round = _Round(plain(arm), round, t_s, duration_s, ", ".join(parts))
        if self._live is None and self._clock() - self._printed_at >= PLAIN_EVERY_S:
            place = f"{self._round.arm}, round {round} of {self._rounds}"
            self._line(f"{place}: {t_s:.0f} of {duration_s:.0f} s, {self._round.figures}")

    def note(self, text: str) -> None:
        """A sentence that stays."""
        self._line(plain(text))

    def finish(self) -> None:
        """Take the live block away and give the console back; may be called again."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if isinstance(self._console.file, _Unbreakable):
            self._console.file = self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def _line(self, text: str) -> None:
        self._printed_at = self._clock()
        self._console.print(Text(text), highlight=False, soft_wrap=True)

    def _block(self) -> RenderableType:
        elapsed = f"  {self._clock() - self._stage_since:.0f} s"
        head = Table.grid(padding=(0, 1))
        head.add_row(self._spinner, Text.assemble((self._stage, "bold"), (elapsed, "dim")))
        round_ = self._round
        if round_ is None:
            return head
        body = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(round_.duration_s, 1e-9), completed=max(round_.t_s, 0.0), width=24)
        place = Text(f"  {round_.arm:<{self._width}}  round {round_.index} of {self._rounds}")
        body.add_row(place, bar, Text(f"{max(round_.t_s, 0.0):.0f} of {round_.duration_s:.0f} s", style="dim"))
        return Group(head, body, Text(f"  {round_.figures}", style="dim"))


def _shares(sources: Mapping[str, float | None]) -> str:
    """`device 44 %, disk 32 %`: shares of the tokens so far, without the sources that gave none."""
    known = {name: count for name in SOURCES if (count := sources.get(name))}
    total = sum(known.values())
    return ", ".join(f"{name} {show_share(count / total)}" for name, count in known.items())
