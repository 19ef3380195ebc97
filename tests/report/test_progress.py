"""The live view: little where nobody watches, and never the end of a run."""

from __future__ import annotations

import io
import os

from rich.console import Console

from kvbench.report.progress import LiveView


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tick(view: LiveView, t_s: float, **more: object) -> None:
    figures = {"sent": 10, "done": 8, "failed": 0, "ttft_p50_s": 0.182, **more}
    view.round_progress(arm="tiered", round=2, t_s=t_s, duration_s=60.0, **figures)  # type: ignore[arg-type]


def test_without_a_terminal_there_is_a_line_for_each_stage_and_one_in_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with LiveView(Console(file=stream, width=80), ["baseline", "tiered"], rounds=3, clock=clock) as view:
        view.stage("launching tiered")
        view.stage("launching tiered")
        for second in range(1, 31):
            clock.now += 1
            tick(view, float(second), sources={"device": 30.0, "host": None, "disk": 10.0})
        view.note("round 1 is repeated")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "launching tiered"
    assert lines[1] == (
        "tiered, round 2 of 3: 10 of 60 s, 10 sent, 8 done, 0 failed, TTFT p50 182 ms, device 75.0 %, disk 25.0 %"
    )
    assert [line[:30] for line in lines[2:]] == [
        "tiered, round 2 of 3: 20 of 60",
        "tiered, round 2 of 3: 30 of 60",
        "round 1 is repeated",
    ]


def test_nothing_is_invented_before_the_first_token() -> None:
    stream, clock = io.StringIO(), Clock()
    clock.now = 100.0
    with LiveView(Console(file=stream), ["tiered"], rounds=3, clock=clock) as view:
        tick(view, 1.0, ttft_p50_s=None)
    assert "TTFT" not in stream.getvalue()


def test_on_a_terminal_the_block_goes_away_and_notes_stay() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    with LiveView(console, ["tiered"], rounds=3) as view:
        view.stage("round 2/3 of arm tiered")
        tick(view, 12.0)
        view.note("kept")
        view._live.refresh()  # type: ignore[union-attr]
    shown = stream.getvalue()
    assert "round 2 of 3" in shown
    assert "12 of 60 s" in shown
    assert "kept\n" in shown
    assert shown.rstrip().endswith(("\x1b[?25h", "\x1b[2K"))


def test_a_closed_stream_ends_nothing() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    view = LiveView(console, ["tiered"], rounds=3)
    stream.close()
    view.stage("launching")
    tick(view, 20.0)
    view.note("note")
    view.finish()
    view.finish()
    assert console.file is stream


def test_a_reader_that_goes_away_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stream:
        view = LiveView(Console(file=stream, force_terminal=True), ["tiered"], rounds=3)
        view.stage("launching")
        tick(view, 20.0)
        view.note("note")
        view.finish()
        assert view._live is None
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_text_of_an_engine_cannot_drive_the_terminal() -> None:
    stream = io.StringIO()
    with LiveView(Console(file=stream, width=80), ["tiered"], rounds=1) as view:
        view.stage("log says \x1b[2J[red]\r\nboom")
        view.note("\x1b]0;title\x07")
    assert "\x1b" not in stream.getvalue()
    assert "[red]" in stream.getvalue()


def test_a_stream_without_unicode_is_written_plainly() -> None:
    raw = io.BytesIO()
    with LiveView(
        Console(file=io.TextIOWrapper(raw, encoding="ascii", write_through=True)), ["t"], rounds=1
    ) as view:
        view.note("TTFT ≤ 2 s ✔")
    assert raw.getvalue() == b"TTFT <= 2 s +\n"
