"""What `selftest` tells: a line as each truth is checked, a table for people, a document for machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from kvbench.report.plain import plain
from kvbench.report.streams import say
from kvbench.selftest.check import Checked, exit_code

__all__ = ["follow", "selftest_document", "show_selftest"]

EMULATED = "emulated engine, virtual time: this says whether the judge can still fail, nothing about a real engine"


def follow(results: Iterable[Checked], total: int, console: Console) -> list[Checked]:
    """Take the results one by one, with a line for each."""
    seen: list[Checked] = []
    for result in results:
        seen.append(result)
        say(console, f"{len(seen):>2}/{total}  {_status(result)}  {result.truth.id}: {result.got.value}")
    return seen


def selftest_document(results: Sequence[Checked]) -> dict[str, object]:
    """All results; `rule` is the expected rule or finding that led to the verdict, null when none did."""
    truths = [
        {
            "id": result.truth.id,
            "injected": result.truth.injected,
            "expected": result.expected,
            "got": result.got.value,
            "rule": result.rule,
            "status": _status(result),
            "text": result.text,
        }
        for result in results
    ]
    return {"truths": truths, "emulated": True, "exit_code": exit_code(results)}


def show_selftest(console: Console, results: Sequence[Checked]) -> None:
    """A table, what went wrong in full, and how many are right."""
    console.print(EMULATED, soft_wrap=True)
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("")
    table.add_column("truth", no_wrap=True)
    table.add_column("injected", overflow="fold")
    table.add_column("verdict", min_width=len("INCONCLUSIVE"), overflow="fold")
    table.add_column("by", no_wrap=True)
    for result in results:
        verdict = result.got.value if result.right else f"{result.got.value}, must be {result.expected}"
        table.add_row(
            *(_status(result), result.truth.id, result.truth.injected, verdict, result.rule or "–"),
            style=None if result.right else "bold red",
        )
    console.print(table)
    wrong = [result for result in results if not result.right]
    for result in wrong:
        console.print(plain(f"fail  {result.truth.id}: {result.text}"), markup=False, soft_wrap=True)
    console.print(f"{len(results) - len(wrong)} of {len(results)} truths end as they must")


def _status(result: Checked) -> str:
    return "pass" if result.right else "fail"
