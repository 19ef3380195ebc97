"""How a rollback and its rehearsal are told: on a terminal, as JUnit XML, as Markdown for a job summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvbench.canary.rehearsal import Rehearsed
from kvbench.canary.verdict import LatencySummary, ProofPart, Rollback, SwitchCost
from kvbench.report.markdown import escaped
from kvbench.report.plain import plain
from kvbench.report.wording import MISSING, show_share, show_tokens
from kvbench.spec.quantity import show_seconds

__all__ = [
    "junit_text",
    "render_rehearsal_junit",
    "render_rehearsal_markdown",
    "rollback_cases",
    "rollback_paragraphs",
    "show_rehearsal",
]

SYMBOLS = {"waiting": "…", "proven": "✔", "failed": "✘", "unknown": "?"}
OUTCOMES = {
    "pass": ("✔", "green", "the rollback works"),
    "fail": ("✘", "red", "the rollback does not work"),
    "unknown": ("?", "yellow", "whether the rollback works is not proven"),
    "hook-failed": ("✘", "red", "the hook failed"),
}


def rollback_paragraphs(rollback: Rollback) -> Iterator[tuple[str, Sequence[str]]]:
    """A label and its sentences, for a person."""
    yield "tier off", [_part(rollback.tier_off)]
    yield "TTFT back", [_part(rollback.baseline_back)]
    unproven = [f"{row.replica}: {'; '.join(row.unproven)}" for row in rollback.replicas if row.unproven]
    if unproven:
        yield "not seen", unproven
    if rollback.cost is not None:
        yield "cost", list(cost_sentences(rollback.cost))


def _part(part: ProofPart) -> str:
    after = f" {show_seconds(part.after_s)} after the hook" if part.after_s is not None else ""
    return f"{SYMBOLS[part.status]} {part.status}{after}: {part.text}"


def cost_sentences(cost: SwitchCost) -> Iterator[str]:
    """What switching the tier off took; what is not known is left out."""
    if cost.without_service_s is not None:
        least, most = cost.without_service_s
        text = (
            "served throughout" if most == 0 else f"{show_seconds(least)} to {show_seconds(most)} without service"
        )
        if most and cost.requests_meanwhile is not None:
            text += f", in which about {cost.requests_meanwhile:,.0f} requests come at the rate from before"
        if cost.requests_under_way is not None:
            text += f"; {cost.requests_under_way:,.0f} were under way"
        yield text
    if cost.recomputed_tokens is not None and cost.cached_share_before is not None:
        text = f"{show_tokens(cost.recomputed_tokens)} prompt tokens computed since then that were hits before"
        if cost.recomputed_requests is not None and cost.requests_since is not None:
            text += f", as much as {cost.recomputed_requests:,.1f} of {cost.requests_since:,.0f} whole prompts"
        yield text
    shares = (cost.cached_share_before, cost.cached_share_until_back, cost.cached_share_after)
    if any(share is not None for share in shares):
        before, until, after = (MISSING if share is None else show_share(share) for share in shares)
        yield f"hits of the prompt tokens: {before} before, {until} until TTFT was back, {after} since"
    summaries = (
        ("before", cost.ttft_before),
        ("until it was back", cost.ttft_until_back),
        ("since", cost.ttft_after),
        ("of the baseline", cost.ttft_baseline),
    )
    told = [f"{label} {_summary(each)}" for label, each in summaries if each is not None]
    if told:
        yield f"TTFT {'; '.join(told)}"


def _summary(summary: LatencySummary) -> str:
    mean = MISSING if summary.mean_s is None else show_seconds(summary.mean_s)
    ends = [
        f"{name} {_range(bounds)}" for name, bounds in (("p50", summary.p50_s), ("p90", summary.p90_s)) if bounds
    ]
    return f"{mean} on average ({', '.join([*ends, f'{summary.requests:,.0f} requests'])})"


def _range(bounds: tuple[float, float]) -> str:
    low, high = (show_seconds(edge) if math.isfinite(edge) else "more" for edge in bounds)
    return f"{low} to {high}"


def show_rehearsal(console: Console, found: Rehearsed) -> None:
    """Everything that a rehearsal found."""
    symbol, tone, sentence = OUTCOMES[found.rehearsal]
    console.print(Text.assemble((f"{symbol} {found.rehearsal}", tone), f": {sentence}"), soft_wrap=True)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=9, style="dim")
    grid.add_column(overflow="fold")
    for label, sentences in _paragraphs(found):
        for number, each in enumerate(sentences):
            grid.add_row(label if number == 0 else "", Text(plain(each)))
    console.print(Padding(grid, (0, 0, 0, 2)))


def _paragraphs(found: Rehearsed) -> Iterator[tuple[str, Sequence[str]]]:
    if found.rollback is None:
        yield "why", found.reasons
    if found.hook is not None:
        yield "hook", [f"{found.hook.state}: {found.hook.text}"]
    if found.rollback is not None:
        yield from rollback_paragraphs(found.rollback)
        tier = found.action.disable_tier if found.action is not None else "tier"
        yield "now", [f"the {tier} tier stays off; roll {found.candidate} out again to have it back"]


def rollback_cases(rollback: Rollback, classname: str) -> Iterator[ET.Element]:
    """Two cases for a JUnit suite: red for what is proven contrary, skipped where it is not proven."""
    for name, part in (("tier-off", rollback.tier_off), ("baseline-back", rollback.baseline_back)):
        case = ET.Element("testcase", {"classname": f"{classname}.rollback", "name": name})
        if part.status == "failed":
            ET.SubElement(case, "failure", {"type": "rollback", "message": plain(part.text)})
        elif part.status != "proven":
            ET.SubElement(case, "skipped", {"message": plain(part.text)})
        yield case


def render_rehearsal_junit(found: Rehearsed) -> str:
    """One suite: a case `rehearsal` that is red unless it passed, and one for each thing to be proven."""
    root = ET.Element("testsuites", {"name": f"kvbench gate {found.canary} --rehearse"})
    suite = ET.SubElement(root, "testsuite", {"name": plain(found.candidate)})
    classname = f"kvbench.{found.canary}"
    case = ET.SubElement(suite, "testcase", {"classname": classname, "name": "rehearsal"})
    if found.rehearsal != "pass":
        failure = ET.SubElement(case, "failure", {"type": found.rehearsal, "message": OUTCOMES[found.rehearsal][2]})
        failure.text = "\n".join(map(plain, found.reasons))
    if found.rollback is not None:
        suite.extend(rollback_cases(found.rollback, classname))
    return junit_text(root, suite)


def junit_text(root: ET.Element, suite: ET.Element) -> str:
    """A document of one suite, with its cases counted."""
    counted = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
    for element in (suite, root):
        for count, path in counted.items():
            element.set(count, str(len(suite.findall(path))))
        element.set("errors", "0")
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def render_rehearsal_markdown(found: Rehearsed) -> str:
    """For a job summary."""
    symbol, _, sentence = OUTCOMES[found.rehearsal]
    what = f"Rehearsal of the rollback of {escaped(plain(found.candidate))}."
    lines = [f"## {symbol} {found.rehearsal}: {sentence}", "", what, ""]
    for label, sentences in _paragraphs(found):
        lines += [f"- **{label}**: {escaped(plain(each))}" for each in sentences]
    return "\n".join(lines) + "\n"
