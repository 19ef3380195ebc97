"""Whether installed distributions are as pip wrote them, by the sizes in their RECORD files: no file is read."""

from __future__ import annotations

import csv
import os
from pathlib import Path

__all__ = ["damaged"]


def damaged(site: Path) -> dict[Path, set[str]]:
    """`.dist-info` directory → the files it records that are gone or have another size; sound ones are left out.

    Two distributions that bring the same file cannot both be sound.
    """
    found = {information: _wrong(information, site) for information in site.glob("*.dist-info")}
    return {information: wrong for information, wrong in found.items() if wrong}


def _wrong(information: Path, site: Path) -> set[str]:
    try:
        with (information / "RECORD").open(newline="", encoding="utf-8") as rows:
            # Bytecode that pip compiled, and the RECORD itself, have no size there.
            recorded = [(name, int(size)) for name, _, size in filter(None, csv.reader(rows)) if size]
    except (OSError, ValueError, csv.Error):
        return {f"{information.name}/RECORD"}
    return {name for name, size in recorded if _size(os.path.join(site, name)) != size}  # noqa: PTH118 (30,000 files)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 (as above)
    except OSError:
        return None
