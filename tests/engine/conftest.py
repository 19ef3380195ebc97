"""What tests of engines share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvbench.engine.launched import LaunchedEngine


@pytest.fixture
def engines() -> Iterator[list[LaunchedEngine]]:
    """Engines that the test started; they are stopped after it, whatever became of it."""
    made: list[LaunchedEngine] = []
    yield made
    for engine in made:
        engine.stop()
