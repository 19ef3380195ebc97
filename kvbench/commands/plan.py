"""`kvbench plan`: what tiers would do, before any GPU-hour is spent; `plan budget`: what one GPU has room for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands import options
from kvbench.commands.answer import answer
from kvbench.errors import InputError
from kvbench.report.streams import people, say
from kvbench.spec.bounds import MOST_TOKENS

__all__ = ["plan_app"]

EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench plan --trace trace.jsonl --profile profiles/vllm/host-and-disk.yaml "
    "--model Qwen2.5-7B --sweep host=0..512GiB\n\n"
    "kvbench plan --workload mixed --profile cpu/host-and-disk --probe probe.json --out plan.json\n\n"
    "kvbench plan budget --model ./Llama-3.1-8B-Instruct --gpu 80GiB"
)

ROUNDS = 3
"""Of a workload; as many as a comparison has at least, unless its rules say otherwise."""

plan_app = typer.Typer(
    invoke_without_command=True, help="Predict sources, latencies and sizes of tiers; nothing is started."
)


@plan_app.callback(invoke_without_command=True, epilog=EXAMPLES)
def plan(
    context: typer.Context,
    profile: Annotated[
        str | None, typer.Option("--profile", "-p", help="The profile to plan for.", show_default=False)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", "-t", help="Traffic: a trace with block ids.", show_default=False)
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Traffic: a workload.", show_default=False)
    ] = None,
    format_: options.TraceFormat = None,
    block_tokens: options.BlockTokens = None,
    bad_lines: options.BadLimit = 100,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Requests of a trace.", show_default="5000")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            *("--rounds", "-n"),
            min=1,
            max=100,
            help="Rounds of a workload that are predicted together.",
            show_default=str(ROUNDS),
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", metavar="host=FROM..TO", help="Sizes of the host tier.", show_default="usual"),
    ] = None,
    probe: Annotated[Path | None, options.PROBE_OPTION] = None,
    model: Annotated[str | None, options.model_option("the profile's")] = None,
    kv_dtype: options.KvDtype = "auto",
    device_kv: Annotated[
        str | None, options.size_option("--device-kv", "KV on the device.", "the profile's")
    ] = None,
    path: options.PathRate = None,
    disk_path: options.DiskPath = None,
    prefill: options.Prefill = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Also write the plan here, for `kvbench compare --plan`."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict where prompt tokens would come from, TTFT and ITL by source, and the sizes that are worth it."""
    if context.invoked_subcommand is not None:
        return
    if profile is None or (trace is None) == (workload is None):
        raise InputError(
            "a plan needs a profile and either a trace or a workload",
            do="kvbench plan --profile PROFILE --workload WORKLOAD, or --trace TRACE",
        )
    if trace is not None and rounds is not None:
        raise InputError("--rounds: a trace is the same in every round", do="leave it out, or name a workload")
    from kvbench.plan.planned_arm import planned_arm
    from kvbench.plan.planning import Traffic, whole_plan
    from kvbench.plan.probe_file import read_probe
    from kvbench.plan.setting import Wishes
    from kvbench.plan.sweep import parse_sweep
    from kvbench.report.plan import show_plan
    from kvbench.spec.loading import load_profile, load_workload
    from kvbench.workload.traces.bad_lines import BadLines

    wished = None if sweep is None else parse_sweep(sweep)
    wishes = Wishes(model, kv_dtype, device_kv, None, None, path, disk_path, prefill)
    arm = planned_arm(load_profile(profile), wishes, None if probe is None else read_probe(probe))
    traffic = Traffic(
        None if workload is None else load_workload(workload),
        trace,
        format_,
        limit,
        block_tokens,
        BadLines(bad_lines),
        rounds or ROUNDS,
    )
    document = whole_plan(traffic, arm, wished)
    if out is not None:
        from kvbench.record.atomic import write_document

        write_document(out, document)
        say(people(), f"wrote {out}")
    answer(document, show_plan, as_json=as_json)


@plan_app.command(epilog="[bold]Example[/bold]\n\nkvbench plan budget --model Llama-3.3-70B --gpu 80GiB --tp 4")
def budget(
    model: Annotated[str, options.model_option(False)],
    gpu: Annotated[str, options.size_option("--gpu", "Memory of one GPU, such as 80GiB.", False)],
    tensor_parallel: Annotated[int, typer.Option("--tp", min=1, max=1024, help="GPUs that share every layer.")] = 1,
    pipeline_parallel: Annotated[
        int, typer.Option("--pp", min=1, max=1024, help="Stages of so many GPUs each that share the layers.")
    ] = 1,
    kv_dtype: options.KvDtype = "auto",
    utilization: Annotated[
        str | None, typer.Option("--utilization", help="Share of the GPU that is used.", show_default="92%")
    ] = None,
    weights: Annotated[str | None, options.size_option("--weights", "Of all ranks.", "from the files")] = None,
    workspace: Annotated[str | None, options.size_option("--workspace", "Of one GPU.", "estimated")] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", min=1, max=MOST_TOKENS, help="Count such sequences.", show_default=False),
    ] = None,
    block_tokens: Annotated[
        int, typer.Option("--block-tokens", min=1, max=MOST_TOKENS, help="Tokens in a block.")
    ] = 16,
    as_json: options.Json = False,
) -> None:
    """Divide a GPU into budgets for weights, workspace and KV, and say what the last one holds."""
    from kvbench.plan.budget import UTILIZATION, Memory, memory_budget
    from kvbench.plan.named_model import named_model
    from kvbench.plan.setting import given_bytes, given_share

    memory = Memory(
        gpu_bytes=given_bytes("--gpu", gpu),
        utilization=UTILIZATION if utilization is None else given_share("--utilization", utilization),
        weights=None if weights is None else given_bytes("--weights", weights),
        workspace=None if workspace is None else given_bytes("--workspace", workspace),
        block_tokens=block_tokens,
        max_model_len=max_model_len,
    )
    from kvbench.report.plan import show_budget

    found = memory_budget(
        named_model(model),
        memory,
        kv_dtype=kv_dtype,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
    )
    answer(found.document(), show_budget, as_json=as_json)
