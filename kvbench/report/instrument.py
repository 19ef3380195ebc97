"""What the measurement says about itself, as labelled figures: the few that matter, then the details."""

from __future__ import annotations

from kvbench.judge.verdict import Instrument
from kvbench.report.parts import Figure
from kvbench.report.wording import show_share, show_value
from kvbench.spec.quantity import show_seconds
from kvbench.spec.rules import Validity

__all__ = ["instrument_figures"]


def instrument_figures(instrument: Instrument, budget: Validity) -> tuple[Figure, ...]:
    """Every figure once. The first four are always told, even that they were not measured; the others where they
    were. Those marked as detail come last."""
    told = (
        Figure(
            "send lag p99", show_value(instrument.send_lag_p99_s, "s"), f"≤ {show_seconds(budget.send_lag_p99)}"
        ),
        Figure("timestamp error p99", show_value(instrument.timestamp_error_p99_s, "s")),
        Figure(
            "scrape coverage",
            show_value(instrument.scrape_coverage, "fraction"),
            f"≥ {show_share(budget.scrape_coverage)}",
        ),
        Figure("events with several tokens", show_value(instrument.multi_token_event_share, "fraction")),
        *_followed(instrument),
        *_measured("events read together", instrument.merged_events_share, "fraction"),
        *_measured("longest loop stall", instrument.loop_stall_max_s, "s"),
        *_measured("client CPU", instrument.client_cpu_cores, "cores"),
        *_capacity(instrument),
        *_workers(instrument),
        *_changes_of_meaning(instrument),
        *_details(instrument),
    )
    return tuple(sorted(told, key=lambda figure: figure.detail))


def _measured(label: str, value: float | None, unit: str | None, *, detail: bool = False) -> tuple[Figure, ...]:
    return () if value is None else (Figure(label, show_value(value, unit), detail=detail),)


def _followed(instrument: Instrument) -> tuple[Figure, ...]:
    """Of sessions, side branches and closed loops: what waited for an answer is not late by that."""
    if not instrument.followed_requests:
        return ()
    lag = show_value(instrument.followed_send_lag_p99_s, "s")
    return (
        Figure(
            "sent after an answer",
            f"{instrument.followed_requests:,} requests, p99 {lag} after its end and think time",
        ),
    )


def _capacity(instrument: Instrument) -> tuple[Figure, ...]:
    """What the calibration before the run found that one worker can take in."""
    capacity = instrument.calibrated_capacity_events_per_s
    return () if capacity is None else (Figure("calibrated capacity", f"{capacity:,.0f} events/s a worker"),)


def _workers(instrument: Instrument) -> tuple[Figure, ...]:
    """Of a load that several processes played; their starts can differ only between machines."""
    if instrument.workers is None:
        return ()
    apart = instrument.worker_clock_error_s
    return (
        Figure("load workers", f"{instrument.workers:g}", detail=instrument.workers <= 1),
        *_measured("their starts apart by at most", apart, "s", detail=not apart),
        *_measured("their clocks apart, put right", instrument.worker_clock_offset_s, "s", detail=True),
    )


def _changes_of_meaning(instrument: Instrument) -> tuple[Figure, ...]:
    """What makes times, lengths or hits mean something else than usual; a detail where there was none of it."""
    each = (
        ("reads timed by the clock", instrument.unstamped_reads_share, "fraction"),
        ("steps of the wall clock", instrument.clock_steps, None),
        ("time without right of way", instrument.stepped_down_s, "s"),
        ("requests sent twice", instrument.resent_on_stale_connection, None),
        ("turns with other tokens", instrument.substituted_turns, None),
        ("answers without a count", instrument.uncounted_outputs, None),
    )
    return tuple(figure for row in each for figure in _measured(*row, detail=not row[1]))


def _details(instrument: Instrument) -> tuple[Figure, ...]:
    each = (
        ("read lag p99", instrument.read_lag_p99_s, "s"),
        ("longest pause to collect garbage", instrument.gc_pause_max_s, "s"),
        ("CPU that the hypervisor took", instrument.host_steal_cores, "cores"),
        ("calibrated send lag p99", instrument.calibrated_send_lag_p99_s, "s"),
        ("calibrated timestamp error p99", instrument.calibrated_timestamp_error_p99_s, "s"),
    )
    return tuple(figure for row in each for figure in _measured(*row, detail=True))
