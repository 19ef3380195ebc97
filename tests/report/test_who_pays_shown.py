"""Who gained and who lost, and what the instrument says of itself: shown in full where there is room for it."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from kvbench.judge.verdict import ClassChange, Instrument, Verdict
from kvbench.report.data import ReportData
from kvbench.report.instrument import instrument_figures
from kvbench.report.markdown import render_markdown
from kvbench.report.terminal import render_verdict
from kvbench.report.verdict_json import render_verdict_json
from kvbench.report.view import view
from kvbench.spec.rules import Rounds, Validity
from tests.report.conftest import page_of
from tests.report.test_html import Page
from tests.report.verdicts import class_changes

WORDS = {"gained": "+ gained", "lost": "− lost", "unclear": "? unclear"}


def terminal(data: ReportData, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    render_verdict(Console(file=stream, width=width), data)
    stream.flush()
    return raw.getvalue().decode(encoding)


def section(text: str, heading: str) -> str:
    """The lines below a heading of the terminal report, up to the next blank one."""
    return text.split(f"\n{heading}\n")[1].split("\n\n", maxsplit=1)[0]


def with_changes(data: ReportData, changes: list[ClassChange]) -> ReportData:
    return replace(data, verdict=data.verdict.model_copy(update={"who_pays": changes}))


def with_instrument(data: ReportData, **figures: object) -> ReportData:
    told = data.verdict.instrument.model_copy(update=figures)
    return replace(data, verdict=data.verdict.model_copy(update={"instrument": told}))


def rows_of_the_page(data: ReportData) -> list[str]:
    return [text for _, text in Page(page_of(data)).all("tr")]


def figures(instrument: Instrument) -> dict[str, str]:
    return {figure.label: figure.value for figure in instrument_figures(instrument, Validity())}


# ---- who pays


def test_a_change_is_told_with_units_ratio_interval_and_a_word(go: ReportData) -> None:
    rows = view(go).candidates[0].who_pays
    assert [(row.class_, row.latency, row.seconds, row.effect, row.change) for row in rows] == [
        ("long", "TTFT p50", "1.13 s → 206 ms", "×0.182 [×0.162, ×0.204]", "gained"),
        ("long", "ITL p50", "17.1 ms → 17.3 ms", "×1.01 [×0.96, ×1.06]", "unclear"),
        ("short", "TTFT p50", "81.2 ms → 78.8 ms", "×0.97", "unclear"),
        ("short", "TTFT p90", "190 ms → 255 ms", "×1.34 [×1.12, ×1.6]", "lost"),
    ]


def test_the_page_and_markdown_show_every_change_in_words(go: ReportData) -> None:
    markdown, page = render_markdown(go), rows_of_the_page(go)
    for row in view(go).candidates[0].who_pays:
        cells = (WORDS[row.change], row.class_, row.latency, row.seconds, row.effect)
        shown = " | ".join(cells).replace("[", r"\[").replace("]", r"\]")
        assert f"| {shown} |" in markdown
        assert " ".join(cells) in page
    for text in (markdown, Page(page_of(go)).text):
        assert "A description, not what decides: each interval alone is at confidence 0.95" in text


def after(data: ReportData, done: int, planned: int, least: int = 3) -> ReportData:
    """The same after so many of `planned` rounds, of which `least` were asked for at least."""
    rounds = data.verdict.rounds.model_copy(update={"done": done, "planned": planned})
    rules = data.rules.model_copy(update={"rounds": Rounds(min=least, max=planned)})
    return replace(data, rules=rules, verdict=data.verdict.model_copy(update={"rounds": rounds}))


@pytest.mark.parametrize(
    ("done", "planned", "least", "early"),
    [(5, 12, 3, True), (12, 12, 3, False), (3, 3, 3, False), (2, 3, 3, False)],
)
def test_every_format_says_what_the_intervals_are_and_that_early_stopping_takes_from_it(
    go: ReportData, done: int, planned: int, least: int, early: bool
) -> None:
    data = after(go, done, planned, least)
    words = "each interval alone is at confidence 0.95"
    words += ", after early stopping, so somewhat less. Among many" if early else ". Among many"
    for text in (terminal(data), terminal(data, 40), render_markdown(data), Page(page_of(data)).text):
        assert words in " ".join(text.split())


def test_several_candidates_each_have_their_own_note(several: ReportData) -> None:
    assert terminal(several, 500).count("each interval alone is at confidence") == 3


@pytest.mark.parametrize("width", [40, 80, 112])
def test_the_terminal_shows_losses_first_then_gains_and_counts_the_rest(go: ReportData, width: int) -> None:
    shown = section(terminal(go, width), "Who pays")
    assert re.findall(r"^  (. \w+)", shown, re.MULTILINE) == ["− lost", "+ gained", "? unclear"]
    lost, gained, rest = re.split(r"\n(?=  [+?])", shown)
    assert " ".join(lost.split()) == "− lost short TTFT p90 190 ms → 255 ms ×1.34 [×1.12, ×1.6]"
    assert " ".join(gained.split()) == "+ gained long TTFT p50 1.13 s → 206 ms ×0.182 [×0.162, ×0.204]"
    assert rest.split() == ["?", "unclear", "2", "of", "4"]
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 79, 80])
def test_long_names_and_long_times_fold_and_nothing_is_cut_off(go: ReportData, width: int) -> None:
    change = class_changes()[3].model_copy(
        update={"class_": "y" * 84, "metric": "e2e", "baseline": 3725.0, "candidate": 4991.0}
    )
    shown = section(terminal(with_changes(go, [change]), width), "Who pays")
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for word in ("lost", "E2E", "62", "→", "83", "×1.34", "[×1.12,", "×1.6]"):
        assert word in shown
    assert shown.count("y") == 84


def test_changes_that_are_all_unclear_are_only_counted_on_a_terminal(go: ReportData) -> None:
    data = with_changes(go, [change for change in class_changes() if change.change == "unclear"])
    assert section(terminal(data), "Who pays").split() == ["?", "unclear", "2", "of", "2"]
    assert render_markdown(data).count("? unclear |") == 2


def test_a_terminal_without_unicode_tells_loss_from_gain(go: ReportData) -> None:
    shown = section(terminal(go, encoding="ascii"), "Who pays")
    assert "- lost" in shown
    assert "+ gained" in shown


def test_a_run_without_changes_has_no_such_section(go: ReportData) -> None:
    stored = go.verdict.model_dump(by_alias=True)
    del stored["who_pays"]
    data = replace(go, verdict=Verdict.model_validate(stored))
    for text in (terminal(data), render_markdown(data), page_of(data)):
        assert "Who pays" not in text


def test_a_stored_verdict_shows_the_changes_that_it_was_written_with(go: ReportData) -> None:
    again = replace(go, verdict=Verdict.model_validate_json(render_verdict_json(go)))
    assert view(again).candidates[0].who_pays == view(go).candidates[0].who_pays


def test_every_candidate_has_its_own_changes(several: ReportData) -> None:
    text = terminal(several)
    for candidate in ("host-and-disk", "small-host", "disk-only"):
        assert "− lost" in section(text, f"Who pays of {candidate}")
    page = Page(page_of(several))
    targets = [attrs["href"] for attrs, text in page.all("a") if text == "Who pays"]
    assert targets == ["#c1-who-pays", "#c2-who-pays", "#c3-who-pays"]
    assert [f"#{attrs['id']}" for attrs, text in page.all("h2") if text == "Who pays"] == targets


def test_names_from_a_workload_stay_text_among_the_changes(attacked: ReportData) -> None:
    markdown = render_markdown(attacked).split("### Who pays")[1].split("\n### ")[0]
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(class_changes())
    assert {line.count("|") for line in table} == {6}
    assert "<script" not in markdown
    assert not re.search(r"(?<!\\)[`*\[]", "\n".join(table[2:]))
    row = next(text for text in rows_of_the_page(attacked) if text.startswith("− lost"))
    assert "<script>alert(1)</script>" in row
    assert "[bold red]" in section(terminal(attacked, 500), "Who pays")


# ---- the instrument itself

MATTER = {
    "send lag p99": "1.13 ms",
    "timestamp error p99": "210 µs",
    "events read together": "1.23 %",
    "longest loop stall": "9.4 ms",
    "client CPU": "0.187 cores",
    "calibrated capacity": "31,250 events/s a worker",
}
DETAILS = {
    "read lag p99": "3.1 ms",
    "longest pause to collect garbage": "4.2 ms",
    "CPU that the hypervisor took": "0 cores",
    "calibrated send lag p99": "980 µs",
    "calibrated timestamp error p99": "170 µs",
}


def test_the_figures_that_matter_are_on_the_terminal_and_all_in_the_page_and_markdown(go: ReportData) -> None:
    shown = section(terminal(go), "The instrument itself")
    page, markdown = Page(page_of(go)).text, render_markdown(go)
    for label, value in (MATTER | DETAILS).items():
        assert f"{label}{value}" in page
        assert f"| {label} | {value} |" in markdown
        assert (re.search(rf"^  {label} +{re.escape(value)}", shown, re.MULTILINE) is not None) == (label in MATTER)


def test_no_figure_of_the_instrument_comes_twice_and_details_come_last(go: ReportData) -> None:
    told = view(with_instrument(go, workers=2.0, worker_clock_error_s=0.0)).candidates[0].instrument
    assert len({figure.label for figure in told}) == len(told)
    assert [figure.detail for figure in told] == sorted(figure.detail for figure in told)


def test_every_measured_figure_of_the_instrument_is_told() -> None:
    def told(**changes: object) -> dict[str, str]:
        each = dict.fromkeys(Instrument.model_fields, 0.125) | {"followed_requests": 9} | changes
        return figures(Instrument.model_validate(each))

    for name in Instrument.model_fields:
        assert told(**{name: 7}) != told(), name
    assert len(told()) == len(Instrument.model_fields) - 1  # requests after an answer share a line with their lag


def test_what_the_driver_did_not_measure_has_no_line() -> None:
    assert list(figures(Instrument())) == [
        "send lag p99",
        "timestamp error p99",
        "scrape coverage",
        "events with several tokens",
    ]
    assert figures(Instrument(loop_stall_max_s=0.0))["longest loop stall"] == "0 s"


def test_what_changes_the_meaning_of_times_is_on_the_terminal_where_there_was_any(go: ReportData) -> None:
    def shown(**told: object) -> str:
        return section(terminal(with_instrument(go, **told)), "The instrument itself")

    label = "requests sent twice"
    assert label not in shown(resent_on_stale_connection=0.0)
    assert re.search(rf"{label} +2\b", shown(resent_on_stale_connection=2.0))
    assert f"| {label} | 0 |" in render_markdown(with_instrument(go, resent_on_stale_connection=0.0))


def test_workers_are_on_the_terminal_only_when_there_are_several(go: ReportData) -> None:
    def shown(**figures: object) -> str:
        return section(terminal(with_instrument(go, **figures)), "The instrument itself")

    assert "load workers" not in shown()
    assert "load workers" not in shown(workers=1.0, worker_clock_error_s=0.0)
    assert re.search(r"load workers +2\b", shown(workers=2.0, worker_clock_error_s=0.0))
    assert "their starts apart" not in shown(workers=2.0, worker_clock_error_s=0.0)
    assert "their starts apart" in shown(workers=2.0, worker_clock_error_s=0.0004)
    joined = {"workers": 2.0, "worker_clock_error_s": 0.0004, "worker_clock_offset_s": 12.5}
    assert "their clocks apart" not in shown(**joined)
    assert "| their clocks apart, put right | 12.5 s |" in render_markdown(with_instrument(go, **joined))
    assert "| load workers | 1 |" in render_markdown(with_instrument(go, workers=1.0, worker_clock_error_s=0.0))
