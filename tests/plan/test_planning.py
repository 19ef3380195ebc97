"""Plans: costs from probes and assumptions, break-even lengths, sweeps, predictions and what is recommended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.judge.sources import SOURCES
from kvbench.plan.break_even import break_even_rows, break_even_tokens
from kvbench.plan.budget import Memory, memory_budget
from kvbench.plan.engine_costs import assumed_costs, probed_costs
from kvbench.plan.named_model import named_model
from kvbench.plan.planned_arm import PlannedArm, planned_arm
from kvbench.plan.planning import Traffic, make_plan, planned_schedule, whole_plan
from kvbench.plan.probe_file import read_probe
from kvbench.plan.setting import PATH_BYTES_PER_S, Wishes, make_setting
from kvbench.plan.sweep import SweepPoint, knee, parse_sweep
from kvbench.spec.emulation import Costs
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload

BLOCK = 128
BLOCK_BYTES = 262_144


def profile(host: int | None = 96, *, device_blocks: int = 60, disk: bool = False, **costs: float) -> Profile:
    """An emulated engine; the host tier in blocks."""
    tiers: dict[str, object] = {"device": {"blocks": device_blocks}}
    if host:
        tiers["host"] = {"size": host * BLOCK_BYTES}
    if disk:
        tiers["disk"] = {"path": "/tmp/none", "read_threads": 4, "write_threads": 4, "size_limit": "4GiB"}
    engine = {"kind": "emulated", "model": "tiny", "args": {"max-model-len": 4096}, "emulation": {"costs": costs}}
    return Profile.model_validate({"name": "arm", "engine": engine, "tiers": tiers})


def workload(pool: int = 12, rate: float = 2.0, tokens: int = 1024) -> Workload:
    """Prompts of eight shared blocks (or so many tokens) and a short rest."""
    long = {"prefix": {"tokens": tokens, "pool": pool}, "suffix_tokens": 32, "output_tokens": 8}
    return Workload.model_validate(
        {
            "name": "w",
            "arrivals": {"process": "poisson", "rate": rate},
            "phases": [{"name": "steady", "for": 60}],
            "classes": {"long": long},
        }
    )


def arm_of(spec: Profile) -> PlannedArm:
    return planned_arm(spec, Wishes(), None)


def plan_of(spec: Profile, traffic: Workload | None = None, sweep: str | None = None) -> dict:
    arm = arm_of(spec)
    schedule, _ = planned_schedule(Traffic(traffic or workload()), arm)
    return make_plan(schedule, arm, None if sweep is None else parse_sweep(sweep))


def test_a_plan_predicts_sources_latencies_and_says_what_the_tier_is_for() -> None:
    found = plan_of(profile(host=96), sweep="host=0..64MiB")
    json.dumps(found, allow_nan=False)
    shares, alone = found["prediction"]["shares"], found["device_only"]["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["host"] > 0.3
    assert alone["host"] == 0
    assert shares["computed"] < alone["computed"]
    ttft = found["prediction"]["ttft_s"]
    assert ttft["host"]["p50"] < ttft["computed"]["p50"]
    assert found["prediction"]["itl_s"]["all"]["p50"] > 0
    # and the sweep rises, its knee is recommended
    served = [point["served"] for point in found["sweep"]]
    assert served == sorted(served)
    assert found["sweep"][0]["size_bytes"] == 0
    assert found["recommendation"]["host_bytes"] == found["knee"]["size_bytes"] > 0
    assert 0 < found["path"]["mean_use"] <= found["path"]["peak_use"] < 1
    assert found["assumptions"] == []


def test_predicted_promotions_are_the_bytes_of_the_promoted_tokens() -> None:
    found = plan_of(profile(host=96))
    tokens = found["prediction"]["tokens"]
    told = found["prediction"]["promotion_bytes_per_s"]["mean"]
    assert told == pytest.approx((tokens["host"] + tokens["disk"]) * BLOCK_BYTES / BLOCK / 60)


def test_a_slow_path_and_a_working_set_on_the_device_get_no_tier() -> None:
    slow = plan_of(profile(load_block=0.5))
    assert slow["recommendation"]["host_bytes"] == 0
    assert "longer than computing" in slow["recommendation"]["reason"]
    fits = plan_of(profile(device_blocks=400))
    assert fits["recommendation"]["host_bytes"] == 0
    assert "the device serves" in fits["recommendation"]["reason"]


def test_a_disk_is_recommended_where_the_sweep_ends_too_early() -> None:
    found = plan_of(profile(host=40, disk=True), workload(pool=40), sweep="host=0..20MiB")
    assert found["recommendation"]["disk_bytes"] > 0
    writes = found["disk_writes"]
    assert writes["bytes_per_day"] == pytest.approx(found["recommendation"]["disk_bytes"] * 1440)
    assert writes["drive_bytes"] == 4 * 2**30
    assert writes["years"] == pytest.approx(5 / writes["drive_writes_per_day"])


def test_alternatives_stand_beside_the_tier() -> None:
    found = {each["name"]: each["served"] for each in plan_of(profile())["alternatives"]}
    assert found["device memory × 2"] == found["fp8 KV"] > found["as it is"]


@settings(max_examples=80)
@given(
    token=st.floats(1e-6, 1e-2),
    bend=st.one_of(st.just(0.0), st.floats(1e-10, 1e-6)),
    base=st.floats(0, 1),
    rate=st.floats(1e6, 1e12),
    unit=st.sampled_from([1, 16, 128]),
)
def test_break_even_is_where_curves_cross(token: float, bend: float, base: float, rate: float, unit: int) -> None:
    costs = Costs(token=token, token_context=bend)
    found = break_even_tokens(costs, 2048, rate, base_s=base, unit=unit)

    def gain(tokens: float) -> float:
        return token * tokens + bend * tokens**2 / 2 - base - tokens * 2048 / rate

    if found is None:
        assert gain(1e12) <= 1e-3
    else:
        assert gain(found) >= -1e-6 * (1 + base + token * found)
        assert found == unit or gain(found - unit) <= 1e-6 * (1 + base + token * found)


def test_faster_paths_break_even_earlier_and_beyond_the_longest_prompt_is_never() -> None:
    rows = list(break_even_rows(Costs(), 2048, block_tokens=16, longest=100_000))
    pcie = [row.tokens for row in rows if row.path.startswith("PCIe 4.0")]
    assert pcie == sorted(pcie, reverse=True)
    assert all(row.tokens % 16 == 0 for row in rows if row.tokens)
    slow = list(break_even_rows(Costs(token=1e-9, token_context=0), 2048, block_tokens=16, longest=1000))
    assert {row.tokens for row in slow} == {None}


def test_every_gpu_has_a_link_of_its_own_and_all_share_the_disk() -> None:
    one, four = (
        {row.path: row for row in break_even_rows(Costs(), 2048, block_tokens=16, longest=None, ranks=ranks)}
        for ranks in (1, 4)
    )
    assert four["4 × PCIe 4.0 x4"].bytes_per_s == one["PCIe 4.0 x16"].bytes_per_s
    assert four["4 × PCIe 5.0 x16"].bytes_per_s == 4 * one["PCIe 5.0 x16"].bytes_per_s
    behind = four["7 GB/s behind 4 × PCIe 4.0 x16"].bytes_per_s
    assert one["7 GB/s behind PCIe 4.0 x16"].bytes_per_s < behind < 7e9


def probe_document(**more: object) -> dict:
    """TTFT = 20 ms + 100 µs a token computed, + 10 µs from the host, + 30 µs from the disk."""
    slopes = {"computed": 1e-4, "device": 0.0, "host": 1e-5, "disk": 3e-5}
    bases = {"computed": 0.02, "device": 0.02, "host": 0.022, "disk": 0.027}
    points = [
        {"source": s, "prefix_tokens": n, "n": 9, "ttft_s": bases[s] + slopes[s] * n, "ci": None}
        for s in slopes
        for n in (512, 1024, 2048, 4096)
    ]
    return {"points": points, "cost_per_token_s": slopes, "break_even_tokens": {"host": 128, "disk": 128}, **more}


def probed(tmp_path: Path, document: dict) -> Costs:
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(document))
    base = assumed_costs(make_setting(), block_tokens=BLOCK, block_bytes=BLOCK_BYTES)
    return probed_costs(read_probe(path), base, block_tokens=BLOCK, block_bytes=BLOCK_BYTES).costs


@pytest.mark.parametrize("curve", [False, True])
def test_a_probe_takes_the_place_of_assumptions(tmp_path: Path, curve: bool) -> None:
    own = {"computed": [0.02, 1e-4, 0.0], "device": [0.02, 0], "host": [0.022, 1e-5], "disk": [0.027, 3e-5]}
    costs = probed(tmp_path, probe_document(**({"curve": own} if curve else {})))
    assert costs.token == pytest.approx(1e-4, rel=1e-3)
    assert costs.load_block == pytest.approx(1e-5 * BLOCK, rel=1e-3)
    assert costs.read_block == pytest.approx(2e-5 * BLOCK, rel=1e-3)
    assert costs.transfer == pytest.approx(0.002, rel=1e-2)
    assert costs.lookup == pytest.approx(0.005, rel=1e-2)


def test_rounds_are_predicted_each_with_its_own_requests_and_told_together() -> None:
    """Rounds of a comparison draw requests of their own, so what tiers serve differs from round to round."""
    arm, traffic = arm_of(profile(host=96)), Traffic(workload(), rounds=3)
    each = [make_plan(planned_schedule(traffic, arm, None, index)[0], arm, None) for index in (1, 2, 3)]
    found = whole_plan(traffic, arm, None)
    for name in ("prediction", "device_only"):
        told = [document[name] for document in each]
        assert len({document["tokens"]["device"] for document in told}) > 1
        assert found[name]["rounds"] == 3
        assert found[name]["requests"] == sum(document["requests"] for document in told)
        assert found[name]["tokens"] == {
            source: sum(document["tokens"][source] for document in told) for source in SOURCES
        }
        assert found[name]["ttft_s"]["all"]["n"] == sum(document["ttft_s"]["all"]["n"] for document in told)
        medians = sorted(document["ttft_s"]["all"]["p50"] for document in told)
        assert medians[0] <= found[name]["ttft_s"]["all"]["p50"] <= medians[-1]
    peaks = [document["prediction"]["promotion_bytes_per_s"]["peak"] for document in each]
    assert found["prediction"]["promotion_bytes_per_s"]["peak"] == max(peaks)


def test_a_round_without_requests_adds_nothing() -> None:
    rare = workload(rate=0.02)
    arm = arm_of(profile(host=96))
    drawn = [len(planned_schedule(Traffic(rare), arm, None, index)[0].requests) for index in range(1, 13)]
    assert drawn[0] > 0
    assert 0 in drawn
    assert whole_plan(Traffic(rare, rounds=12), arm, None)["prediction"]["requests"] == sum(drawn)


def test_a_probe_predicts_the_ttft_that_it_measured(tmp_path: Path) -> None:
    # given a probe, and single requests of 1,024 + 32 tokens far apart on an engine with a large host tier
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(probe_document()))
    arm = planned_arm(profile(host=400), Wishes(), read_probe(path))
    schedule, _ = planned_schedule(Traffic(workload(pool=12, rate=0.5)), arm)
    ttft = make_plan(schedule, arm, None)["prediction"]["ttft_s"]
    # then computed ones take 20 ms and 1,056 tokens, those from the host 8 blocks of 10 µs a token and 32 tokens
    assert ttft["computed"]["p50"] == pytest.approx(0.02 + 1056e-4, rel=0.1)
    assert ttft["host"]["p50"] == pytest.approx(0.022 + 1024e-5 + 32e-4, rel=0.2)


def test_single_requests_take_what_the_probe_found_from_every_source(tmp_path: Path) -> None:
    """Given a probe whose every part costs something, then plans of requests far apart give its curves again."""
    own = {"computed": [0.02, 1e-4, 0.0], "device": [0.02, 2e-6], "host": [0.024, 1e-5], "disk": [0.03, 3e-5]}
    decode = [{"requests": 1, "gaps": 90, "itl_s": 0.009}, {"requests": 4, "gaps": 90, "itl_s": 0.015}]
    path = tmp_path / "probe.json"
    suffixes = [
        {"prefix_tokens": prefix, "suffix_tokens": suffix, "n": 8, "ttft_s": 0.0192 + 5e-6 * prefix + 1e-4 * suffix}
        for prefix in (512, 2048)
        for suffix in (64, 256)
    ]
    path.write_text(json.dumps(probe_document(curve=own, decode=decode, suffixes=suffixes)))
    arm = planned_arm(profile(host=110, disk=True), Wishes(), read_probe(path))
    assert (arm.costs.costs.step, arm.costs.costs.sequence) == (pytest.approx(0.007), pytest.approx(0.002))
    assert arm.assumptions == ("writes: as fast as reads (not in a probe)",)
    schedule, _ = planned_schedule(Traffic(workload(pool=20)), arm)
    found = make_plan(schedule, arm, None)["prediction"]
    assert found["itl_s"]["all"]["p50"] == pytest.approx(0.009)
    more_s = (32 - 8) * 1e-4 + 1024 * 3e-6  # a longer suffix than a probe's, and attention over what is cached
    for source in ("device", "host", "disk"):
        base_s, slope_s = own[source]
        assert found["ttft_s"][source]["p50"] == pytest.approx(base_s + 1024 * slope_s + more_s, rel=0.02), source


def test_a_probe_without_decoding_says_so(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(probe_document()))
    arm = planned_arm(profile(), Wishes(), read_probe(path))
    assert any(note.startswith("steps while decoding: not in this probe") for note in arm.assumptions)


def test_a_plan_says_which_costs_of_a_probe_beside_other_requests_it_uses(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    slower = probe_document(curve={"computed": [0.4, 1e-3, 0.0], "device": [0.4, 0], "host": [0.5, 1e-4]})
    path.write_text(json.dumps(probe_document(under_load=slower, background_per_s=2.0)))
    arm = planned_arm(profile(), Wishes(), read_probe(path))
    assert any(note.startswith("costs: those probed alone; beside 2 other requests") for note in arm.assumptions)
    path.write_text(json.dumps(probe_document(under_load=None, background_per_s=None)))
    alone = planned_arm(profile(), Wishes(), read_probe(path))
    assert alone.costs.costs == arm.costs.costs
    assert not any("probed alone" in note for note in alone.assumptions)


def test_the_server_on_a_cpu_computes_long_prompts_in_parts() -> None:
    engine = {"kind": "vllm", "environment": "vllm-cpu", "version": "0.32.0", "model": "tiny", "args": {}}
    wishes = Wishes(model="Llama-3.1-8B")
    spec = Profile.model_validate({"name": "cpu", "engine": engine, "tiers": {"device": {"blocks": 100}}})
    assert planned_arm(spec, wishes, None).profile.engine.args["max-num-batched-tokens"] == 2048
    told = {**engine, "args": {"max-num-batched-tokens": 512}}
    own = Profile.model_validate({"name": "cpu", "engine": told, "tiers": {"device": {"blocks": 100}}})
    assert planned_arm(own, wishes, None).profile.engine.args["max-num-batched-tokens"] == 512


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("not json", "kvbench probe"),
        ("{}", "kvbench probe"),
        ('{"cost_per_token_s": {"host": 1e-5}}', "what computing a token costs"),
        ('{"cost_per_token_s": {"computed": 1}, "points": [{"source": "computed"}]}', "no probe's"),
        ('{"cost_per_token_s": {"computed": 1}, "suffixes": [{"n": 1}]}', "of suffixes is no probe's"),
        ('{"cost_per_token_s": {"computed": 1}, "decode": [{"requests": 1}]}', "of decoding is no probe's"),
        ('{"cost_per_token_s": {"computed": 1}, "under_load": {}}', "of its background is no probe's"),
        ('{"cost_per_token_s": {"computed": NaN}}', "of the source 'computed' is no probe's"),
        ('{"cost_per_token_s": {"computed": 1e999}}', "of the source 'computed' is no probe's"),
        ('{"cost_per_token_s": {"computed": 1}, "curve": {"computed": [1' + "0" * 400 + "]}}", "no probe's"),
        ('{"cost_per_token_s": {"computed": 1}, "curve": [1]}', "of the source 'computed' is no probe's"),
        ('{"cost_per_token_s": {"computed": 1}, "decode": [{"requests": 1, "itl_s": NaN}]}', "of decoding is no"),
    ],
)
def test_what_is_no_probe_is_told(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "probe.json"
    path.write_text(text)
    with pytest.raises(InputError, match=what):
        read_probe(path)


def test_a_gpu_profile_needs_a_model_and_then_rests_on_stated_assumptions() -> None:
    engine = {"kind": "vllm", "command": ["python3"], "version": "0.32.0", "model": "some/model", "revision": "r1"}
    spec = Profile.model_validate({"name": "gpu", "engine": engine, "tiers": {"host": {"size": "64GiB"}}})
    with pytest.raises(InputError, match="--model"):
        planned_arm(spec, Wishes(), None)
    arm = planned_arm(spec, Wishes(model="Llama-3.1-8B"), None)
    assert (arm.block_tokens, arm.token_bytes) == (16, 131_072)
    assert arm.host_blocks == 2**36 // (16 * 131_072)
    assert any(note.startswith("device tier: 5") for note in arm.assumptions), arm.assumptions
    assert any("prefill" in note for note in arm.assumptions)


def gpu_arm(kind: str = "vllm", tiers: dict[str, object] | None = None, **args: object) -> PlannedArm:
    engine = {"kind": kind, "version": "1.0", "model": "some/model", "revision": "r1", "args": args}
    where = {"command": ["python3"]} if kind == "vllm" else {"image": "trt@sha256:" + "0" * 64}
    spec = Profile.model_validate({"name": "gpu", "engine": engine | where, "tiers": tiers or {}})
    return planned_arm(spec, Wishes(model="Llama-3.3-70B"), None)


def test_a_plan_takes_gpus_and_their_use_from_the_profile() -> None:
    """Given the ranks and the utilization of a profile, then KV is what `plan budget` says of them."""
    model = named_model("Llama-3.3-70B")
    for ranks, share in ((4, 0.92), (4, 0.5), (8, 0.85)):
        tiers = {"device": {"memory_utilization": share}} if share != 0.92 else {}
        arm = gpu_arm(tiers=tiers, **{"tensor-parallel-size": ranks})
        budget = memory_budget(model, Memory(80 * 2**30, utilization=share), tensor_parallel=ranks)
        assert arm.device_blocks == budget.kv_total_bytes // arm.block_bytes
        assert arm.setting.ranks == ranks
        assert any(f"{share:.0%} of {ranks} × 80 GiB" in note for note in arm.assumptions), arm.assumptions
    # and every rank has its own path to the host
    assert arm.setting.path_bytes_per_s == 8 * PATH_BYTES_PER_S
    with pytest.raises(InputError, match="less than two blocks"):
        gpu_arm()  # one GPU, as the engine takes it, does not hold the model


def test_of_tensorrt_the_share_is_of_what_is_free() -> None:
    whole = memory_budget(named_model("Llama-3.3-70B"), Memory(80 * 2**30, utilization=1.0), tensor_parallel=4)
    arm = gpu_arm("tensorrt-llm", {"device": {"memory_utilization": 0.5}}, tp_size=4)
    assert arm.device_blocks == pytest.approx(whole.kv_total_bytes / 2 / arm.block_bytes, abs=1)


def test_a_prompt_longer_than_the_device_is_told() -> None:
    spec = profile(device_blocks=40)
    arm = arm_of(spec.model_copy(update={"engine": spec.engine.model_copy(update={"args": {}})}))
    args = arm.profile.engine.args | {"max-model-len": 100_000}
    engine = arm.profile.engine.model_copy(update={"args": args})
    arm = replace(arm, profile=arm.profile.model_copy(update={"engine": engine}))
    with pytest.raises(InputError, match="the longest request has 6,040 tokens, and the device holds 4,992"):
        planned_schedule(Traffic(workload(tokens=6000)), arm)


def test_a_trace_is_planned_as_well(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lengths = {"input_length": 1025, "output_length": 4}
    rows = [{"timestamp": 1000 * n, **lengths, "hash_ids": [f"{n % 12}-{b}" for b in range(9)]} for n in range(60)]
    rows[30] |= {"input_length": 5000, "hash_ids": [f"long-{b}" for b in range(40)]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arm = arm_of(profile(host=200))
    schedule, left_out = planned_schedule(Traffic(trace=path, limit=48), arm)
    assert (len(schedule.requests), left_out) == (47, 1), "one is longer than the engine takes"
    assert make_plan(schedule, arm, None)["prediction"]["shares"]["host"] > 0.5


def test_rounds_of_a_replayed_trace_differ_in_who_is_held_out_and_in_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {
            "timestamp": 1000 * n,
            "input_length": 1025,
            "output_length": 4,
            "hash_ids": [9 * (n % 30) + b for b in range(9)],
        }
        for n in range(60)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replay = {"name": "r", "arrivals": {"trace": {"path": str(path)}}, "phases": [{"name": "all", "for": 61}]}
    arm = arm_of(profile(host=70, disk=True))
    for more, rounds in (({}, 1), ({"tier_holdout": 0.3}, 3)):
        traffic = Traffic(Workload.model_validate(replay | more), rounds=3)
        assert whole_plan(traffic, arm, None)["prediction"]["rounds"] == rounds


def test_the_sweep_evicts_by_the_profiles_policy() -> None:
    """Given prompts that return among many that do not, then a sweep under ARC serves more than one under LRU."""
    mixed = workload(pool=6).model_dump(mode="json", exclude_none=True)
    mixed["classes"]["once"] = mixed["classes"]["long"] | {"weight": 3.0, "prefix": {"tokens": 1024, "pool": 400}}
    traffic = Workload.model_validate(mixed)
    lru = profile(host=48, device_blocks=40)
    host = lru.tiers.host.model_copy(update={"policy": "arc"})
    arc = lru.model_copy(update={"tiers": lru.tiers.model_copy(update={"host": host})})
    by_lru, by_arc = (plan_of(spec, traffic, "host=0..24MiB") for spec in (lru, arc))
    assert (by_lru["sizes"]["host_policy"], by_arc["sizes"]["host_policy"]) == ("lru", "arc")
    served = [[point["served"] for point in found["sweep"]] for found in (by_lru, by_arc)]
    assert served[1][0] == served[0][0]
    assert served[1][-1] > served[0][-1] + 0.02


def test_the_knee_is_the_smallest_size_with_most_of_the_gain() -> None:
    def point(size: int, served: float) -> SweepPoint:
        return SweepPoint(size, {"device": 0.1, "host": served - 0.1, "disk": 0.0, "computed": 1 - served})

    found = knee([point(0, 0.1), point(1, 0.3), point(2, 0.66), point(4, 0.7), point(8, 0.7)])
    assert found is not None
    assert found.size_bytes == 2
    assert knee([point(0, 0.1), point(8, 0.1)]) is None


@pytest.mark.parametrize("text", ["host", "disk=0..1GiB", "host=0-1GiB", "host=2GiB..1GiB", "host=0..much"])
def test_a_wrong_sweep_is_told(text: str) -> None:
    with pytest.raises(InputError, match="--sweep"):
        parse_sweep(text)
