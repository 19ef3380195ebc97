"""A trace becomes a schedule: its times, sessions, lengths and reuse; nothing of it is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.errors import InputError, NotSupportedYetError
from kvbench.plan.replay_reuse import check_reuse
from kvbench.spec.loading import load_workload
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_replay, build_schedule
from kvbench.workload.schedule import PlannedRequest, Segment
from kvbench.workload.storage import read_schedule, write_schedule
from kvbench.workload.traces.reading import read_trace
from tests.plan.test_truth import TRACES

BLOCK = 64
SESSION = [
    {"at": 0, "ids": [1, 2], "session_id": "a"},
    {"at": 4000, "ids": [1, 9], "session_id": "b"},
    {"at": 10_000, "ids": [1, 2, 3], "session_id": "a", "think_time_s": 6.0},
    {"at": 12_000, "ids": [1, 9, 10], "session_id": "b"},
]


def trace(folder: Path, requests: list[dict], tail: int = 0) -> Path:
    path = folder / "trace.jsonl"
    lines = []
    for request in requests:
        given = {"timestamp": request["at"], "hash_ids": request["ids"], "output_length": request.get("out", 20)}
        given["input_length"] = len(request["ids"]) * BLOCK + tail
        lines.append(json.dumps(given | {k: v for k, v in request.items() if k not in ("at", "ids", "out")}))
    path.write_text("\n".join(lines) + "\n")
    return path


def workload(path: Path, for_s: float = 100.0, more: dict | None = None, **source: object) -> Workload:
    return Workload.model_validate(
        {
            "name": "w",
            "arrivals": {"trace": {"path": str(path), "block_tokens": BLOCK, **source}},
            "phases": [{"name": "play", "for": for_s}],
            **(more or {}),
        }
    )


def planned(spec: Workload, round_index: int = 1) -> tuple[PlannedRequest, ...]:
    return build_schedule(
        spec, round_index, block_tokens=BLOCK, capacities_tokens=None, max_model_len=None
    ).requests


def test_a_later_turn_waits_where_the_trace_tells_a_pause_and_comes_at_its_own_time_elsewhere(
    tmp_path: Path,
) -> None:
    first, other, waits, own = planned(workload(trace(tmp_path, SESSION)))
    assert [request.session for request in (first, other, waits, own)] == [0, 1, 0, 1]
    assert [request.turn for request in (first, other, waits, own)] == [0, 0, 1, 1]
    assert (waits.intended_s, waits.continues, waits.think_s, waits.carries) == (None, first.id, 6.0, False)
    assert (own.intended_s, own.continues) == (12.0, None)
    assert [request.output_tokens for request in (first, other)] == [20, 20]


def test_speed_divides_times_and_pauses_and_think_scale_pauses_only(tmp_path: Path) -> None:
    requests = planned(workload(trace(tmp_path, SESSION), speed=2.0, more={"think_scale": 0.5}))
    assert [request.intended_s for request in requests] == [0.0, 2.0, None, 6.0]
    assert requests[2].think_s == 1.5


def test_every_request_can_come_at_its_own_time(tmp_path: Path) -> None:
    requests = planned(workload(trace(tmp_path, SESSION), sessions="times"))
    assert [request.intended_s for request in requests] == [0.0, 4.0, 10.0, 12.0]
    assert [request.session for request in requests] == [0, 1, 0, 1]


def test_equal_ids_are_equal_content_in_a_round_and_other_content_in_the_next(tmp_path: Path) -> None:
    spec = workload(trace(tmp_path, SESSION))
    first, other, again, _ = planned(spec)
    assert first.segments[0] == other.segments[0] == again.segments[0]
    assert first.segments[1] != other.segments[1]
    assert not {s.identity for r in planned(spec, 2) for s in r.segments} & {
        s.identity for r in planned(spec) for s in r.segments
    }
    assert planned(spec) == planned(spec)


def test_phases_cut_the_trace_by_time(tmp_path: Path) -> None:
    phases = [{"name": "warm", "for": "5s", "measured": False}, {"name": "play", "for": "6s"}]
    requests = planned(workload(trace(tmp_path, SESSION), more={"phases": phases}))
    assert [(request.phase, request.measured) for request in requests] == [
        ("warm", False),
        ("warm", False),
        ("play", True),
    ]


def test_a_limit_plays_the_beginning(tmp_path: Path) -> None:
    assert len(planned(workload(trace(tmp_path, SESSION), limit=2))) == 2


def test_batches_are_spread_over_their_grid_in_the_order_of_the_file(tmp_path: Path) -> None:
    batches = [{"at": at, "ids": [at + n]} for at in (0, 3000, 6000, 60_000) for n in range(4)]
    path = trace(tmp_path, batches)
    assert [r.intended_s for r in planned(workload(path))] == [0.0] * 4 + [3.0] * 4 + [6.0] * 4 + [60.0] * 4
    times = [request.intended_s or 0.0 for request in planned(workload(path, spread="batch"))]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    assert [int(time // 3.0) for time in times] == [0] * 4 + [1] * 4 + [2] * 4 + [20] * 4


def test_scale_makes_every_length_smaller_and_keeps_what_is_equal(tmp_path: Path) -> None:
    played = build_replay(
        workload(trace(tmp_path, SESSION, tail=32), scale=0.25), 1, capacities_tokens=None, max_model_len=None
    )
    assert (played.summary.block_tokens, played.summary.played_block_tokens) == (BLOCK, 16)
    lengths = played.schedule.prompt_tokens()
    assert lengths == [2 * 16 + 8, 2 * 16 + 8, 3 * 16 + 8, 3 * 16 + 8]
    assert {request.output_tokens for request in played.schedule.requests} == {5}


def test_the_schedule_has_the_reuse_of_the_trace(tmp_path: Path) -> None:
    played = build_replay(
        workload(trace(tmp_path, SESSION)), 1, capacities_tokens={"device": 2 * BLOCK}, max_model_len=None
    )
    reuse = played.summary.reuse
    assert reuse is not None
    assert (reuse.ideal_hit_blocks, reuse.total_blocks) == (1 + 2 + 2, 10)
    assert reuse.lru_hit_blocks == {"device": 1 + 1 + 1}


def test_a_schedule_with_other_reuse_is_refused(tmp_path: Path) -> None:
    recorded = read_trace(trace(tmp_path, SESSION), block_tokens=BLOCK)
    all_new = [(Segment(index, int(tokens)),) for index, tokens in enumerate(recorded.input_tokens)]
    with pytest.raises(InputError, match=r"0 of 10 blocks again .* instead of 5 of 10"):
        check_reuse(recorded, all_new, {})


def test_a_trace_without_identity_is_played_with_new_prompts(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,480,10\n2023-11-16 18:17:05.97,320,8\n"
    )
    played = build_replay(workload(path, scale=0.5), 1, capacities_tokens={"device": 999}, max_model_len=None)
    first, second = played.schedule.requests
    assert (first.own_prompt_tokens, second.own_prompt_tokens) == (240, 160)
    assert second.intended_s == pytest.approx(2.0)
    assert first.segments != second.segments
    assert played.summary.reuse is None


def test_classes_are_one_or_by_label(tmp_path: Path) -> None:
    requests = [{"at": 0, "ids": [1], "type": "chat"}, {"at": 9, "ids": [2], "type": "code"}]
    path = trace(tmp_path, requests)
    assert {request.class_ for request in planned(workload(path))} == {"trace"}
    one = {"classes": {"all-of-it": {"targets": {"ttft": "1s"}}}}
    assert {request.class_ for request in planned(workload(path, more=one))} == {"all-of-it"}
    two: dict = {"classes": {"chat": {}, "code": {}}}
    assert [request.class_ for request in planned(workload(path, classes="label", more=two))] == ["chat", "code"]
    with pytest.raises(InputError, match="write classes: label"):
        planned(workload(path, more=two))
    with pytest.raises(InputError, match="are called code, and no class of the workload is"):
        planned(workload(path, classes="label", more={"classes": {"chat": {}}}))


def test_what_cannot_be_played_is_told(tmp_path: Path) -> None:
    path = trace(tmp_path, SESSION)
    with pytest.raises(NotSupportedYetError, match="repeat together with a trace"):
        planned(workload(path, more={"repeat": 0.1}))
    with pytest.raises(InputError, match="a trace has none"):
        planned(workload(path, more={"prime": "each_prefix_once"}))
    with pytest.raises(InputError, match="scale"):
        build_schedule(workload(path), 1, block_tokens=None, capacities_tokens=None, max_model_len=100)
    with pytest.raises(InputError, match=r"none.jsonl: this trace cannot be read"):
        planned(workload(tmp_path / "none.jsonl"))


def test_the_path_is_relative_to_the_workloads_file_and_classes_may_be_left_out(tmp_path: Path) -> None:
    trace(tmp_path, SESSION)
    file = tmp_path / "workload.yaml"
    file.write_text(
        "name: w\narrivals: {process: trace, trace: {path: trace.jsonl, speed: 2}}\nphases: [{name: p, for: 10s}]\n"
    )
    spec = load_workload(file)
    assert spec.arrivals.trace is not None
    assert spec.arrivals.trace.path == tmp_path / "trace.jsonl"
    assert list(spec.classes) == ["trace"]
    assert Workload.model_validate_json(spec.model_dump_json(by_alias=True)) == spec


@pytest.mark.parametrize("key", ["turns", "suffix_tokens", "output_tokens", "weight"])
def test_lengths_of_a_class_have_no_effect_and_are_refused(tmp_path: Path, key: str) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(
        f"name: w\narrivals: {{trace: {{path: t.jsonl}}}}\nphases: [{{name: p, for: 10s}}]\nclasses:\n"
        f"  c: {{{key}: 3}}\n"
    )
    with pytest.raises(InputError, match=rf"workload.yaml:5: classes.c.{key}: has no effect: the trace says it"):
        load_workload(file)


def test_a_replay_is_stored_and_read_again(tmp_path: Path) -> None:
    schedule = build_replay(
        workload(trace(tmp_path, SESSION)), 1, capacities_tokens=None, max_model_len=None
    ).schedule
    write_schedule(schedule, tmp_path / "schedule.parquet")
    assert read_schedule(tmp_path / "schedule.parquet") == schedule


@pytest.mark.shared
@pytest.mark.parametrize("name", TRACES)
def test_reference_traces_are_played_with_their_reuse(shared_dir: Path, name: str) -> None:
    """Without any bound, and in an LRU of each size that the truth has."""
    path = shared_dir / "traces" / name
    truth = json.loads(path.with_name(name.partition(".")[0] + ".truth.json").read_text())
    ideal, lru = truth["ideal"], truth["lru_request_stream"]
    # The truth has no LRU of whole blocks alone (`drop`): it is that of all blocks where they are whole, and
    # elsewhere vLLM's, whose extra rule changes nothing there.
    whole = ideal["keep"] == ideal["drop"]
    assert whole or ideal["vllm"] == ideal["drop"]
    points = lru["keep_all" if whole else "vllm_all"]["points"]
    sizes = {str(point["capacity_blocks"]): point["capacity_blocks"] * truth["block_size"] for point in points}
    spec = Workload.model_validate(
        {"name": "w", "arrivals": {"trace": {"path": str(path)}}, "phases": [{"name": "p", "for": 1e6}]}
    )

    played = build_replay(spec, 1, capacities_tokens=sizes, max_model_len=None)

    assert played.summary.reuse is not None
    assert played.summary.reuse.ideal_hit_blocks == ideal["drop"]["hit_blocks"]
    assert played.summary.reuse.total_blocks == ideal["drop"]["total_blocks"]
    assert played.summary.reuse.lru_hit_blocks == {
        str(point["capacity_blocks"]): point["hit_blocks"] for point in points
    }
    assert sum(played.schedule.prompt_tokens()) == truth["basic"]["input_tokens"]
