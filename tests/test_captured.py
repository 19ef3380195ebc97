"""Nothing that was captured from real servers is forgotten: each payload is named where its values are asserted."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

READ_BY = {
    "*.prom": "observe/test_canonical.py",
    "*.sse": "load/test_stream.py",
    "chat-*.json": "load/test_usage.py",
    "completion-*.json": "load/test_usage.py",
    "err-*.json": "load/test_refused.py",
    "ep_*.txt": "engine/test_captured_server.py",
    "kv-events-sample.jsonl": "observe/test_kv_events.py",
}
"""Form of the file's name → the tests that read it."""


def names_in(module: str) -> set[str]:
    """Every text that stands in a module as a literal of its own."""
    tree = ast.parse((REPOSITORY / "tests" / module).read_text(encoding="utf-8"))
    literals = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {literal for literal in literals if isinstance(literal, str)}


@pytest.mark.shared
def test_every_captured_file_is_named_by_the_tests_that_read_it(shared_dir: Path) -> None:
    files = sorted(file for file in (shared_dir / "facts" / "vllm-0.32.0").iterdir() if file.is_file())
    assert len(files) > 40
    known = {module: names_in(module) for module in set(READ_BY.values())}
    for file in files:
        modules = [module for form, module in READ_BY.items() if fnmatchcase(file.name, form)]
        assert len(modules) == 1, f"{file.name}: no test, or more than one, is known to read it"
        assert known[modules[0]] & {file.name, file.stem}, f"{file.name} is not named in {modules[0]}"
