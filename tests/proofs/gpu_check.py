"""Runs the GPU profiles for real where there is a GPU, in at most ten minutes, and appends what each of them showed
to docs/verified.md at once.

`python -m tests.proofs.gpu_check [PAGE]`. Runs what doctor measures, vLLM, LMCache beside it and TensorRT-LLM, each
of them where it is (`gpu_engines` says how they are named), with the built-in model `tiny` (KVBENCH_GPU_MODEL: a
directory); what is not here is "not run" on the page. Without a GPU it says so, changes nothing and exits with 0;
with 1 when a check failed. Sizes in bytes, times in seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import httpx

from kvbench.doctor.diagnose import diagnose
from kvbench.engine import tiny_model
from kvbench.engine.base import Effective, Endpoint, Launch
from kvbench.engine.create import create_engine
from kvbench.engine.launch import plan_disk_directory
from kvbench.errors import KvbenchError
from kvbench.observe.canonical import canonical, parse_engine
from kvbench.spec.profile import Profile
from tests.proofs.gpu_engines import (
    PROMPT,
    lmcache_profile,
    trtllm_keys,
    trtllm_profiles,
    versions,
    vllm_keys,
    vllm_profiles,
    why_no_lmcache,
    why_no_trtllm,
    why_no_vllm,
)
from tests.proofs.telling import say

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verified.md"
LIMIT_S = 480.0
"""Counted from the start; what is left of ten minutes is for what ends late."""
MARGIN_S = 45.0
"""For a profile's flags and YAML before it is started, its prompts, and its stop, beside its `ready_timeout`."""
DOCTORS = (
    "gpu",
    "gpu_memory",
    "pcie",
    "host_to_device",
    "device_to_host",
    "numa",
    "memory_copy",
    "disk_direct",
    "disk_write",
    "disk_read",
    "budget_host",
    "budget_disk",
)
MARKS = {True: "ok", False: "FAIL", None: "not run"}
Answers = dict[int, object]
"""Of the baseline, by prompt."""

PROMPTS = 8
"""Half a MiB of KV each with the model `tiny`: a host tier of six has one that the device lost, and leaves the
first ones to the disk."""


class Line(NamedTuple):
    """One row of what was shown."""

    profile: str
    holds: bool | None
    """None: it was not run."""
    text: str


def gpus() -> list[str]:
    """Name, memory and driver of each GPU, as NVIDIA's own tool says; empty when there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


def prompt(which: int) -> list[int]:
    """Of its own from the first token on."""
    return [32 + (which * 31 + i * 7) % 200 for i in range(PROMPT)]


def complete(endpoint: Endpoint, ids: list[int]) -> tuple[int, object]:
    """Cached tokens, and the token ids of the answer, or its text where the engine tells no ids."""
    body = {"model": endpoint.model, "prompt": ids, "max_tokens": 8, "temperature": 0, **endpoint.extra_body}
    answer = httpx.post(f"{endpoint.base_url}/v1/completions", json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    found = answer.json()
    details = found["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0), found["choices"][0].get("token_ids") or found["choices"][0][
        "text"
    ]


def by_source(endpoint: Endpoint) -> dict[str, float]:
    """Prompt tokens so far; a source that the engine cannot tell is left out."""
    page = parse_engine(httpx.get(endpoint.metrics_url, timeout=10, trust_env=False).text)
    told = [sample for sample in canonical(page) if sample.name == "prompt_tokens_by_source"]
    return {dict(sample.labels)["source"]: sample.value for sample in told}


@contextmanager
def running(profile: Profile, directory: Path) -> Iterator[tuple[Endpoint, Effective]]:
    directory.mkdir()
    disk = profile.tiers.disk
    own = plan_disk_directory(disk.path, profile.name) if disk is not None else None
    engine = create_engine(profile, Launch(directory, directory / "engine.log", own, profile.name))
    try:
        endpoint = engine.start(say)
        yield endpoint, engine.effective()
    finally:
        engine.stop()


def shown(profile: Profile, directory: Path, expected: Answers) -> Iterator[Line]:
    """Fill the tiers, ask again, and compare what came from where. `expected` takes the baseline's answers."""
    name, tiers = profile.name, profile.tiers
    with running(profile, directory) as (endpoint, effective):
        yield Line(name, not effective.differences, "; ".join(effective.differences) or "is as asked")
        first = {which: complete(endpoint, prompt(which))[1] for which in range(PROMPTS)}
        time.sleep(1.0)  # stores and cascades end after the answers
        before = by_source(endpoint)
        began = time.monotonic()
        # The newest first: the other way round each would push the next one out of a small tier before its turn.
        again = {which: complete(endpoint, prompt(which)) for which in reversed(range(PROMPTS))}
        took = time.monotonic() - began
        time.sleep(1.0)
        told = {source: tokens - before.get(source, 0.0) for source, tokens in by_source(endpoint).items()}
        words = ", ".join(f"{source} {tokens:.0f}" for source, tokens in told.items()) or "not told"
        yield Line(name, True, f"{PROMPTS} prompts again in {took:.2f} s, tokens from: {words}")
        for tier in ("host", "disk"):
            if getattr(tiers, tier) is not None:
                yield Line(name, bool(told.get(tier)), f"promotions from {tier}: {told.get(tier, 0):.0f} tokens")
        same = all(again[which][1] == first[which] for which in first)
        yield Line(name, same, "answers again are the same" if same else "answers again DIFFER")
        if tiers.host is None and tiers.device.kv_dtype == "auto":
            expected.update(first)
        elif tiers.device.kv_dtype == "auto":
            equal = first == expected
            yield Line(name, equal, "answers are the baseline's" if equal else "answers are NOT the baseline's")
    yield Line(name, True, "stopped, nothing left")


def model_in(directory: Path) -> str:
    given = os.environ.get("KVBENCH_GPU_MODEL")
    if given:
        return given
    made = directory / "tiny"
    made.mkdir()
    for name, content in tiny_model.files().items():
        (made / name).write_bytes(content)
    return str(made)


def doctors(profile: Profile) -> Iterator[Line]:
    """What doctor reads and measures of the GPU, its links, memory and the disk."""
    for row in diagnose(profile, say):
        if row.id in DOCTORS:
            held = None if row.status == "skipped" else row.status != "fail"
            text = row.text if row.status in ("ok", "skipped") else f"{row.status}: {row.text}; {row.do}"
            yield Line(f"doctor, {row.id}", held, text)


def check(vllm: dict[str, object] | None, trtllm: dict[str, object] | None, ends_s: float) -> Iterator[Line]:
    """Everything that can be run here until `ends_s` (monotonic), one after the other."""
    with tempfile.TemporaryDirectory(prefix="kvbench-gpu-") as temporary:
        yield from _shown_by_each(vllm, trtllm, Path(temporary), ends_s)


def _shown_by_each(
    vllm: dict[str, object] | None, trtllm: dict[str, object] | None, directory: Path, ends_s: float
) -> Iterator[Line]:
    model, disk = model_in(directory), directory / "kv"
    of_vllm = list(vllm_profiles(vllm, model, disk)) if vllm is not None else []
    of_trtllm = list(trtllm_profiles(trtllm, model)) if trtllm is not None else []
    (directory / "kv").mkdir()
    measured = next((profile for profile in of_vllm if profile.tiers.disk is not None), (of_vllm + of_trtllm)[-1])
    yield from doctors(measured)
    answers: Answers = {}
    yield from _each(of_vllm, directory, answers, ends_s, why_no_vllm(vllm), "vllm")
    missing = why_no_lmcache(vllm)
    with_lmcache = [lmcache_profile(vllm, model)] if vllm is not None and missing is None else []
    yield from _each(with_lmcache, directory, answers, ends_s, missing, "lmcache")
    yield from _each(of_trtllm, directory, {}, ends_s, why_no_trtllm(trtllm), "tensorrt-llm")


def _each(
    profiles: list[Profile],
    directory: Path,
    answers: Answers,
    ends_s: float,
    missing: str | None,
    name: str,
) -> Iterator[Line]:
    """`missing`: why there are no profiles of what is called `name`."""
    if missing is not None:
        yield Line(name, None, missing)
    for profile in profiles:
        if time.monotonic() + profile.engine.ready_timeout + MARGIN_S > ends_s:
            yield Line(profile.name, False, "not run: no time was left for its start")
        else:
            yield from tried(profile, directory / profile.name, answers)


def tried(profile: Profile, directory: Path, expected: Answers) -> Iterator[Line]:
    """What was shown, with what ended it as the last line: an odd answer of one engine costs no other its turn."""
    try:
        yield from shown(profile, directory, expected)
    except (KvbenchError, httpx.HTTPError, OSError, LookupError, TypeError, ValueError) as error:
        first = next(iter(str(error).splitlines()), "it says no more")
        yield Line(profile.name, False, f"{type(error).__name__}: {first}")


def append(page: Path, found: list[str], lines: Iterable[Line], engines: str) -> list[Line]:
    """One section a run, newest last; each row as soon as it is known, so that it stays whatever ends the run."""
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    head = f"\n### {now}: {'; '.join(found)}; {engines}\n\n| profile | | shown |\n| --- | --- | --- |"
    written = []
    with page.open("a") as file:
        print(head, file=file, flush=True)
        for line in lines:
            say(f"{MARKS[line.holds]:7} {line.profile}: {line.text}")
            print(f"| {line.profile} | {MARKS[line.holds]} | {line.text} |", file=file, flush=True)
            written.append(line)
    return written


def main(page: Path) -> int:
    ends_s = time.monotonic() + LIMIT_S
    found = gpus()
    if not found:
        say("there is no GPU here (nvidia-smi is missing or names none): nothing was run, nothing was written")
        return 0
    vllm, trtllm = vllm_keys(), trtllm_keys()
    if vllm is None and trtllm is None:
        missing = "; ".join(filter(None, (why_no_vllm(vllm), why_no_trtllm(trtllm))))
        say(f"{'; '.join(found)}, but no engine for it: {missing}")
        return 2
    lines = append(page, found, check(vllm, trtllm, ends_s), versions(vllm, trtllm))
    say(f"appended to {page}")
    return 0 if all(line.holds is not False for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE))
