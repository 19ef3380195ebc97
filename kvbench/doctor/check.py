"""One check of a host and how a set of them ends. Sizes in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

__all__ = ["Check", "Status", "document", "exit_code", "failed", "passed", "skipped", "warned"]

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Check:
    """One row; the fields are those of `kvbench doctor --json`."""

    id: str
    status: Status
    value: float | None
    unit: str
    limit: float | None
    """What `value` is held against; None where there is no such number."""
    text: str
    do: str
    """Empty when there is nothing to do."""


def passed(id_: str, text: str, value: float | None = None, unit: str = "", limit: float | None = None) -> Check:
    """All is well."""
    return Check(id_, "ok", value, unit, limit, text, "")


def warned(
    id_: str, text: str, do: str, value: float | None = None, unit: str = "", limit: float | None = None
) -> Check:
    """It will run, but figures or operation may suffer."""
    return Check(id_, "warn", value, unit, limit, text, do)


def failed(
    id_: str, text: str, do: str, value: float | None = None, unit: str = "", limit: float | None = None
) -> Check:
    """The profile will not run here, or not as it is meant to."""
    return Check(id_, "fail", value, unit, limit, text, do)


def skipped(id_: str, text: str, do: str = "") -> Check:
    """Could not be looked at, or does not concern this profile; the text says which."""
    return Check(id_, "skipped", None, "", None, text, do)


def exit_code(checks: Iterable[Check]) -> int:
    """0 when nothing failed, else 4."""
    return 4 if any(check.status == "fail" for check in checks) else 0


def document(checks: Iterable[Check]) -> dict[str, object]:
    """`kvbench doctor --json`."""
    rows = list(checks)
    return {"checks": [asdict(check) for check in rows], "exit_code": exit_code(rows)}
