"""The truths of `kvbench selftest` over HTTP: launched servers, a real client, the whole of `kvbench compare`.

Time runs SPEED times as fast as in virtual time. Truths that have the same baseline are candidates of one
comparison, so that the baseline is recorded once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvbench.judge.verdict import Outcome
from kvbench.selftest import setting
from kvbench.selftest.truths import Truth, chosen
from kvbench.spec.emulation import Costs

SPEED = 8.0
DEARER = 1.5
"""Computing, so that what a hit saves stands out from a busy machine's noise of milliseconds."""
ROUND_S = 3.0
ROUNDS = 4
"""One more than carries an interval: so a single round that a busy machine spoilt does not hide a clear truth."""
FILLING = 27
"""Requests that fill the tiers before a round, one after the other: none of them is held."""
AFTER = 45
"""Requests from a launch on, those that fill the tiers included, before something happens."""
TIMES = ("by", "every", "down")
"""Settings of injections that are seconds."""
HELD_S = 2.0
"""How long a slower tail is held: far beyond the tails of rounds of sixty requests, within their time-out."""
BUDGET_S = 1.5
"""Of absolute rules on TTFT: far beyond the tails, below what is held."""
TOGETHER = 4
"""Candidates in one comparison."""
PLAYED = (
    *("win-through-host", "win-through-disk", "nothing-changed", "slower-tail", "stalls", "slow-promotions"),
    *("useless-hits", "errors", "dropped-streams", "short-outputs", "corrupt-outputs"),
    *("leaked-outputs", "restart", "freeze", "sustained"),
    *("counter-reset", "vanished-metrics", "miscounted-sources", "residue", "other-configuration"),
)
"""Those in which the way through a server, a client and a scraper matters; virtual time has them all."""
PLAYED_TRUTHS = chosen(PLAYED)


@dataclass(frozen=True)
class Group:
    """Truths that are played as the candidates of one comparison."""

    truths: tuple[Truth, ...]

    @property
    def name(self) -> str:
        return self.truths[0].id


def groups() -> list[Group]:
    """All that are played. INVALID ends a comparison at once, so what must be INVALID is among itself; and where an
    arm is not configured as asked no load is played at all, so that one is alone."""
    alone = [truth for truth in PLAYED_TRUTHS if "other_configuration" in truth.inject]
    invalid = [truth for truth in PLAYED_TRUTHS if Outcome.INVALID in truth.expected and truth not in alone]
    others = [truth for truth in PLAYED_TRUTHS if truth not in (*invalid, *alone)]
    found = [Group(tuple(others[start : start + TOGETHER])) for start in range(0, len(others), TOGETHER)]
    return [*(Group((truth,)) for truth in alone), *found, Group(tuple(invalid))]


def begin(group: Group, folder: Path) -> subprocess.Popen[str]:
    """Start `kvbench compare` on it."""
    folder.mkdir(parents=True)
    profiles = [_write(folder / "baseline.yaml", _profile("baseline", (), {}, folder))]
    for truth in group.truths:
        profiles.append(_write(folder / f"{truth.id}.yaml", _profile(truth.id, truth.tiers, truth.inject, folder)))
    arguments = [
        *("compare", *profiles, "--json", "--out", folder / "out"),
        *("--workload", _write(folder / "workload.yaml", _workload())),
        *("--rules", _write(folder / "rules.yaml", _rules())),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "kvbench", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr.txt").open("w"),
        text=True,
    )


def verdicts(group: Group, process: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    """Wait for its end: truth → the candidate's part of verdict.json."""
    out, _ = process.communicate(timeout=300)
    document = json.loads(out)
    if "error" in document:
        raise AssertionError(f"{group.name}: {document['error']}")
    every = document.get("candidates") or [document]
    return dict(zip((truth.id for truth in group.truths), every, strict=True))


def _write(path: Path, content: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(dict(content)), encoding="utf-8")
    return path


def _profile(name: str, tiers: Sequence[str], inject: Mapping[str, object], folder: Path) -> dict[str, Any]:
    told = setting.profile(name, tuple(tiers), {})
    content = told.model_dump(mode="json", by_alias=True, exclude_none=True)
    costs = Costs().model_dump()
    for key in ("token", "token_context"):
        costs[key] *= DEARER
    content["engine"]["emulation"] = {
        "costs": {key: value if key == "block_bytes" else value / SPEED for key, value in costs.items()},
        "noise": {"correlation": 5.0 / SPEED},
    }
    if inject:
        content["engine"]["inject"] = {key: _faster(value) for key, value in inject.items()}
    if "slower_tail" in inject:
        content["engine"]["inject"]["slower_tail"] |= {"by": HELD_S, "after": FILLING}
    if "disk" in content["tiers"]:
        content["tiers"]["disk"]["path"] = str(folder / "kv" / name)
    return content


def _faster(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {
        key: AFTER if key == "after" and amount else amount / SPEED if key in TIMES else amount
        for key, amount in value.items()
    }


def _workload() -> dict[str, Any]:
    content = setting.WORKLOAD.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    content["arrivals"] = {"process": "poisson", "rate": setting.WORKLOAD.arrivals.rate * SPEED}
    content["phases"] = [{"name": "steady", "for": ROUND_S}]
    content["request_timeout"] = 3.0
    return content


def _rules() -> dict[str, Any]:
    """As the selftest's, at what so few requests and rounds carry, with margins for a busy machine's noise."""
    content = setting.RULES.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    for rule in content["guardrails"]:
        if "sustained" in rule:
            rule |= {"max": BUDGET_S, "sustained": {"window": 2.0, "for": 2.0}}
        elif "max" in rule and "quantile" in rule:
            rule |= {"quantile": 0.8, "max": BUDGET_S}
        elif "quantile" in rule:
            rule |= {"quantile": 0.9, "max_ratio": 3.0}
        elif rule["metric"] == "error_rate":
            rule["max"] = 0.04
    content["confidence"] = 0.9
    content["rounds"] = {"min": ROUNDS, "max": ROUNDS}
    content["validity"] = {"send_lag_p99": 1.0, "scrape_coverage": 0.5, "scrape_gap": 5.0, "contention": 1000.0}
    return content
