"""`kvbench analyze`: the reference numbers of a trace as one document, and what is wrong told with its place."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from unittest import mock

import pytest

from kvbench.report.trace_view import trace_view
from tests.cli.invoke import kvbench_here

HAND = [(0, "abc"), (10, "abd"), (30, "abc"), (31, "xyz"), (61, "ab"), (62, "abcq")]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The hand-checked trace."""
    path = tmp_path / "tiny.jsonl"
    records = [
        {"timestamp": at * 1000, "input_length": 64 * len(ids), "output_length": 1, "hash_ids": list(ids)}
        for at, ids in HAND
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_one_document_with_the_reference_numbers(trace: Path) -> None:
    answer = kvbench_here("analyze", trace, "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    assert document["block_size"] == 64
    assert document["ideal"]["keep"]["hit_blocks"] == 10
    hits = {
        point["capacity_blocks"]: point["hit_blocks"]
        for point in document["lru_request_stream"]["keep_all"]["points"]
    }
    assert hits == {1: 3, 2: 6, 3: 6, 4: 8, 5: 9, 6: 10, 7: 10, 8: 10}
    keys = {"basic", "reuse_time_s", "flat_stack_distance", "arrival_depth", "ttl", "hierarchy"}
    assert keys <= document.keys()


def test_options_say_what_is_looked_at(trace: Path) -> None:
    options = ["--capacities", "2,5", "--hierarchy", "device=1,host=4", "--inclusion", "exclusive"]
    answer = kvbench_here("analyze", trace, *options, "--ttl", "1s,10s", "--tail", "vllm", "--json")
    document = json.loads(answer.out)
    assert [point["capacity_blocks"] for point in document["flat_stack_distance"]["lru"]] == [2, 5]
    assert [(entry["capacities"], entry["mode"], entry["tail"]) for entry in document["hierarchy"]] == [
        ([1, 4], "exclusive", "vllm")
    ]
    assert [entry["ttl_s"] for entry in document["ttl"]] == [1, 10]


def test_the_host_tier_may_evict_by_arc(trace: Path) -> None:
    tiers = ["--hierarchy", "host=3,disk=20"]
    document = json.loads(kvbench_here("analyze", trace, *tiers, "--policy", "arc", "--json").out)
    assert {(entry["mode"], *entry["policies"]) for entry in document["hierarchy"]} == {
        ("inclusive_touch_all", "arc", "lru"),
        ("inclusive_filtered", "arc", "lru"),
    }
    usual = json.loads(kvbench_here("analyze", trace, "--policy", "arc", "--json").out)
    assert all(entry["policies"][:2] == ["lru", "arc"] for entry in usual["hierarchy"])
    plain = json.loads(kvbench_here("analyze", trace, "--json").out)
    assert not any("policies" in entry for entry in plain["hierarchy"])


def test_a_block_size_that_contradicts_the_lists_is_told(trace: Path) -> None:
    """Given ids of 64 tokens each, when they are said to be 16, then the answer does not pass as one."""
    said = json.loads(kvbench_here("analyze", trace, "--block-tokens", "16", "--json").out)
    assert any(
        "how many tokens an id stands for: at 16, only 0% of the requests" in each for each in said["unknown"]
    )
    right = json.loads(kvbench_here("analyze", trace, "--block-tokens", "64", "--json").out)
    assert not any("stands for" in each for each in right["unknown"])
    shown = kvbench_here("analyze", trace, "--block-tokens", "16", env={"COLUMNS": "250"}).out
    assert "not known from this trace: how many tokens an id stands for" in shown


def test_people_see_tables(trace: Path) -> None:
    answer = kvbench_here("analyze", trace)
    assert answer.code == 0
    assert "18 references to 8 blocks of 64 tokens" in answer.out
    assert "One LRU cache" in answer.out


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--tail", "kept"], "--tail: 'kept' is none of keep, drop, vllm"),
        (["--inclusion", "both"], "--inclusion: 'both' is none of exclusive"),
        (["--capacities", "1,x"], "--capacities: expected a number of blocks, got 'x'"),
        (["--capacities", "0"], "--capacities: expected a number of blocks"),
        (["--hierarchy", "gpu=3"], "--hierarchy: expected each tier once"),
        (["--hierarchy", "device=3,device=4"], "--hierarchy: expected each tier once"),
        (["--ttl", "soon"], "--ttl: "),
        (["--policy", "fifo"], "--policy: 'fifo' is none of lru, arc"),
        (["--policy", "arc", "--inclusion", "exclusive"], "--policy: an exclusive host tier"),
        (["--policy", "arc", "--hierarchy", "device=1,disk=4"], "--policy: arc is the host tier's"),
        (["--format", "csv"], "no trace format is called 'csv'"),
        (["--block-tokens", "9" * 20], "an id cannot stand for 99999999999999999999 tokens"),
        (["--model", "m" * 5000], "is neither a model's directory"),
        (["--path", "1e-310B/s"], "--path: a bandwidth is above zero"),
        (["--prefill", "1e-320/s"], "--prefill: tokens per second are above zero"),
    ],
)
def test_a_wrong_option_is_named(trace: Path, options: list[str], what: str) -> None:
    answer = kvbench_here("analyze", trace, *options, "--json")
    assert answer.code == 2
    error = json.loads(answer.out)
    assert error["exit_code"] == 2
    assert what in error["error"]


def test_a_trace_without_identity_says_so(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,480,10\n")
    answer = kvbench_here("analyze", path)
    assert answer.code == 0
    assert "Pilot: unknown" in answer.out
    assert "not known from this trace: which blocks are equal" in answer.out
    document = json.loads(kvbench_here("analyze", path, "--json").out)
    assert document["basic"]["input_tokens"] == 480
    assert document["ideal"] is None


def test_a_dry_run_shows_the_reuse_of_a_replay(trace: Path, tmp_path: Path) -> None:
    workload = tmp_path / "workload.yaml"
    workload.write_text(
        f"name: w\narrivals: {{trace: {{path: {trace.name}, scale: 2}}}}\nphases: [{{name: play, for: 70s}}]\n"
    )
    rules = tmp_path / "rules.yaml"
    rules.write_text("name: r\nevidence: [{id: promoted, metric: promoted_tokens, min: 1}]\n")
    arms = ["cpu/baseline", "cpu/host-and-disk", "--workload", workload, "--rules", rules, "--dry-run"]
    answer = kvbench_here("compare", *arms, "--json")
    assert answer.code == 0, answer.text
    replay = json.loads(answer.out)["replay"]
    assert (replay["requests"], replay["block_tokens"], replay["played_block_tokens"]) == (6, 64, 128)
    assert (replay["reuse"]["ideal_hit_blocks"], replay["reuse"]["total_blocks"]) == (10, 18)
    assert json.loads(answer.out)["schedule"]["ideal_reuse_share"] == pytest.approx(8 / 18)
    assert "reuse at the trace's own blocks: 55.6% of 18 whole blocks" in kvbench_here("compare", *arms).out


def test_a_page_needs_nothing_else_and_shows_no_markup_of_a_file(trace: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>.jsonl"
    hostile.write_text(trace.read_text())
    page = tmp_path / "page.html"
    answer = kvbench_here("analyze", hostile, "--html", page, "--json")
    assert answer.code == 0, answer.text
    assert json.loads(answer.out)["advice"]["pilot"] in ("yes", "no")
    text = page.read_text()
    assert "<img" not in text
    assert "&lt;img" in text
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!#|data:)", text), "nothing is fetched"
    assert text.count('class="chart"') == 2
    assert kvbench_here("analyze", trace, "--html", tmp_path / "none" / "page.html").code == 2


def test_a_page_never_takes_the_place_of_its_trace(trace: Path, tmp_path: Path) -> None:
    content = trace.read_bytes()
    link = tmp_path / "link.jsonl"
    link.symlink_to(trace)
    for page, source in ((trace, trace), (link, trace), (trace, link)):
        refused = kvbench_here("analyze", source, "--html", page, "--json")
        assert refused.code == 2
        assert "would replace the trace" in json.loads(refused.out)["error"]
        assert trace.read_bytes() == content


@pytest.mark.parametrize("page", [False, True])
def test_people_read_reuse_distances_and_by_which_rule_blocks_count(
    trace: Path, tmp_path: Path, page: bool
) -> None:
    """Given the terminal or the page, then both distances stand there, and each table says what it counts."""
    html = tmp_path / "page.html"

    def shown(*options: str) -> str:
        out = kvbench_here("analyze", trace, "--html", html, *options, env={"COLUMNS": "250"}).out
        return unescape(re.sub(r"<[^>]*>", " ", html.read_text())) if page else out

    document = json.loads(kvbench_here("analyze", trace, "--json").out)
    told = shown()
    for key, words in (
        ("flat_stack_distance", "different other blocks since a block's last use"),
        ("arrival_depth", "blocks used more recently when its request comes"),
    ):
        row = next(line for line in told.splitlines() if words in line)
        for percentile in ("p50", "p90"):
            assert f" {document[key]['percentiles'][percentile]:,.0f} " in row
    told = " ".join(told.split())
    assert "between two uses lie 2 (16 MiB) other blocks in half" in told
    assert "Reuse distance in blocks: a partial last block counts like a whole one" in told
    assert "One LRU cache: whole blocks count, and at least the last token is computed, as in vLLM" in told
    assert "each an LRU: a partial last block counts like a whole one" in told
    other = " ".join(shown("--tail", "vllm", "--policy", "arc").split())
    assert "tier 2 by ARC, the others LRUs: whole blocks count, and at least" in other
    assert "inclusive touch all (as vLLM)" in other


def test_the_terminal_the_page_and_the_document_say_the_same(trace: Path, tmp_path: Path) -> None:
    """Given one document, then every cell of its tables, its facts and its advice stand in both other forms."""
    html = tmp_path / "page.html"
    view = trace_view(json.loads(kvbench_here("analyze", trace, "--json").out))
    out = kvbench_here("analyze", trace, "--html", html, env={"COLUMNS": "1000"}).out
    on_terminal = [
        tuple(cell.strip() for cell in line.split("│")[1:-1]) for line in out.splitlines() if "│" in line
    ]
    page = html.read_text()
    on_page = [
        tuple(unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL))
        for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    ]
    rows = [row for sheet in view.sheets for row in sheet.rows]
    assert len(rows) > 30
    assert on_terminal == rows
    assert [row for row in on_page if row] == rows
    for words in (view.advice, *view.facts, *view.assumptions, *view.unknown):
        assert words in out
        assert words in unescape(page)


def test_equal_hierarchies_are_shown_once(trace: Path) -> None:
    shown = [line for line in kvbench_here("analyze", trace).out.splitlines() if "exclusive" in line]
    assert len(shown) == len(set(shown)) == 4, "1 + 1, 1 + 4, 1 + 1 + 2 and 1 + 1 + 4 blocks"


def test_people_read_who_shares_and_whether_a_pilot_is_worth_it(trace: Path) -> None:
    out = kvbench_here("analyze", trace, "--host-kv", "1GiB", env={"COLUMNS": "160"}).out
    for part in (
        "Pilot: no",
        "Who shares",
        "Prefixes that save most",
        "store_threshold",
        "Llama-3.1-8B",
        "Assumed",
    ):
        assert part in out
    assert "host tier" not in out.split("Assumed")[1], "what the user says is no assumption"


def test_tiers_that_take_long_to_play_are_left_out_of_a_large_trace_unless_asked_for(trace: Path) -> None:
    with mock.patch("kvbench.plan.analysis.PLAYED_RUNS", 1):
        document = json.loads(kvbench_here("analyze", trace, "--json").out)
        asked = json.loads(kvbench_here("analyze", trace, "--inclusion", "inclusive_filtered", "--json").out)
    assert {entry["mode"] for entry in document["hierarchy"]} == {"exclusive", "inclusive_touch_all"}
    assert any("inclusive_filtered" in missing for missing in document["unknown"])
    assert {entry["mode"] for entry in asked["hierarchy"]} == {"inclusive_filtered"}


def test_bad_lines_are_told_and_left_out(trace: Path) -> None:
    trace.write_text("what is this\n" + trace.read_text())
    document = json.loads(kvbench_here("analyze", trace, "--json").out)
    assert document["basic"]["requests"] == 6
    assert document["skipped_lines"]["count"] == 1
    assert document["skipped_lines"]["first"][0]["line"] == 1
    assert "1 lines could not be read" in kvbench_here("analyze", trace, env={"COLUMNS": "200"}).out
    assert kvbench_here("analyze", trace, "--bad-lines", "0").code == 2
