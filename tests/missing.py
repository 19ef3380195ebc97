"""What a test needs and cannot have: it skips, and under `CI=true`, where everything is to be there, it fails."""

from __future__ import annotations

import importlib
import os
from typing import NoReturn

import pytest

__all__ = ["missing", "need"]


def missing(reason: str) -> NoReturn:
    """In a test, in a fixture or while a module of tests is read."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def need(package: str) -> None:
    """Of the tests' own requirements: `requirements/dev.txt`."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        missing(f"no package {package} ({error}); pip install -r requirements/dev.txt")
