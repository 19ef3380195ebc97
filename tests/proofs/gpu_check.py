"""Runs the GPU profiles for real where there is a GPU, in at most ten minutes, and appends what it showed to
docs/verified.md.

`python -m tests.proofs.gpu_check [PAGE]`. Looks for vLLM in `python3` on the PATH (KVBENCH_GPU_COMMAND: another
command, such as `/venv/bin/python -m vllm.entrypoints.openai.api_server`; KVBENCH_GPU_IMAGE: an image by digest)
and uses the built-in model `tiny` (KVBENCH_GPU_MODEL: a directory). Without a GPU it says so, changes nothing and
exits with 0; with 1 when a check failed. Sizes in bytes, times in seconds.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import httpx

from kvbench.engine import tiny_model
from kvbench.engine.base import Effective, Endpoint, Launch
from kvbench.engine.create import create_engine
from kvbench.engine.launch import make_disk_directory
from kvbench.errors import KvbenchError
from kvbench.observe.canonical import parse_engine, sources
from kvbench.observe.exposition import Exposition
from kvbench.spec.profile import Profile

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verified.md"
LIMIT_S = 600.0
LEAST_S = 90.0
"""No further profile is begun with less time left: a start takes up to a minute on a GPU host."""

DEVICE_BLOCKS, BLOCK, PROMPT = 160, 16, 512
"""Five prompts fill the device, so the first ones have to come from a tier when they are sent again."""
PROMPTS = 8
"""Half a MiB of KV each with the model `tiny`: a host tier of three leaves the first ones to the disk."""
VLLM = ("python3", "-m", "vllm.entrypoints.openai.api_server")


class Line(NamedTuple):
    """One row of what was shown."""

    profile: str
    holds: bool
    text: str


def say(line: str) -> None:
    print(line, flush=True)


def gpus() -> list[str]:
    """Name, memory and driver of each GPU, as NVIDIA's own tool says; empty when there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


def engine_keys() -> dict[str, object] | None:
    """How vLLM is started here; None when it is not here."""
    if image := os.environ.get("KVBENCH_GPU_IMAGE"):
        return {"image": image}
    command = shlex.split(os.environ.get("KVBENCH_GPU_COMMAND", "")) or list(VLLM)
    found = shutil.which(command[0])
    if found is None:
        return None
    seen = subprocess.run([found, "-c", "import vllm"], capture_output=True, timeout=120, check=False)
    return {"command": command} if seen.returncode == 0 else None


def profiles(engine: dict[str, object], model: str, disk: Path) -> Iterator[Profile]:
    """The shipped GPU profiles in small: the same forms, tiers that a few prompts reach."""
    args = {"max-model-len": 1024, "block-size": BLOCK, "dtype": "bfloat16"}
    forms: dict[str, dict[str, object]] = {
        "baseline": {},
        "host": {"host": {"size": "256MiB", "via": "native"}},
        "host, offloading connector": {"host": {"size": "256MiB", "via": "offloading", "policy": "arc"}},
        "host-and-disk": {
            "host": {"size": "1536KiB", "via": "offloading"},
            "disk": {"path": str(disk), "read_threads": 4, "write_threads": 4, "size_limit": "2GiB"},
        },
        "fp8": {"device": {"blocks": DEVICE_BLOCKS, "kv_dtype": "fp8"}},
    }
    for name, tiers in forms.items():
        yield Profile.model_validate(
            {
                "name": name.replace(", ", "-").replace(" ", "-"),
                "engine": {"kind": "vllm", **engine, "model": model, "args": args, "ready_timeout": "150s"},
                "tiers": {"device": {"blocks": DEVICE_BLOCKS}, **tiers},
            }
        )


def prompt(which: int) -> list[int]:
    """Of its own from the first token on."""
    return [32 + (which * 31 + i * 7) % 200 for i in range(PROMPT)]


def complete(endpoint: Endpoint, ids: list[int]) -> tuple[int, list[int]]:
    """Cached tokens, and the token ids of the answer."""
    body = {"model": endpoint.model, "prompt": ids, "max_tokens": 8, "temperature": 0, **endpoint.extra_body}
    answer = httpx.post(f"{endpoint.base_url}/v1/completions", json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    found = answer.json()
    details = found["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0), list(found["choices"][0].get("token_ids") or [])


def scraped(endpoint: Endpoint) -> Exposition:
    return parse_engine(httpx.get(endpoint.metrics_url, timeout=10, trust_env=False).text)


@contextmanager
def running(profile: Profile, directory: Path) -> Iterator[tuple[Endpoint, Effective]]:
    directory.mkdir()
    disk = profile.tiers.disk
    own = make_disk_directory(disk.path, profile.name) if disk is not None else None
    engine = create_engine(profile, Launch(directory, directory / "engine.log", own, profile.name))
    try:
        endpoint = engine.start(say)
        yield endpoint, engine.effective()
    finally:
        engine.stop()


def shown(profile: Profile, directory: Path, expected: dict[int, list[int]]) -> Iterator[Line]:
    """Fill the tiers, ask again, and compare what came from where. `expected` takes the baseline's answers."""
    name, tiers = profile.name, profile.tiers
    with running(profile, directory) as (endpoint, effective):
        yield Line(name, not effective.differences, "; ".join(effective.differences) or "is as asked")
        first = {which: complete(endpoint, prompt(which))[1] for which in range(PROMPTS)}
        time.sleep(1.0)  # stores and cascades end after the answers
        before = scraped(endpoint)
        began = time.monotonic()
        again = {which: complete(endpoint, prompt(which)) for which in range(PROMPTS)}
        took = time.monotonic() - began
        told = sources(before, scraped(endpoint))
        words = ", ".join(f"{k} {v:.0f}" for k, v in told.items() if v is not None)
        yield Line(name, True, f"{PROMPTS} prompts again in {took:.2f} s, tokens from: {words}")
        for tier in ("host", "disk"):
            if getattr(tiers, tier) is not None:
                yield Line(name, bool(told[tier]), f"promotions from {tier}: {told[tier] or 0:.0f} tokens")
        same = all(again[which][1] == first[which] for which in first)
        yield Line(name, same, "answers again are the same" if same else "answers again DIFFER")
        if name == "baseline":
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


def check(engine: dict[str, object]) -> list[Line]:
    began = time.monotonic()
    lines: list[Line] = []
    expected: dict[int, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="kvbench-gpu-") as temporary:
        directory = Path(temporary)
        model = model_in(directory)
        for profile in profiles(engine, model, directory / "kv"):
            if time.monotonic() - began > LIMIT_S - LEAST_S:
                lines.append(Line(profile.name, False, "not run: no time was left"))
                continue
            for line in tried(profile, directory / profile.name, expected):
                say(f"{'ok  ' if line.holds else 'FAIL'} {line.profile}: {line.text}")
                lines.append(line)
    return lines


def tried(profile: Profile, directory: Path, expected: dict[int, list[int]]) -> Iterator[Line]:
    """What was shown, with what ended it as the last line."""
    try:
        yield from shown(profile, directory, expected)
    except (KvbenchError, httpx.HTTPError) as error:
        yield Line(profile.name, False, f"{type(error).__name__}: {str(error).splitlines()[0]}")


def append(page: Path, found: list[str], lines: list[Line], version: str) -> None:
    """One section a run, newest last."""
    rows = "".join(f"| {line.profile} | {'ok' if line.holds else 'FAIL'} | {line.text} |\n" for line in lines)
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    head = f"\n### {now}: {'; '.join(found)}; vLLM {version}\n\n| profile | | shown |\n| --- | --- | --- |\n"
    with page.open("a") as file:
        file.write(head + rows)


def version_of(engine: dict[str, object]) -> str:
    command = engine.get("command")
    if not isinstance(command, list):
        return f"of {engine.get('image')}"
    asked = [command[0], "-c", "import vllm; print(vllm.__version__)"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    return answer.stdout.strip().splitlines()[-1] if answer.returncode == 0 and answer.stdout else "unknown"


def main(page: Path) -> int:
    found = gpus()
    if not found:
        say("there is no GPU here (nvidia-smi is missing or names none): nothing was run, nothing was written")
        return 0
    engine = engine_keys()
    if engine is None:
        say(f"{'; '.join(found)}, but no vLLM: give KVBENCH_GPU_COMMAND or KVBENCH_GPU_IMAGE")
        return 2
    lines = check(engine)
    append(page, found, lines, version_of(engine))
    say(f"appended to {page}")
    return 0 if lines and all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE))
