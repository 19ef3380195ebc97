"""Mutation score of `judge/`: how many small faults put into the code do its tests notice?

`python -m tests.proofs.mutation [MODULE...]` puts faults (mutmut's) into a seeded sample of places in a copy of the
package and prints the share noticed per module; `--all` takes every place. Exits with 1 below 80 % over all modules
or 70 % in one. What is known is kept in `mutants/`, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tests.proofs.faults import NOTICED, SURVIVED, TIME_OUT, UNREACHED, read_results

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "kvbench/judge"
TESTS = "tests/judge"

FLOOR, MODULE_FLOOR = 0.80, 0.70
SEED = 1
SAMPLE = 40
"""Places of a module unless told; all where there are fewer."""
TOO_SLOW = ("test_properties.py", "test_false_alarms.py")
"""Simulations and whole comparisons, seconds a test: left out, so that the score is a lower bound."""
PYTEST = [
    "-q", "--rootdir=.", "--hypothesis-profile=ci", "-p", "no:cacheprovider",
    "--assert=plain", "--tb=native",  # nobody reads why a test failed
    TESTS, *(f"--ignore={TESTS}/{name}" for name in TOO_SLOW),
]  # fmt: skip
SHARED = ["tests.judge.build.good_pairs", "tests.judge.build.same_pairs"]

CONFIG = f"""
[tool.mutmut]
source_paths = ["kvbench"]
only_mutate = ["{PACKAGE}/*.py"]
also_copy = ["tests", "README.md", "workloads", "profiles"]
"""
GENERATE = """
import sys
from pathlib import Path
from mutmut.__main__ import copy_also_copy_files, copy_src_dir, create_mutants
Path("mutants").mkdir(exist_ok=True)
copy_src_dir(); copy_also_copy_files(); create_mutants(int(sys.argv[1]))
"""
"""The first steps of `mutmut run`, which has no command of its own for them."""


@dataclass(frozen=True)
class Module:
    """One module with its places for faults."""

    name: str
    places: list[str]

    def sample(self, wanted: int) -> list[str]:
        """Places to put faults into, the same ones in the same random order every time."""
        order = random.Random(f"{SEED}-{self.name}").sample(self.places, len(self.places))
        return order[:wanted]


def copy_sources(target: Path) -> None:
    """What the tests of `judge/` need; only what changed, so that mutmut knows what it need not do again."""
    wanted = {"pyproject.toml": (REPOSITORY / "pyproject.toml").read_bytes() + CONFIG.encode()}
    for name in ("README.md", "tests/__init__.py", "tests/conftest.py", "tests/missing.py"):
        wanted[name] = (REPOSITORY / name).read_bytes()
    for folder in ("kvbench", TESTS, "tests/proofs", "workloads", "profiles"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                wanted[str(path.relative_to(REPOSITORY))] = path.read_bytes()
    for root in (target, target / "mutants"):
        for folder in ("kvbench", "tests"):
            for path in (root / folder).rglob("*.py"):
                if str(path.relative_to(root)) not in wanted:
                    path.unlink()
    for name, content in wanted.items():
        path = target / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def digest(target: Path) -> str:
    """Of the code under test and its tests."""
    found = hashlib.sha256()
    for folder in (PACKAGE, TESTS):
        for path in sorted((target / folder).glob("*.py")):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def modules(target: Path) -> Iterator[Module]:
    """Every module that has places for a fault."""
    for meta in sorted((target / "mutants" / PACKAGE).glob("*.py.meta")):
        if places := json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]:
            yield Module(meta.name.removesuffix(".py.meta"), sorted(places))


def prepare(target: Path, workers: int) -> list[Module]:
    """Make the copy and put every fault into it, none of them switched on."""
    copy_sources(target)
    command = [sys.executable, "-W", "ignore", "-c", GENERATE, str(workers)]
    subprocess.run(command, cwd=target, check=True, stdout=subprocess.DEVNULL)
    return list(modules(target))


def try_faults(target: Path, places: list[str], workers: int) -> None:
    """Switch the faults on, one after the other; what is found is added to `results-<digest>`."""
    job = {
        "places": places,
        "workers": workers,
        "reach": str(reach_file(target)),
        "results": str(results_file(target)),
        "pytest": PYTEST,
        "before": SHARED,
    }
    (target / "job.json").write_text(json.dumps(job), encoding="utf-8")
    program = [sys.executable, str(Path(__file__).with_name("faults.py")), str(target / "job.json")]
    log = target / "tests.log"
    with log.open("wb") as file:
        done = subprocess.run(program, cwd=target / "mutants", stdout=file, stderr=file, check=False)
    if done.returncode:
        print(log.read_text(encoding="utf-8", errors="replace")[-2000:])


def reach_file(target: Path) -> Path:
    return target / f"reach-{digest(target)}.json"


def results_file(target: Path) -> Path:
    return target / f"results-{digest(target)}"


def report(found: list[Module], known: dict[str, str], wanted: int) -> bool:
    """Print the scores; whether they reach the floors. A sample counts for all the places of its module."""
    low, left = [], []
    score = variance = 0.0
    total = sum(len(module.places) for module in found)
    for module in found:
        places = module.sample(wanted)
        counts = Counter(known[place] for place in places if place in known)
        noticed, judged = counts[NOTICED] + counts[TIME_OUT], counts.total()
        share, weight = noticed / max(judged, 1), len(module.places) / total
        score += weight * share
        variance += weight**2 * share * (1 - share) / max(judged, 1) * (1 - judged / len(module.places))
        rest = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()) if word != NOTICED)
        print(
            f"{module.name:16} {noticed:4} of {judged:4} noticed {share:7.1%}   "
            f"{len(places)} of {len(module.places)} places{f'; {rest}' if rest else ''}"
        )
        if share < MODULE_FLOOR or judged < len(places):
            low.append(module.name)
        left += [f"{known[place]}: {place}" for place in places if known.get(place) in (SURVIVED, UNREACHED)]
    print(*left, "", sep="\n")
    print(
        f"judge/: {score:.1%} noticed (standard error {math.sqrt(variance):.1%}), modules weighted by their places,"
        f" seed {SEED}; at least {FLOOR:.0%} asked for, {MODULE_FLOOR:.0%} in a module"
    )
    if low:
        print(f"below, or not finished: {', '.join(low)}")
    return score >= FLOOR and not low


def main() -> int:
    """Run and print; 1 below a floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="of judge/, without .py; all unless given")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"places of each module; {SAMPLE} unless given")
    parser.add_argument("--all", action="store_true", help="every place instead of a sample")
    parser.add_argument("--at", type=Path, default=REPOSITORY / "mutants", help="where the copy is worked on")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    target: Path = asked.at.absolute()
    target.mkdir(parents=True, exist_ok=True)
    found = [
        module for module in prepare(target, asked.workers) if not asked.modules or module.name in asked.modules
    ]
    if not found:
        parser.error(f"judge/ has no module {' or '.join(asked.modules)} with a place for a fault")
    known = {place: result for place, result, _ in read_results(results_file(target))}
    wanted = sys.maxsize if asked.all else asked.sample
    turns = zip_longest(*(module.sample(wanted) for module in found))  # so that a run cut short is a fair one
    places = [place for turn in turns for place in turn if place is not None and place not in known]
    if places:
        print(f"{len(places)} faults to try in {target}", flush=True)
        try_faults(target, places, asked.workers)
        known = {place: result for place, result, _ in read_results(results_file(target))}
    failing = json.loads(reach_file(target).read_text(encoding="utf-8"))["failing"] if known else []
    print(*(f"fails without any fault: {test}" for test in failing), sep="\n")
    return 0 if report(found, known, wanted) and not failing else 1


if __name__ == "__main__":
    sys.exit(main())
