"""Mutation score of `judge/`: how many small faults put into the code do its tests notice?

`python -m tests.proofs.mutation [MODULE...]` runs mutmut on a copy and prints the score per module; it exits with 1
below 80 %. Takes an hour or more for all of `judge/` on two cores.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FLOOR = 0.80

CONFIG = """
[tool.mutmut]
paths_to_mutate = [{paths}]
tests_dir = ["tests/judge"]
also_copy = ["kvbench", "tests", "pyproject.toml", "README.md", "workloads", "profiles"]
do_not_mutate = ["kvbench/judge/boundary_table.py", "kvbench/judge/wording.py"]
"""


def copy_of_repository(target: Path, modules: list[str]) -> None:
    """The parts that the tests of `judge/` need, with mutmut's configuration."""
    for name in ("kvbench", "tests", "workloads", "profiles"):
        shutil.copytree(REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, target / name)
    paths = ", ".join(f'"kvbench/judge/{m}.py"' for m in modules) if modules else '"kvbench/judge/"'
    with (target / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(CONFIG.format(paths=paths))


def scores(target: Path) -> dict[str, Counter[str]]:
    """Counts of results per module, from mutmut's own files."""
    found: dict[str, Counter[str]] = {}
    for meta in sorted((target / "mutants" / "kvbench" / "judge").glob("*.meta")):
        exits = json.loads(meta.read_text(encoding="utf-8")).get("exit_code_by_key", {})
        # pytest: 1 tests failed, so the fault was noticed; 0 survived; 5 and 33 no test reached it; 36, 24 too slow
        words = {0: "survived", 1: "killed", 3: "killed", 5: "no test", 33: "no test", 24: "killed", 36: "killed"}
        found[re.sub(r"\.py\.meta$", "", meta.name)] = Counter(words.get(code, "other") for code in exits.values())
    return found


def main() -> int:
    """Run and print; 1 when the score is below the floor."""
    with tempfile.TemporaryDirectory(prefix="kvbench-mutation-") as folder:
        target = Path(folder)
        copy_of_repository(target, sys.argv[1:])
        subprocess.run([sys.executable, "-m", "mutmut", "run"], cwd=target, check=False)
        found = scores(target)
    total: Counter[str] = Counter()
    for module, counts in found.items():
        total += counts
        judged = sum(counts.values())
        print(f"{module:20} {counts['killed']:5} of {judged:5} noticed {counts['killed'] / max(1, judged):7.1%}")
    judged = sum(total.values())
    score = total["killed"] / judged if judged else 0.0
    print(f"{'judge/':20} {total['killed']:5} of {judged:5} noticed {score:7.1%} (floor {FLOOR:.0%})")
    return 0 if score >= FLOOR else 1


if __name__ == "__main__":
    sys.exit(main())
