"""What a gate says: on a terminal while it watches and at its end, as JUnit XML, as Markdown for a job summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self
from xml.etree import ElementTree as ET

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvbench.canary.rollback import progress_line
from kvbench.canary.verdict import CanaryVerdict, ReplicaRow
from kvbench.judge.verdict import Outcome, RuleResult
from kvbench.report.markdown import escaped
from kvbench.report.plain import plain
from kvbench.report.rollback import junit_text, rollback_cases, rollback_paragraphs
from kvbench.report.terminal import STATUS_TONES, TONES
from kvbench.report.wording import MISSING, STATUSES, show_share
from kvbench.spec.quantity import show_seconds

__all__ = ["GateView", "render_gate_junit", "render_gate_markdown", "show_gate"]

SENTENCES = {
    Outcome.GO: ("✔", "GO", "{} may stay"),
    Outcome.NO_GO: ("✘", "NO_GO", "{} must not stay"),
    Outcome.INCONCLUSIVE: ("?", "INCONCLUSIVE", "there is not enough evidence about {}"),
    Outcome.INVALID: ("!", "INVALID", "the measurement of {} cannot be trusted"),
}
PLAIN_EVERY = 4
"""Where there is no terminal, every so many looks print a line; each change of the verdict prints one, too."""


def _headline(verdict: CanaryVerdict) -> tuple[str, str, str]:
    symbol, word, sentence = SENTENCES[verdict.verdict]
    return symbol, word, sentence.format(plain(verdict.candidate))


def show_gate(console: Console, verdict: CanaryVerdict) -> None:
    """The whole verdict."""
    symbol, word, sentence = _headline(verdict)
    console.print(Text.assemble((f"{symbol} {word}", TONES[verdict.verdict]), f": {sentence}"), soft_wrap=True)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=9, style="dim")
    grid.add_column(overflow="fold")
    for label, sentences in _paragraphs(verdict):
        for number, each in enumerate(sentences):
            grid.add_row(label if number == 0 else "", Text(plain(each)))
    console.print(Padding(grid, (0, 0, 0, 2)))
    console.print(Padding(_rules(verdict.rules), (1, 0, 0, 2)))
    console.print(Padding(_replicas(verdict.replicas), (1, 0, 0, 2)))
    configuration = verdict.action.configuration if verdict.action is not None else None
    if configuration is not None and configuration.argv:
        console.print(Padding(Text("apply this:", style="bold"), (1, 0, 0, 2)))
        # Not wrapped: it is there to be copied.
        console.print(Text(plain(" ".join(configuration.argv))), soft_wrap=True)


def _paragraphs(verdict: CanaryVerdict) -> Iterable[tuple[str, Sequence[str]]]:
    yield "why", verdict.reasons
    if verdict.action is not None:
        yield "do", [f"disable the {verdict.action.disable_tier} tier: {verdict.action.why}"]
    if verdict.hook is not None:
        yield "hook", [f"{verdict.hook.state}: {verdict.hook.text}"]
    if verdict.rollback is not None:
        yield from rollback_paragraphs(verdict.rollback)
    span_s = verdict.window.end - verdict.window.start
    yield (
        "watched",
        [f"{show_seconds(span_s)}, {verdict.watch.segments} segments of {show_seconds(verdict.watch.segment_s)}"],
    )


def _rules(rules: Sequence[RuleResult]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=9)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    quiet = [rule.rule for rule in rules if rule.kind == "validity" and rule.status == "pass"]
    for rule in rules:
        if rule.rule not in quiet:
            status = Text(f"{STATUSES[rule.status]} {rule.status}", style=STATUS_TONES[rule.status])
            table.add_row(status, plain(rule.rule), Text(plain(rule.text)))
    if quiet:
        words = f"{len(quiet)} of validity: {', '.join(quiet)}"
        table.add_row(Text("✔ pass", style="green"), "", Text(words, style="dim"))
    return table


def _replicas(rows: Sequence[ReplicaRow]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("replica", overflow="fold")
    for name in ("requests", "per s", "over budget"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, (f"{row.side} {plain(row.replica)}", *_figures(row), _remarks(row))))
    return table


def _figures(row: ReplicaRow) -> tuple[str, str, str]:
    return (
        MISSING if row.requests is None else f"{row.requests:,.0f}",
        MISSING if row.per_s is None else f"{row.per_s:.3g}",
        MISSING if row.share_over is None else show_share(row.share_over),
    )


def _remarks(row: ReplicaRow) -> str:
    remarks = ["the odd one out"] if row.odd else []
    remarks += [f"restarted {row.restarts}×"] if row.restarts else []
    remarks += [] if row.warm else ["not warm"]
    return ", ".join(remarks)


class GateView:
    """Progress of a watch: a live table on a terminal, few lines anywhere else. Use as a context."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._looks = 0
        self._said = ""
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, transient=True, auto_refresh=False)

    def look(self, verdict: CanaryVerdict, failure: str | None) -> None:
        """Show how it stands."""
        self._looks += 1
        line = self._line(verdict, failure)
        if self._live is not None:
            parts = [Text(line, style="bold"), _rules(verdict.rules), _replicas(verdict.replicas)]
            self._live.update(Group(*parts), refresh=True)
            return
        after = verdict.rollback
        proven = "" if after is None else f"{after.tier_off.status} {after.baseline_back.status}"
        said = f"{verdict.verdict.value} {failure or ''} {proven}"
        if said != self._said or self._looks % PLAIN_EVERY == 1:
            self._said = said
            self._console.print(Text(line), soft_wrap=True)

    def _line(self, verdict: CanaryVerdict, failure: str | None) -> str:
        if verdict.rollback is not None:
            return plain(progress_line(verdict.rollback, failure))
        elapsed, planned = (end - verdict.window.start for end in (verdict.window.end, verdict.watch.planned_end))
        state = f"cannot read: {failure}" if failure else verdict.reasons[0]
        return plain(f"{show_seconds(elapsed)} of {show_seconds(planned)}: {verdict.verdict.value} so far; {state}")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def render_gate_junit(verdict: CanaryVerdict, canary: str) -> str:
    """One suite: a case for each rule, and a case `verdict` that is red unless GO."""
    name = plain(f"{verdict.candidate} against {verdict.baseline}")
    root = ET.Element("testsuites", {"name": f"kvbench gate {canary}"})
    suite = ET.SubElement(root, "testsuite", {"name": name})
    properties = ET.SubElement(suite, "properties")
    for key, value in (
        ("verdict", verdict.verdict.value),
        ("window_start", f"{verdict.window.start:.0f}"),
        ("window_end", f"{verdict.window.end:.0f}"),
    ):
        ET.SubElement(properties, "property", {"name": key, "value": value})
    case = ET.SubElement(suite, "testcase", {"classname": f"kvbench.{canary}", "name": "verdict"})
    if verdict.verdict is not Outcome.GO:
        _, word, sentence = _headline(verdict)
        failure = ET.SubElement(case, "failure", {"type": word, "message": f"{word}: {sentence}"})
        failure.text = "\n".join(map(plain, verdict.reasons))
    for rule in verdict.rules:
        suite.append(_case(rule, verdict, canary))
    if verdict.rollback is not None:
        suite.extend(rollback_cases(verdict.rollback, f"kvbench.{canary}"))
    return junit_text(root, suite)


def _case(rule: RuleResult, verdict: CanaryVerdict, canary: str) -> ET.Element:
    case = ET.Element("testcase", {"classname": f"kvbench.{canary}.{rule.kind}", "name": plain(rule.rule)})
    forgiven = rule.kind == "benefit" and verdict.verdict is Outcome.GO
    if rule.status == "fail" and not forgiven:
        ET.SubElement(case, "failure", {"type": rule.kind, "message": plain(rule.text)})
    elif rule.status != "pass":
        why = "not reached; another benefit is proven" if forgiven else "unknown"
        ET.SubElement(case, "skipped", {"message": f"{why}: {plain(rule.text)}"})
    return case


def render_gate_markdown(verdict: CanaryVerdict, canary: str) -> str:
    """For a job summary: the verdict, why, and a table of rules and replicas."""
    symbol, word, sentence = _headline(verdict)
    lines = [f"## {symbol} {word}: {_cell(sentence)}", "", f"Gate {_cell(canary)}.", ""]
    for label, sentences in _paragraphs(verdict):
        lines += [f"- **{label}**: {_cell(each)}" for each in sentences]
    lines += ["", "| | rule | |", "|---|---|---|"]
    lines += [f"| {STATUSES[r.status]} {r.status} | {_cell(r.rule)} | {_cell(r.text)} |" for r in verdict.rules]
    lines += ["", "| replica | requests | per s | over budget | |", "|---|---:|---:|---:|---|"]
    for row in verdict.replicas:
        cells = (f"{row.side} {row.replica}", *_figures(row), _remarks(row))
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return escaped(plain(text))
