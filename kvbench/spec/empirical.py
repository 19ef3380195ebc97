"""Reads the files of empirical length distributions: one whole number of tokens per line."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from kvbench.errors import InputError, Where
from kvbench.spec.model import SpecModel
from kvbench.spec.workload import Empirical, Workload

__all__ = ["read_lengths", "with_lengths"]

_Spec = TypeVar("_Spec", bound=SpecModel)

MAX_LENGTHS = 100_000
"""More say no more about a distribution, and all of them are kept in the manifest of a run."""


def read_lengths(file: Path) -> tuple[int, ...]:
    """The numbers of `file`; empty lines and `#` comments are skipped. InputError names the line at fault."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"lengths cannot be read: {reason}", where=Where(file)) from None
    lengths: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        written = line.partition("#")[0].strip()
        if not written:
            continue
        if not (written.isascii() and written.isdigit() and 0 < len(written) <= 9 and int(written) > 0):
            raise InputError(f"expected a whole number of tokens, got {written[:40]!r}", where=Where(file, number))
        lengths.append(int(written))
    if not lengths:
        raise InputError("no lengths in this file", where=Where(file), do="write one whole number per line")
    if len(lengths) > MAX_LENGTHS:
        raise InputError(
            f"{len(lengths)} lengths, more than {MAX_LENGTHS}", where=Where(file), do="keep a random sample of them"
        )
    return tuple(lengths)


def with_lengths(workload: Workload, folder: Path) -> Workload:
    """The workload with every empirical distribution read; paths are relative to `folder`."""
    classes = {name: _filled(class_, folder) for name, class_ in workload.classes.items()}
    return workload.model_copy(update={"classes": classes}) if classes != workload.classes else workload


def _filled(spec: _Spec, folder: Path) -> _Spec:
    """`spec` with the empirical distributions in it, and in what it holds, read."""
    changes: dict[str, object] = {}
    for key in type(spec).model_fields:
        value = getattr(spec, key)
        if isinstance(value, Empirical):
            changes[key] = _read(value, folder)
        elif isinstance(value, SpecModel) and (filled := _filled(value, folder)) is not value:
            changes[key] = filled
    return spec.model_copy(update=changes) if changes else spec


def _read(length: Empirical, folder: Path) -> Empirical:
    file = folder / length.empirical.expanduser()
    return Empirical(empirical=file, values=read_lengths(file))
