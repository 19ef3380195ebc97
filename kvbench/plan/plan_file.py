"""Reads what `kvbench plan` wrote, as far as a measurement can be held against it. Shares, seconds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvbench.errors import InputError, Where
from kvbench.plan.made_for import MadeFor

__all__ = ["PLAN_AGAIN", "Foretold", "Plan", "PlanFile", "parse_plan", "read_plan"]

PLAN_AGAIN = "plan again: kvbench plan --profile PROFILE --workload WORKLOAD --out PLAN.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class _Ttft(_Part):
    p50: float | None
    """None: of too few requests."""


class Foretold(_Part):
    """Of one arm."""

    shares: dict[str, float | None]
    ttft_s: dict[str, _Ttft]
    """By the source of most of the prompt; `all` for every request."""
    rounds: int = 1
    """Older plans do not say: they are of the first round."""


class _Costs(_Part):
    source: str


class Plan(_Part):
    """The document, but for sizes, sweeps and advice."""

    schema_: Literal[1] = Field(alias="schema")
    profile: str
    workload: str
    costs: _Costs
    made_for: MadeFor
    prediction: Foretold
    device_only: Foretold | None = None


@dataclass(frozen=True)
class PlanFile:
    """A plan with the whole document it was read from."""

    path: Path
    plan: Plan
    document: dict[str, Any]


def read_plan(path: Path) -> PlanFile:
    """From the file. InputError when it is none, or does not say whom it was made for."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=Where(path)) from None
    except (ValueError, RecursionError):
        raise _no_plan(path) from None
    if isinstance(document, dict) and "made_for" not in document and "prediction" in document:
        what = "this plan does not say for which profile and workload it was made"
        raise InputError(what, where=Where(path), do=PLAN_AGAIN)
    return parse_plan(path, document)


def parse_plan(path: Path, document: dict[str, Any]) -> PlanFile:
    """A document that `path` stands for. InputError when it is no plan."""
    try:
        return PlanFile(path, Plan.model_validate(document), document)
    except ValidationError:
        raise _no_plan(path) from None


def _no_plan(path: Path) -> InputError:
    return InputError("expected the JSON that `kvbench plan` writes with --out", where=Where(path), do=PLAN_AGAIN)
