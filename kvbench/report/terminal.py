"""The verdict on a terminal: words and symbols first, colour only on top of them; 80 columns are enough."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvbench.judge.sources import SOURCES
from kvbench.judge.verdict import Outcome
from kvbench.report.data import ReportData
from kvbench.report.parts import CandidateView, ChangeView, ReportView, RuleView, SourcesView, TableView
from kvbench.report.view import view
from kvbench.report.wording import CHANGES, MISSING

__all__ = ["encodable", "plain_table", "render_verdict"]

WIDE = 112
"""From this many columns a rule fits on one line of a table."""
ROOMY = 80
"""From this many columns so does a change of one class."""
BAR = 30
TONES = {
    Outcome.GO: "bold green",
    Outcome.NO_GO: "bold red",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.INVALID: "bold magenta",
}
CHANGE_TONES = {"gained": "green", "lost": "bold red", "unclear": "yellow"}
STATUS_TONES = {"pass": "green", "fail": "bold red", "unknown": "yellow"}
FILLS = dict(zip(SOURCES, "█▓▒░", strict=True))
SOURCE_TONES = {"device": "cyan", "host": "blue", "disk": "magenta", "computed": "yellow"}
_PLAIN = str.maketrans(
    {
        "✔": "+",
        "✘": "X",
        "–": "-",
        "−": "-",
        "→": "->",
        "≤": "<=",
        "≥": ">=",
        "×": "x",
        "·": "-",
        "…": "...",
        "µ": "u",
    }
    | {"█": "#", "▓": "=", "▒": ":", "░": "."}
)
_TRAILING = re.compile(r" +$", re.MULTILINE)


def render_verdict(console: Console, data: ReportData) -> None:
    """Print the whole report; the first line is the verdict. Letters that the terminal cannot show are replaced."""
    report = view(data)
    with console.capture() as capture:
        for part in _parts(report, console.width):
            console.print(part, highlight=False, soft_wrap=False)
        # Not wrapped: paths are there to be copied.
        console.print(f"  report   {report.directory}/report.html", markup=False, highlight=False, soft_wrap=True)
        console.print(f"           {report.again}", markup=False, highlight=False, soft_wrap=True)
    console.file.write(encodable(_TRAILING.sub("", capture.get()), console.encoding))
    console.file.flush()


def encodable(text: str, encoding: str) -> str:
    """`text` with what `encoding` lacks replaced by the nearest plain letter."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def _parts(report: ReportView, width: int) -> Iterable[RenderableType]:
    worst, *others = report.candidates
    yield _headline(worst)
    yield from (Text(f"! {warning}", style="bold yellow") for warning in report.warnings)
    yield from _why(worst)
    for other in others:
        yield Text()
        yield _headline(other)
        yield from _why(other)
    for candidate in report.candidates:
        yield from _detail(candidate, width, named=bool(others))
    yield Text()


def _headline(candidate: CandidateView) -> Text:
    tone = TONES[candidate.outcome]
    return Text.assemble((f"{candidate.symbol} {candidate.word}", tone), f": {candidate.sentence}")


def _why(candidate: CandidateView) -> Iterable[RenderableType]:
    yield _labelled("why", candidate.reasons)
    if candidate.action:
        yield _labelled("do", [candidate.action], style="bold")
    yield _labelled("rounds", [candidate.rounds])


def _labelled(label: str, sentences: Sequence[str], style: str = "") -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=8, style="dim")
    grid.add_column(overflow="fold")
    for number, sentence in enumerate(sentences):
        grid.add_row(label if number == 0 else "", Text(sentence, style=style))
    return Padding(grid, (0, 0, 0, 2))


def _detail(candidate: CandidateView, width: int, *, named: bool) -> Iterable[RenderableType]:
    of = f" of {candidate.candidate}" if named else ""
    yield _heading(f"Rules{of}")
    yield _rules_table(candidate) if width >= WIDE else _rules_list(candidate)
    if candidate.who_pays:
        yield _heading(f"Who pays{of}")
        yield from _who_pays(candidate.who_pays, width)
        yield Padding(Text(candidate.who_pays_note, style="dim"), (1, 0, 0, 2))
    yield _heading(f"Prompt tokens by source{of}")
    yield from (_sources(sources, width) for sources in candidate.sources)
    if candidate.ledger_mismatch is not None:
        yield _labelled_figure("ledger less counters", candidate.ledger_mismatch, "")
    yield _heading(f"TTFT by class{of}")
    yield _ttft(candidate)
    for table in (*candidate.prediction, *candidate.hits, *candidate.host):
        if table.brief or (table.wide and width >= WIDE):
            yield _heading(f"{table.heading}{of}")
            yield plain_table(table, width)
    if candidate.achieved:
        yield _heading(f"Load that was achieved{of}")
        yield plain_table(_achieved(candidate), width)
    yield _heading("The instrument itself")
    for figure in candidate.instrument:
        if not figure.detail:
            yield _labelled_figure(figure.label, figure.value, figure.budget)
    if candidate.not_tested:
        yield _heading("Not tested")
        yield from (Padding(Text(sentence), (0, 0, 0, 2)) for sentence in candidate.not_tested)


def _heading(text: str) -> RenderableType:
    return Padding(Text(text, style="bold underline"), (1, 0, 0, 0))


def _labelled_figure(label: str, value: str, budget: str) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=26)
    grid.add_column()
    grid.add_row(Text(label, style="dim"), Text(f"{value}  ({budget})" if budget else value))
    return Padding(grid, (0, 0, 0, 2))


def _status(rule: RuleView) -> Text:
    return Text(f"{rule.symbol} {rule.status}", style=STATUS_TONES[rule.status])


def _shown(candidate: CandidateView) -> tuple[list[RuleView], list[RuleView]]:
    """Rules worth a line each, and the validity rules that passed, for which one line is enough."""
    quiet = [rule for rule in candidate.rules if rule.kind == "validity" and rule.status == "pass"]
    return [rule for rule in candidate.rules if rule not in quiet], quiet


def _rules_table(candidate: CandidateView) -> RenderableType:
    shown, quiet = _shown(candidate)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "rule", "what"):
        table.add_column(name, overflow="fold")
    for name in ("baseline", "candidate", "effect", "", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    for rule in shown:
        cells = (rule.rule, rule.what or rule.text, rule.baseline, rule.candidate)
        figures = (rule.effect, rule.interval, rule.limit)
        table.add_row(_status(rule), *map(Text, (*cells, *figures)))
    return Padding(Group(table, *_quiet(quiet)), (0, 0, 0, 2))


def _rules_list(candidate: CandidateView) -> RenderableType:
    shown, quiet = _shown(candidate)
    lines: list[RenderableType] = []
    for rule in shown:
        status = _status(rule)
        status.pad_right(10 - status.cell_len)
        lines.append(Text.assemble(status, (rule.rule, "bold"), "  ", rule.what))
        lines.append(Padding(Text(_figures(rule) or rule.text), (0, 0, 0, 10)))
    return Padding(Group(*lines, *_quiet(quiet)), (0, 0, 0, 2))


def _figures(rule: RuleView) -> str:
    """`1.2 s → 1.3 s  ×1.08 [×1.00, ×1.17]  limit ≤ ×1.10`, leaving out what is not known."""
    parts = []
    if rule.baseline != MISSING:
        parts.append(f"{rule.baseline} → {rule.candidate}")
    elif rule.candidate != MISSING:
        parts.append(rule.candidate)
    if rule.effect not in (MISSING, rule.candidate):
        parts.append(rule.effect)
    if rule.interval:
        parts.append(rule.interval)
    if parts and rule.limit != MISSING:
        parts.append(f"limit {rule.limit}")
    return "  ".join(parts).replace("  [", " [")


def _quiet(rules: Sequence[RuleView]) -> Iterable[RenderableType]:
    if rules:
        names = ", ".join(rule.rule for rule in rules)
        yield Text.assemble(("✔ pass", "green"), f"    {len(rules)} of validity: {names}")


def _who_pays(changes: Sequence[ChangeView], width: int) -> Iterable[RenderableType]:
    """What is clear, losses first; of the rest only how many."""
    clear = sorted((change for change in changes if change.clear), key=lambda change: change.change != "lost")
    lines = _changes_table(clear) if width >= ROOMY else _changes_list(clear)
    yield Padding(lines, (0, 0, 0, 2))
    unclear = len(changes) - len(clear)
    if unclear:
        yield Padding(Text.assemble(_change("unclear", 11), f"{unclear} of {len(changes)}"), (0, 0, 0, 2))


def _change(change: str, width: int = 0) -> Text:
    text = Text(f"{CHANGES[change]} {change}", style=CHANGE_TONES[change])
    text.pad_right(max(0, width - text.cell_len))
    return text


def _changes_table(changes: Iterable[ChangeView]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=9)
    for _ in ("class", "latency", "seconds", "effect"):
        table.add_column(overflow="fold")
    for row in changes:
        table.add_row(_change(row.change), *map(Text, (row.class_, row.latency, row.seconds, row.effect)))
    return table


def _changes_list(changes: Iterable[ChangeView]) -> RenderableType:
    lines: list[RenderableType] = []
    for row in changes:
        lines.append(Text.assemble(_change(row.change, 11), (row.class_, "bold"), f"  {row.latency}"))
        lines.append(Padding(Text(f"{row.seconds}  {row.effect}"), (0, 0, 0, 11)))
    return Group(*lines)


def _sources(sources: SourcesView, width: int) -> RenderableType:
    """One line of figures under a bar whose fills differ in shade as well as in colour."""
    bar = Text()
    edge = 0.0
    for part in sources.parts:
        if part.share:
            filled = round((edge + part.share) * BAR) - round(edge * BAR)
            bar.append(FILLS.get(part.source, "?") * filled, style=SOURCE_TONES.get(part.source, ""))
            edge += part.share
    figures = [f"{FILLS.get(p.source, '?')} {p.source} {p.tokens} ({p.shown})" for p in sources.parts]
    legend = Table.grid(padding=(0, 2))
    for _ in figures:
        legend.add_column(overflow="fold")
    if width >= WIDE:
        legend.add_row(*map(Text, figures))
    else:
        for left in range(0, len(figures), 2):
            legend.add_row(*map(Text, figures[left : left + 2]))
    head = Text.assemble((sources.arm, "bold"), f"  {sources.total} tokens  ", bar)
    return Padding(Group(head, Padding(legend, (0, 0, 0, 2))), (0, 0, 0, 2))


def plain_table(table: TableView, width: int) -> RenderableType:
    """As a table where there is room, else a line for each figure."""
    if width >= WIDE:
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for place, name in enumerate(table.header):
            grid.add_column(name, justify="right" if place >= table.right else "left", overflow="fold")
        for row in table.rows:
            grid.add_row(*map(Text, row))
        return Padding(grid, (0, 0, 0, 2))
    lines: list[RenderableType] = []
    for row in table.rows:
        lines.append(Text(" ".join(row[: table.right]), style="bold"))
        figures = zip(table.header[table.right :], row[table.right :], strict=True)
        lines.append(Padding(Text("  ".join(f"{_inside(name)} {cell}" for name, cell in figures)), (0, 0, 0, 2)))
    return Padding(Group(*lines), (0, 0, 0, 2))


def _achieved(candidate: CandidateView) -> TableView:
    header = ("class", "arm", "requests", "failed", "rate", "prompt p50", "output p50", "cached")
    rows = tuple(
        (r.class_, r.arm, r.requests, r.failed, r.rate, r.prompt_tokens, r.output_tokens, r.cached)
        for r in candidate.achieved
    )
    return TableView("", "", header, rows, right=2)


def _inside(heading: str) -> str:
    """A column's heading in the middle of a line; names such as TTFT keep their letters."""
    return heading if heading[1:2].isupper() else heading[:1].lower() + heading[1:]


def _ttft(candidate: CandidateView) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("class", overflow="fold")
    table.add_column("arm", overflow="fold")
    for name in ("n", "p50", "p90", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in candidate.latency_of("ttft"):
        table.add_row(*map(Text, (row.class_, row.arm, row.n, row.p50, row.p90, row.p99)))
    return Padding(table, (0, 0, 0, 2))
