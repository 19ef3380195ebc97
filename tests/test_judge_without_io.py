"""`judge/` has no I/O: nothing in it could, and while it judges nothing is opened, listed, sent or printed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvbench.judge

JUDGE = Path(kvbench.judge.__file__).parent
ROOT = Path(__file__).parents[1]
PURE = {
    *("__future__", "bisect", "collections", "dataclasses", "enum", "functools", "itertools", "json", "math"),
    *("operator", "typing", "numpy", "pandas", "pydantic", "scipy"),
    "pathlib",  # paths that users wrote are values; what could be done with one is looked for below
}
OF_KVBENCH = ("kvbench.judge", "kvbench.spec", "kvbench.plan.cost_mix", "kvbench.plan.costs")
"""Besides itself: what users write, and arithmetic."""
CALLS = {
    *("open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"),
    *("read_text", "read_bytes", "write_text", "write_bytes", "exists", "is_file", "is_dir", "iterdir", "glob"),
    *("stat", "resolve", "mkdir", "unlink", "touch", "expanduser", "cwd", "home"),
    *("read_parquet", "to_parquet", "read_csv", "to_csv", "read_json", "to_json", "to_pickle", "read_pickle"),
    *("fromfile", "tofile", "loadtxt", "savetxt", "genfromtxt", "memmap", "savez", "savez_compressed"),
}
AUDITED = """
import importlib, json, pkgutil, sys
import kvbench.judge
for module in pkgutil.iter_modules(kvbench.judge.__path__):
    importlib.import_module(f"kvbench.judge.{module.name}")
from kvbench.judge.judge import combine, decided, judge
from tests.judge.build import comparison, good_pairs
from tests.judge.test_hit_quality import compared

runs = [comparison(good_pairs()), compared(holdout=0.1)]
heard = []
KINDS = ("open", "os", "socket", "subprocess", "shutil", "tempfile", "urllib", "http", "glob", "pathlib", "mmap")

def hear(event, arguments):
    if event.partition(".")[0] in KINDS:
        heard.append((event, str(arguments[0]) if arguments else ""))

sys.addaudithook(hear)
for run in runs:
    decided(combine([judge(run)]), run.rules)
told = list(heard)
print(json.dumps(told))
"""


def sources() -> list[Path]:
    return sorted(JUDGE.rglob("*.py"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield node.module or ""


def called(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))


@pytest.mark.parametrize("source", sources(), ids=[source.stem for source in sources()])
def test_a_module_imports_and_calls_nothing_that_reads_or_writes(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for name in imported(tree):
        of_kvbench = any(name == one or name.startswith(f"{one}.") for one in OF_KVBENCH)
        assert of_kvbench or name.partition(".")[0] in PURE, f"{source.name} imports {name}"
    assert set(called(tree)).isdisjoint(CALLS)


def test_nothing_is_opened_listed_sent_or_printed_while_it_judges() -> None:
    """In a process of its own, because an ear for such events cannot be taken off again."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AUDITED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (told,) = done.stdout.splitlines()
    own_code = [
        (event, what)
        for event, what in json.loads(told)
        if not (event in ("open", "os.listdir") and what.startswith((sys.prefix, sys.base_prefix)))
    ]
    assert own_code == []
    assert done.stderr == ""
