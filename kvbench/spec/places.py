"""Puts errors where users look for them: whoever finds a fault names its key, whoever has the file adds the place.

    with placed(profile):
        raise InputError("port 8000 is in use", key=("engine", "args", "port"))

ends in `FILE:LINE: engine.args.port: port 8000 is in use`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvbench.errors import InputError
from kvbench.spec.model import SpecFile

__all__ = ["about", "placed"]


@contextmanager
def placed(spec: SpecFile) -> Iterator[None]:
    """Within the block an InputError that names a key of `spec` and no place gets the key's place in its file."""
    try:
        yield
    except InputError as error:
        if error.where is None and error.key is not None:
            error.where = spec._origin.where(error.key)
        raise


@contextmanager
def about(*path: str | int) -> Iterator[None]:
    """Within the block an InputError that names neither place nor key is about the key at `path`."""
    try:
        yield
    except InputError as error:
        if error.where is None and error.key is None:
            error.key = path
        raise
