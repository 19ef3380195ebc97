"""Installs distributions without a network and without pip: one file each, and what pip writes about it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["as_pip_does", "the_file"]


def as_pip_does(site: Path, distribution: str) -> None:
    """One file of a distribution and its RECORD, unless its `.dist-info` is there already."""
    record = site / f"{distribution}.dist-info" / "RECORD"
    if not record.parent.exists():
        record.parent.mkdir(parents=True)
        the_file(site, distribution).write_text("content")
        record.write_text(f"{distribution}.py,sha256=x,7\n__pycache__/{distribution}.pyc,,\n")


def the_file(site: Path, distribution: str) -> Path:
    return site / f"{distribution}.py"
