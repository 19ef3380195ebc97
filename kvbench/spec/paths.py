"""Paths as users write them: `~` and `~name` have to be somebody's home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

__all__ = ["UserPath", "with_known_home"]


def with_known_home(value: str) -> str:
    """`value` as it is. ValueError when it begins with a home directory that does not exist."""
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home directory for {value.partition('/')[0]!r}") from None
    return value


def _path_with_known_home(value: Path) -> Path:
    return Path(with_known_home(str(value)))


UserPath = Annotated[Path, AfterValidator(_path_with_known_home)]
