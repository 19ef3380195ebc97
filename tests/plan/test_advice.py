"""Each kind of traffic gets the advice that it deserves, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.errors import InputError, Where
from kvbench.plan.analysis import Question, analyse
from kvbench.plan.engine_costs import assumed_costs
from kvbench.plan.setting import Wishes, make_setting
from kvbench.spec.bounds import LONGEST_S
from kvbench.workload.traces.trace import Columns, Record, Trace

SIZE = 512
BLOCK_BYTES = 131_072 * SIZE  # of the yardstick, Llama-3.1-8B in bfloat16


def trace_of(paths: list[list[object]], session: list[int] | None = None) -> Trace:
    columns = Columns(Path("t.jsonl"))
    for at, path in enumerate(paths):
        # a prompt is its whole blocks and one token more, so that all of them can hit
        columns.add(Record(float(at), len(path) * SIZE + 1, 10, list(path)), Where(Path("t.jsonl")))
    return columns.trace("mooncake", 1.0, SIZE)


def document_prompts(documents: int, rounds: int, blocks: int = 10) -> Trace:
    """Every document is read once a round, in the same order: the worst order for an LRU."""
    return trace_of([[f"{d}-{b}" for b in range(blocks)] for _ in range(rounds) for d in range(documents)])


def advice(trace: Trace, **wishes: str) -> dict:
    return analyse(trace, Question(hierarchies=(), setting=make_setting(Wishes(**wishes))))["advice"]


def sizes(device: int, host: int, disk: int) -> dict[str, str]:
    """In blocks of the yardstick."""
    return {
        "device_kv": str(device * BLOCK_BYTES),
        "host_kv": str(host * BLOCK_BYTES),
        "disk_kv": str(disk * BLOCK_BYTES),
    }


def test_unique_prompts_are_no_case_for_offload() -> None:
    trace = trace_of([[f"{request}-{block}" for block in range(8)] for request in range(50)])
    found = advice(trace, **sizes(100, 1000, 10_000))
    assert (found["pilot"], found["reason"]) == ("no", "unique_prompts")
    assert "unique" in found["text"]


def test_a_working_set_that_fits_the_device_needs_no_tier() -> None:
    found = advice(document_prompts(documents=5, rounds=6), **sizes(100, 1000, 10_000))
    assert (found["pilot"], found["reason"]) == ("no", "fits_device")
    assert found["shares"]["device"] > 0.8


def test_what_returns_after_more_than_every_tier_holds_thrashes() -> None:
    # given 200 documents of 10 blocks read in turn, and tiers for at most 1,500 of the 2,000 blocks
    found = advice(document_prompts(documents=200, rounds=3), **sizes(100, 1000, 1500))
    assert (found["pilot"], found["reason"]) == ("no", "beyond_every_tier")
    assert found["shares"]["disk"] == 0
    assert found["shares"]["unlimited"] > 0.6
    assert "125 GiB" in found["text"], "what half of the reuse takes: all 2,000 blocks"


def test_a_path_slower_than_computing_is_no_case_for_offload() -> None:
    trace = document_prompts(documents=50, rounds=4)
    slow = advice(trace, **sizes(100, 1000, 10_000), path="1GB/s", prefill="20000/s")
    assert (slow["pilot"], slow["reason"]) == ("no", "slow_path")
    assert slow["seconds_per_token"]["host"] > slow["seconds_per_token"]["computed"] == pytest.approx(50e-6)


def test_reuse_that_only_a_tier_holds_is_worth_a_pilot_and_sizes_it() -> None:
    trace = document_prompts(documents=50, rounds=4)
    found = advice(trace, **sizes(100, 1000, 10_000), path="25GB/s", prefill="20000/s")
    assert (found["pilot"], found["reason"]) == ("yes", "worth_it")
    assert found["shares"]["device"] == 0
    assert found["shares"]["host"] == found["shares"]["unlimited"] > 0.7
    assert 490 * BLOCK_BYTES <= found["sizes_bytes"]["host"] <= 1000 * BLOCK_BYTES
    assert "disk" not in found["sizes_bytes"], "it would bring nothing more"


def test_a_disk_is_advised_where_the_host_is_too_small_and_its_path_pays() -> None:
    trace = document_prompts(documents=200, rounds=3)
    found = advice(trace, **sizes(100, 1000, 10_000), disk_path="10GB/s", prefill="20000/s")
    assert (found["pilot"], found["reason"]) == ("yes", "worth_it")
    assert found["sizes_bytes"]["disk"] >= 1990 * BLOCK_BYTES
    slow = advice(trace, **sizes(100, 1000, 10_000), disk_path="1GB/s", prefill="20000/s")
    assert slow["reason"] == "slow_path"


def test_a_disk_hit_costs_the_read_and_then_the_load_as_in_a_plan() -> None:
    """Given paths of which each alone is faster than computing and both together are not, then the disk is slow."""
    wishes = {"path": "4GB/s", "disk_path": "4GB/s", "prefill": "20000/s"}
    found = advice(document_prompts(documents=200, rounds=3), **sizes(100, 1000, 10_000), **wishes)
    seconds = found["seconds_per_token"]
    assert seconds["host"] < seconds["computed"] < seconds["disk"]
    assert seconds["disk"] == pytest.approx(2 * seconds["host"])
    assert found["reason"] == "slow_path"
    setting = make_setting(Wishes(**wishes))
    costs = assumed_costs(setting, block_tokens=SIZE, block_bytes=BLOCK_BYTES).costs
    assert setting.load_s("disk") == pytest.approx((costs.load_block + costs.read_block) / SIZE)


def test_a_path_that_is_hardly_faster_than_computing_is_no_case_for_offload() -> None:
    """Given loads that take 97 % of what computing takes, then all the reuse there is saves 3 % of the time."""
    trace = document_prompts(documents=50, rounds=40)
    wishes = {"path": f"{131_072 * 20_000 / 0.97:.0f}", "prefill": "20000/s"}
    found = advice(trace, **sizes(100, 1000, 10_000), **wishes)
    assert found["shares"]["host"] > 0.95
    assert found["seconds_per_token"]["host"] < found["seconds_per_token"]["computed"]
    assert (found["pilot"], found["reason"]) == ("no", "slow_path")
    assert "hardly faster" in found["text"]
    assert "2.9% of its time" in found["text"]


def test_a_disk_without_a_host_tier_serves_nothing() -> None:
    found = advice(document_prompts(documents=50, rounds=4), **sizes(100, 0, 10_000))
    assert found["shares"]["disk"] == found["shares"]["device"] == 0
    assert (found["pilot"], found["reason"]) == ("no", "beyond_every_tier")


def test_most_reuse_on_the_device_is_not_all_where_the_rest_is_most_of_the_prefill() -> None:
    """Given a prompt that everybody sends and documents that come back later, of all reuse the device has 96 %."""
    hot = [f"hot-{block}" for block in range(10)]
    cold = [[f"{d}-{block}" for block in range(10)] for _ in range(4) for d in range(50)]
    found = advice(trace_of([path for each in cold for path in (each, *[hot] * 19)]), **sizes(100, 1000, 10_000))
    shares = found["shares"]
    assert shares["device"] > 0.95 * shares["unlimited"]
    assert shares["host"] - shares["device"] > 0.7 * (1 - shares["device"])
    assert (found["pilot"], found["reason"]) == ("yes", "worth_it")


KINDS_OF_TRAFFIC = {
    "unique": trace_of([[f"{request}-{block}" for block in range(8)] for request in range(60)]),
    "little": trace_of([["s", *(f"{request}-{block}" for block in range(11))] for request in range(60)]),
    "small set": document_prompts(documents=8, rounds=6),
    "medium set": document_prompts(documents=40, rounds=4),
    "large set": document_prompts(documents=150, rounds=3),
    "mixture": trace_of(
        [
            path
            for turn in range(400)
            for path in (
                [f"d{turn % 30}-{block}" for block in range(10)],
                [f"once{turn}-{block}" for block in range(6)],
                [f"often{turn % 3}-{block}" for block in range(4)],
            )
        ]
    ),
}


@pytest.mark.parametrize("kind", KINDS_OF_TRAFFIC)
@pytest.mark.parametrize("in_blocks", [(100, 1000, 10_000), (100, 200, 800), (100, 0, 10_000), (3000, 9000, 9000)])
@pytest.mark.parametrize("path", ["0.5GB/s", "2.3GB/s", "2.7GB/s", "4GB/s", "50GB/s"])
@pytest.mark.parametrize("disk_path", ["1GB/s", "5GB/s", "100GB/s"])
def test_a_yes_is_said_exactly_where_hits_save_time_that_a_measurement_can_see(
    kind: str, in_blocks: tuple[int, int, int], path: str, disk_path: str
) -> None:
    found = advice(KINDS_OF_TRAFFIC[kind], **sizes(*in_blocks), path=path, disk_path=disk_path, prefill="20000/s")
    shares, costs = found["shares"], found["seconds_per_token"]
    from_host, from_disk = shares["host"] - shares["device"], shares["disk"] - shares["host"]
    saved = from_host * max(0, 1 - costs["host"] / costs["computed"])
    saved += from_disk * max(0, 1 - costs["disk"] / costs["computed"])
    pays = saved / (1 - shares["device"]) >= 0.05 and shares["unlimited"] >= 0.1
    assert found["pilot"] == ("yes" if pays else "no"), found["text"]
    if pays:
        assert found["sizes_bytes"]["host"] > 0
        assert f"{saved / (1 - shares['device']):.0%} of the time of that prefill" in found["text"]


def test_what_the_user_says_is_no_assumption() -> None:
    said = make_setting(Wishes(device_kv="40GiB", host_kv="1TiB", disk_kv="4TiB", path="50GB/s", prefill="1000/s"))
    assert (said.device_bytes, said.path_bytes_per_s, said.recompute_s) == (40 * 2**30, 50e9, 1e-3)
    assert [note.split(":")[0] for note in said.assumptions] == ["model", "reads from disk"]


def test_more_gpus_are_assumed_for_a_model_that_one_does_not_hold() -> None:
    large = make_setting(Wishes(model="Llama-3.3-70B"))
    assert large.geometry.tensor_parallel == 4
    assert 0 < large.device_bytes < 4 * 80 * 2**30


@pytest.mark.parametrize(
    ("wishes", "what"),
    [
        ({"model": "no-such-model"}, "--model: 'no-such-model' is neither"),
        ({"host_kv": "many"}, "--host-kv: "),
        ({"device_kv": "-1GiB"}, "--device-kv: a size cannot be negative"),
        ({"path": "0GB/s"}, "--path: a bandwidth is above zero"),
        ({"prefill": "0/s"}, "--prefill: tokens per second are above zero"),
        ({"kv_dtype": "int3"}, "'int3'"),
    ],
)
def test_a_wrong_wish_is_named(wishes: dict[str, str], what: str) -> None:
    with pytest.raises(InputError, match=what):
        make_setting(Wishes(**wishes))


def test_a_model_without_kv_is_told(tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2}
    heads = {"num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "linear", **layers, **heads}))
    with pytest.raises(InputError, match="keeps no KV of its tokens") as raised:
        make_setting(Wishes(model=str(config)))
    assert "config.json" in str(raised.value)


def test_a_path_of_a_byte_a_second_costs_no_more_than_a_year_a_block() -> None:
    setting = make_setting(Wishes(path="1B/s", disk_path="1B/s"))
    costs = assumed_costs(setting, block_tokens=SIZE, block_bytes=2**30).costs
    assert costs.load_block == costs.store_block == costs.read_block == LONGEST_S
