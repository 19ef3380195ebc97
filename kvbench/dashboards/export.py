"""Dashboards and rules for the user's Grafana and Prometheus; rules are made for the budgets asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvbench.dashboards.budgets import Budgets
from kvbench.dashboards.generate import BOARDS, rules
from kvbench.errors import InputError
from kvbench.record.atomic import write_text
from kvbench.spec.shipped import shipped_folder

__all__ = ["export", "write"]


def export(out: Path, budgets: Budgets) -> list[Path]:
    """Write everything to `out`; the paths. InputError when `out` cannot be written."""
    shipped = shipped_folder("dashboards")
    names = [f"grafana/{name}.json" for name in BOARDS]
    texts = {name: (shipped / name).read_text(encoding="utf-8") for name in (*names, "README.md")}
    return write(out, {**texts, **rules(budgets)})


def write(out: Path, files: Mapping[str, str]) -> list[Path]:
    """Each text to its path under `out`, whole or not at all."""
    paths = []
    for name, text in files.items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {path.parent}: {error.strerror or error}") from error
        write_text(path, text)
        paths.append(path)
    return paths
