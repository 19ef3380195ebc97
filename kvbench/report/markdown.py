"""The report as GitHub-flavoured Markdown, fit for a job's summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvbench.report.data import ReportData
from kvbench.report.parts import CandidateView, ChangeView, Figure, ReportView, RuleView, SourcesView, TableView
from kvbench.report.view import view
from kvbench.report.wording import metric_name

__all__ = ["render_markdown"]

_ENTITIES = re.compile(r"[<>&|@]|(?<=:)//|(?<=www)\.")
_MARKUP = re.compile(r"[\\`*{}\[\]#~!]|(?<![^\W_])_|_(?![^\W_])")


def escaped(text: str) -> str:
    """`text` shown as it is: nothing in it is markup, HTML, the end of a cell, a mention or a link."""
    text = _MARKUP.sub(lambda mark: f"\\{mark[0]}", text)
    return _ENTITIES.sub(lambda mark: "".join(f"&#{ord(letter)};" for letter in mark[0]), text)


def render_markdown(data: ReportData) -> str:
    """The whole report; the worst candidate first."""
    report = view(data)
    blocks = [f"# kvbench: {escaped(report.title)}", _conditions(report)]
    blocks += [f"> [!WARNING]\n> {escaped(warning)}" for warning in report.warnings]
    for candidate in report.candidates:
        blocks += _candidate(candidate)
    blocks += ["## What was compared", _arms(report), _figures([*report.workload, *report.rules_summary])]
    blocks += ["## Reproduce", f"    {report.again}"]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _conditions(report: ReportView) -> str:
    return escaped(f"Run {report.run_id}, started {report.started}, kvbench {report.version}, on {report.host}.")


def _candidate(candidate: CandidateView) -> list[str]:
    arms = f"{candidate.candidate} against {candidate.baseline}"
    action = f"**Do this:** {escaped(candidate.action)}" if candidate.action else ""
    return [
        f"## {candidate.symbol} {escaped(candidate.word)}: {escaped(candidate.sentence)}",
        _list(candidate.reasons),
        action,
        f"### Rules: {escaped(arms)}",
        _rules(candidate.rules),
        escaped(candidate.rounds),
        *_who_pays(candidate.who_pays, candidate.who_pays_note),
        "### Where prompt tokens came from",
        _sources(candidate.sources),
        "### Latency, all rounds together",
        _latency(candidate),
        *(
            block
            for table in (*candidate.prediction, *candidate.hits, *candidate.host)
            for block in _plain_table(table)
        ),
        "### Load that was achieved" if candidate.achieved else "",
        _achieved(candidate),
        "### The instrument itself",
        _figures(candidate.instrument),
        "### Not tested" if candidate.not_tested else "",
        _list(candidate.not_tested),
    ]


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: int = 1) -> str:
    """A table whose columns from `right` on are aligned to the right; empty without rows."""
    body = [f"| {' | '.join(map(escaped, row))} |" for row in rows]
    if not body:
        return ""
    rule = ["---" if column < right else "--:" for column in range(len(header))]
    return "\n".join([f"| {' | '.join(header)} |", f"| {' | '.join(rule)} |", *body])


def _rules(rules: Iterable[RuleView]) -> str:
    header = ("Status", "Rule", "Kind", "What", "Baseline", "Candidate", "Effect", "Limit")
    rows = [
        (
            f"{rule.symbol} {rule.status}",
            rule.rule,
            rule.kind,
            rule.what or rule.text,
            rule.baseline,
            rule.candidate,
            f"{rule.effect} {rule.interval}".strip(),
            rule.limit,
        )
        for rule in rules
    ]
    return _table(header, rows, right=4)


def _who_pays(changes: Sequence[ChangeView], note: str) -> list[str]:
    """Heading, note and a row for every change; nothing without one."""
    if not changes:
        return []
    header = ("Change", "Class", "Latency", "Before → after", "Ratio")
    rows = [(f"{c.symbol} {c.change}", c.class_, c.latency, c.seconds, c.effect) for c in changes]
    return ["### Who pays", escaped(note), _table(header, rows, right=3)]


def _sources(each: Sequence[SourcesView]) -> str:
    if not each:
        return ""
    names = tuple(dict.fromkeys(part.source for sources in each for part in sources.parts))
    rows = []
    for sources in each:
        shown = {part.source: f"{part.tokens} ({part.shown})" for part in sources.parts}
        rows.append((sources.arm, sources.total, *(shown.get(name, "–") for name in names)))
    return _table(("Arm", "Tokens", *map(escaped, names)), rows)


def _latency(candidate: CandidateView) -> str:
    rows = [(metric_name(r.metric), r.class_, r.arm, r.n, r.p50, r.p90, r.p99) for r in candidate.latency]
    return _table(("Metric", "Class", "Arm", "n", "p50", "p90", "p99"), rows, right=3)


def _plain_table(table: TableView) -> tuple[str, str, str]:
    return (
        f"### {escaped(table.heading)}",
        escaped(table.note),
        _table([escaped(name) for name in table.header], table.rows, right=table.right),
    )


def _achieved(candidate: CandidateView) -> str:
    rows = [
        (r.arm, r.class_, r.requests, r.failed, r.rate, r.prompt_tokens, r.output_tokens, r.cached)
        for r in candidate.achieved
    ]
    header = ("Arm", "Class", "Requests", "Failed", "Rate", "Prompt tokens p50", "Output tokens p50", "Cached")
    return _table(header, rows, right=2)


def _figures(figures: Iterable[Figure]) -> str:
    return _table(("What", "Value", "Budget"), [(f.label, f.value, f.budget) for f in figures], right=3)


def _arms(report: ReportView) -> str:
    rows = [(arm.name, arm.role, arm.engine, "; ".join(arm.tiers)) for arm in report.arms]
    return _table(("Arm", "Role", "Engine", "Tiers"), rows, right=4)
