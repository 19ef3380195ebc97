"""A whole comparison of servers behind gateways: TLS of an own authority, a header, prompts as chats."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest

from kvbench.engine.base import Launch
from kvbench.engine.create import create_engine
from kvbench.spec.profile import Profile
from tests.cli.files import write
from tests.cli.invoke import kvbench
from tests.standin.gateway import Gateway, gateway

SECRET = "s3cret-of-the-gateway"
BLOCKS, BLOCK_BYTES = 96, 4096
COSTS = {"request": 0.001, "step": 0.001, "sequence": 0.0, "token": 2e-5, "block_bytes": BLOCK_BYTES}
WORKLOAD = """\
name: chats
seed: 5
arrivals: {process: poisson, rate: 15/s}
phases: [{name: warm, for: 1s, measured: false}, {name: steady, for: 3s}]
classes:
  long: {weight: 1, prefix: {tokens: 512, pool: 6, popularity: uniform}, suffix_tokens: 64, output_tokens: 4}
"""
RULES = """\
guardrails:
  - {id: ttft-p90, metric: ttft, quantile: 0.9, max_ratio: 20}
  - {id: errors, metric: error_rate, max: 5%}
evidence: [{id: promoted, metric: promoted_tokens, min: 1}]
benefits: [{id: ttft, metric: ttft, quantile: 0.5, max_ratio: 0.8}]
rounds: {min: 2, max: 2}
validity: {send_lag_p99: 200ms, contention: 4}
"""


def emulated(stack: ExitStack, folder: Path, name: str, host_blocks: int) -> str:
    """The URL of an emulated engine that this test started."""
    tiers: dict = {"device": {"blocks": BLOCKS}}
    if host_blocks:
        tiers["host"] = {"size": host_blocks * BLOCK_BYTES}
    engine = {"kind": "emulated", "model": "tiny", "args": {"block-size": 16, "max-model-len": 1024}}
    engine["emulation"] = {"costs": COSTS}
    profile = Profile.model_validate({"name": name, "engine": engine, "tiers": tiers})
    directory = folder / f"{name}-server"
    directory.mkdir()
    launched = create_engine(profile, Launch(directory, directory / "engine-1.log", None, f"{name}-1"))
    stack.callback(launched.stop)
    return launched.start(lambda _: None).base_url


def arm(name: str, url: str, ca_file: Path, tiers: str) -> str:
    return f"""\
name: {name}
engine:
  kind: attached
  base_url: {url}/v1
  model: tiny
  api: chat
  headers: {{X-Tenant: team-a, X-Gateway-Token: {{env: GATEWAY_TOKEN}}}}
  ca_file: {ca_file}
tiers: {tiers}
"""


@pytest.fixture(scope="module")
def compared(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> tuple[dict, Path, list[Gateway]]:
    folder = tmp_path_factory.mktemp("chat")
    requires = {"X-Tenant": "team-a", "X-Gateway-Token": SECRET}
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                gateway(emulated(stack, folder, name, blocks), requires=requires, certificate=certificate)
            )
            for name, blocks in (("base", 0), ("tiered", 400))
        ]
        files = write(
            folder,
            base=arm("base", gateways[0].url, certificate[1], f"{{device: {{blocks: {BLOCKS}}}}}"),
            tiered=arm(
                "tiered",
                gateways[1].url,
                certificate[1],
                f"{{device: {{blocks: {BLOCKS}}}, host: {{size: {400 * BLOCK_BYTES}}}}}",
            ),
            workload=WORKLOAD,
            rules=RULES,
        )
        answer = kvbench(
            "compare", files["base"], files["tiered"], "--workload", files["workload"], "--rules", files["rules"],
            "--out", folder / "results", "--json", env={"GATEWAY_TOKEN": SECRET}, timeout_s=400,
        )  # fmt: skip
    assert answer.out, answer.text
    (run,) = (folder / "results").iterdir()
    return json.loads(answer.out), run, gateways


def test_everything_that_was_sent_got_through_the_gateway(compared: tuple[dict, Path, list[Gateway]]) -> None:
    _, _, gateways = compared
    for made in gateways:
        assert all(passed.let_in for passed in made.passed)
        posts = {passed.path for passed in made.passed if passed.method == "POST"}
        assert posts == {"/v1/chat/completions", "/tokenize", "/reset_prefix_cache"}


def test_prompts_are_as_long_as_planned_and_come_back_from_the_tier(
    compared: tuple[dict, Path, list[Gateway]],
) -> None:
    verdict, run, _ = compared
    assert verdict["verdict"] != "INVALID", verdict["reasons"]
    for name in ("base", "tiered"):
        for table in sorted(run.glob(f"arms/{name}/round-*/requests.parquet")):
            rows = pd.read_parquet(table)
            assert (rows["status"] == "ok").all(), rows["error"].dropna().unique()
            assert (rows["prompt_tokens_engine"] == rows["prompt_tokens_planned"]).all()
            assert rows["output_digest"].str.startswith("i").all(), "the ids of a chat's tokens are known"
            assert rows["cached_tokens"].max() == 512, "the prefix is shared to its last block, and nothing but it"
    assert verdict["sources"]["tiered"]["host"] > 0
    assert verdict["sources"]["base"]["host"] in (0, None)


def test_no_file_of_the_run_holds_the_secret(compared: tuple[dict, Path, list[Gateway]]) -> None:
    _, run, _ = compared
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path.name for path in files if SECRET.encode() in path.read_bytes()] == []
    assert "GATEWAY_TOKEN" in (run / "run.json").read_text()
