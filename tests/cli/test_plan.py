"""`kvbench plan` and `kvbench plan budget` as users call them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.invoke import kvbench_here


def test_a_budget_for_a_model_on_a_gpu(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "vocab_size": 128256,
                "torch_dtype": "bfloat16",
            }
        )
    )
    budget = ("plan", "budget", "--model", config, "--gpu", "80GiB")
    answer = kvbench_here(*budget, "--max-model-len", "8192", "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    assert document["geometry"]["bytes_per_token"] == 131_072
    parts = ("weights_bytes", "workspace_bytes", "kv_bytes", "outside_bytes")
    assert sum(document[part] for part in parts) == 80 * 2**30
    shown = kvbench_here("plan", "budget", "--model", tmp_path, "--gpu", "80GiB", "--utilization", "50%").out
    for part in ("weights", "workspace", "KV", "131,072 bytes", "assumed: weights"):
        assert part in shown


def test_a_model_that_does_not_fit_is_told() -> None:
    answer = kvbench_here("plan", "budget", "--model", "Llama-3.3-70B", "--gpu", "80GiB")
    assert answer.code == 0
    assert "does not fit" in answer.out
    assert (
        "does not fit"
        not in kvbench_here("plan", "budget", "--model", "Llama-3.3-70B", "--gpu", "80GiB", "--tp", "4").out
    )


def test_a_plan_for_a_shipped_profile_and_workload(tmp_path: Path) -> None:
    workload = tmp_path / "w.yaml"
    workload.write_text(
        "name: small\narrivals: {process: poisson, rate: 1/s}\nphases: [{name: steady, for: 40s}]\n"
        "classes: {long: {prefix: {tokens: 2048, pool: 12}, suffix_tokens: 32, output_tokens: 8}}\n"
    )
    arguments = ("plan", "--profile", "emulated/host", "--workload", workload, "--sweep", "host=0..256MiB")
    answer = kvbench_here(*arguments, "--json")
    assert (answer.code, answer.err) == (0, ""), answer.text
    document = json.loads(answer.out)
    assert document["costs"]["source"] == "the emulated engine's own costs"
    assert document["recommendation"]["reason"]
    shown = kvbench_here(*arguments, env={"COLUMNS": "160"}).out
    assert "3 rounds together" in shown
    for part in ("Predicted sources", "Predicted latency", "knee", "PCIe 4.0 x16", "Recommended", "fp8 KV"):
        assert part in shown


def test_a_trace_is_planned_without_its_bad_lines_and_with_the_block_size_that_is_said(tmp_path: Path) -> None:
    """Given ids whose size does not follow from lengths, and a line that cannot be read."""
    record = {"timestamp": 0, "input_length": 300, "output_length": 4, "hash_ids": [1, 2]}
    lines = [json.dumps(record | {"timestamp": 1000 * at}) for at in range(9)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([*lines[:3], "what is this", *lines[3:]]))
    arguments = ("plan", "--profile", "emulated/host", "--trace", path, "--sweep", "host=0..64MiB")
    refused = kvbench_here(*arguments, "--json")
    assert refused.code == 2
    assert "--block-tokens" in json.loads(refused.out)["error"]
    answer = kvbench_here(*arguments, "--block-tokens", "128", "--json")
    assert answer.code == 0, answer.text
    document = json.loads(answer.out)
    assert document["requests"] == 9
    assert document["skipped_lines"]["count"] == 1
    assert document["skipped_lines"]["first"][0]["line"] == 4
    assert "1 lines could not be read" in kvbench_here(*arguments, "--block-tokens", "128").out.replace("\n", " ")
    strict = kvbench_here(*arguments, "--block-tokens", "128", "--bad-lines", "0", "--json")
    assert (strict.code, ":4: " in json.loads(strict.out)["error"]) == (2, True)


def test_what_is_missing_or_wrong_is_told() -> None:
    assert "needs a profile and either" in kvbench_here("plan", "--json").out
    for arguments, what in (
        (("budget", "--model", "no-such", "--gpu", "80GiB"), "--model: 'no-such'"),
        (("budget", "--model", "Qwen2.5-7B", "--gpu", "big"), "--gpu: "),
        (("budget", "--model", "Qwen2.5-7B", "--gpu", "80GiB", "--utilization", "120%"), "--utilization: "),
        (("budget", "--model", "Qwen2.5-7B", "--gpu", "80GiB", "--block-tokens", "9" * 400), "--block-tokens"),
        (("budget", "--model", "Qwen2.5-7B", "--gpu", "80GiB", "--max-model-len", "9" * 400), "--max-model-len"),
        (("budget", "--model", "Qwen2.5-7B", "--gpu", "80GiB", "--pp", "1024"), "28 layers cannot be spread"),
        (("--profile", "emulated/host", "--workload", "mixed", "--sweep", "disk=1"), "--sweep: "),
        (("--profile", "emulated/host", "--trace", "t.jsonl", "--rounds", "2"), "the same in every round"),
    ):
        answer = kvbench_here("plan", *arguments, "--json")
        assert answer.code == 2, arguments
        assert what in json.loads(answer.out)["error"]


def test_a_trace_over_more_than_a_year_is_told(tmp_path: Path) -> None:
    request = {"input_length": 512, "output_length": 1, "hash_ids": [1]}
    lines = [json.dumps({"timestamp": time_ms, **request}) for time_ms in (0, 365.5 * 86_400_000)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    trace = ("--trace", tmp_path / "t.jsonl", "--block-tokens", "512")
    answer = kvbench_here("plan", "--profile", "emulated/host", *trace, "--json")
    assert answer.code == 2
    assert "come over more than 365d" in json.loads(answer.out)["error"]
