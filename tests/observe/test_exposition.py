"""The exposition parser: what the client library reads it reads, and no text at all makes it fail."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvbench.observe.canonical import FAMILIES, canonical, parse_engine
from kvbench.observe.exposition import Exposition, Sample, looks_like_exposition, parse
from tests.observe.pages import TEXT, page

Samples = dict[str, list[tuple[str, dict[str, str], float]]]


def read(exposition: Exposition) -> Samples:
    return {name: [tuple(sample) for sample in samples] for name, samples in exposition.families.items()}  # type: ignore[misc]


def library(text: str) -> Samples:
    """What the client library's own parser makes of a text."""
    return {
        family.name: [(s.name, s.labels, float(s.value)) for s in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_a_declared_family_without_a_sample_is_zero_and_an_absent_one_is_unsupported() -> None:
    exposition = parse(TEXT)
    assert exposition.total("vllm:kv_offload_load_bytes") == 0
    assert exposition.total("vllm:kv_offload_store_bytes") is None
    assert exposition.total("vllm:prompt_tokens") == 42
    assert exposition.total("vllm:prompt_tokens", engine="1") == 30
    assert exposition["vllm:kv_offload_load_bytes"] == ()


def test_a_sample_that_nobody_declared_is_unsupported() -> None:
    assert "other_metric" not in parse(TEXT)
    assert "other_metric" not in parse(TEXT, frozenset({"other_metric"}))


def test_only_the_wanted_families_are_read_buckets_on_request() -> None:
    wanted = frozenset({"vllm:prompt_tokens", "vllm:iteration_tokens_total"})
    names = [sample.name for sample in parse(TEXT, wanted)["vllm:iteration_tokens_total"]]
    assert set(parse(TEXT, wanted).families) == wanted
    assert names == ["vllm:iteration_tokens_total_bucket", "vllm:iteration_tokens_total_sum"]
    assert [s.name for s in parse(TEXT, wanted, buckets=False)["vllm:iteration_tokens_total"]] == names[1:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(TEXT, True), ("# TYPE a counter\n", True), ("<html>", False), ('[{"iter": 1}]', False), ("", False)],
)
def test_a_page_or_json_is_no_exposition(text: str, expected: bool) -> None:
    assert looks_like_exposition(text) is expected


@pytest.mark.shared
def test_every_captured_page_reads_as_the_client_library_reads_it(shared_dir: Path) -> None:
    files = sorted((shared_dir / "facts" / "vllm-0.32.0").glob("*.prom"))
    assert len(files) > 20
    for file in files:
        text = file.read_text()
        expected = library(text)
        everything = parse(text)
        assert (read(everything), everything.faults) == (expected, ()), file.name
        chosen = parse(text, FAMILIES)
        assert read(chosen) == {name: expected[name] for name in FAMILIES & expected.keys()}
        without = parse(text, FAMILIES, buckets=False)
        for name, samples in chosen.families.items():
            kept = [sample for sample in samples if not sample.name.endswith("_bucket")]
            assert sorted(map(repr, without[name])) == sorted(map(repr, kept))


LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,6}", fullmatch=True),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    max_size=3,
)
NUMBERS = st.floats() | st.integers(-(10**20), 10**20)


@st.composite
def pages(draw: st.DrawFn) -> str:
    """A page as a server may write it, of few names so that they collide."""
    lines = []
    for name in draw(st.lists(st.sampled_from(["a", "b:c", "d_total", "e_sum"]), unique=True, max_size=4)):
        kind = draw(st.sampled_from(["gauge", "untyped"]))
        lines += [f"# HELP {name} {draw(st.sampled_from(['', 'Some {words} here.']))}", f"# TYPE {name} {kind}"]
        for labels in draw(st.lists(LABELS, max_size=4, unique_by=lambda labels: tuple(sorted(labels.items())))):
            lines.append(
                name + written(labels) + " " + draw(NUMBERS.map(str)) + draw(st.sampled_from(["", " 1234567"]))
            )
    return "".join(line + "\n" for line in lines)


def written(labels: dict[str, str]) -> str:
    if not labels:
        return ""

    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pages())
def test_a_page_with_any_labels_reads_as_the_client_library_reads_it(text: str) -> None:
    """But for line ends: to the library more than `\\n` may end a line."""
    found = parse(text)
    assert found.faults == ()
    if "\r" not in text and text.count("\n") == len(text.splitlines()):
        expected = library(text)
        assert {name: [repr(s) for s in samples] for name, samples in read(found).items()} == {
            name: [repr(s) for s in samples] for name, samples in expected.items()
        }


def test_labels_may_hold_quotes_newlines_braces_and_line_ends_of_other_kinds() -> None:
    text = page("gauge", "a", (r'{x="q\"uo\\te",y="new\nline",z="} 1 {",w="a' + "\u2028\x0b\x85" + r'b"}', "2"))
    labels = {"x": 'q"uo\\te', "y": "new\nline", "z": "} 1 {", "w": "a\u2028\x0b\x85b"}
    assert parse(text)["a"] == (Sample("a", labels, 2.0),)


@pytest.mark.parametrize(
    "line",
    [
        'a{x="1"} 3',
        'a {x="1"} 3',
        'a\t{x="1"}\t3',
        '  a{x="1"} 3',
        'a{ x = "1" , } 3',
        'a{x="1"} 3 1700000000000',
        'a{x="1"} 3 1.7e9',
        'a{x="1"} 3 # {trace="}"} 0.5 1700000000.25',
        'a{x="1"} 3 1700000000.25 # {trace="a # b"} 0.5',
        'a{x="1"} 3.0\r',
    ],
)
def test_blanks_timestamps_and_exemplars_change_nothing(line: str) -> None:
    text = f"# TYPE before gauge\nbefore 1\n# TYPE a gauge\n{line}\n# TYPE after gauge\nafter 1\n"
    assert parse(text)["a"] == (Sample("a", {"x": "1"}, 3.0),)
    assert parse(text, frozenset({"a"}))["a"] == (Sample("a", {"x": "1"}, 3.0),)


@pytest.mark.parametrize("line", ["a 3", "a\t3", " a 3", "a{} 3", 'a 3 # {trace="1"} 1'])
def test_a_sample_may_have_no_labels(line: str) -> None:
    assert parse(page("gauge", "a") + line + "\n")["a"] == (Sample("a", {}, 3.0),)


def test_values_are_numbers_of_the_format() -> None:
    lines = [(f'{{n="{n}"}}', n) for n in ("1e3", "+Inf", "-Inf", "NaN", "-0.5")]
    values = [sample.value for sample in parse(page("gauge", "a", *lines))["a"]]
    assert values[:3] == [1000.0, math.inf, -math.inf]
    assert math.isnan(values[3])
    assert values[4] == -0.5


@pytest.mark.parametrize(
    "line",
    [
        *("a", "a{", 'a{x="1"}', 'a{x="1} 2', 'a{x="1",x="2"} 3', "a{5", "a 1_000", "a ١٢", "a 0x", "a 1 2 3"),
        *("a 1 e9", "a 1 .", "a 1 now"),
    ],
)
def test_a_line_that_cannot_be_read_takes_its_family_with_it_and_no_other(line: str) -> None:
    """A part of a sum would pass for the whole."""
    exposition = parse(page("counter", "b_total", ("", "7")) + page("counter", "a", ('{y="0"}', "1")) + line + "\n")
    assert "a" not in exposition
    assert exposition.unread == {"a"}
    assert len(exposition.faults) == 1
    assert exposition.faults[0].startswith("a: cannot read ")
    assert exposition.total("b") == 7


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("{}", "{7"),
        ('{x="1"}', '{x="1""} 7'),
        ('{x="1",y="2"}', '{x="1",y="2} 7'),
        ('{x="1",y="2"}', '{x="1",x="2"} 7'),
        ('{x="1"}', '{x="\\"} 7'),
    ],
)
def test_labels_that_are_none_are_a_fault_whatever_was_read_before(good: str, bad: str) -> None:
    exposition = parse(f"# TYPE a counter\na_total{good} 1\n# TYPE b counter\nb_total{bad}\n")
    assert exposition.total("a") == 1
    assert "b" not in exposition
    assert exposition.faults == (f"b: cannot read {'b_total' + bad!r}",)


def test_a_series_that_comes_twice_counts_once_and_is_a_fault_where_the_values_differ() -> None:
    once, other = ('{x="1",y="2"}', "5"), ('{y="2",x="1"}', "6")
    again = ('{y="2",x="1"}', "5")
    assert parse(page("counter", "a_total", once, again)).total("a") == 5
    exposition = parse(page("counter", "a_total", once, other))
    assert exposition.total("a") is None
    assert exposition.faults == ("a: the same series twice with different values",)


def test_lines_outside_their_group_are_found() -> None:
    """Against the format, but there are exporters that write so; nothing of it may pass for zero."""
    text = (
        "# TYPE a_total counter\n# TYPE h histogram\n# TYPE b gauge\n# HELP c C.\n# TYPE c gauge\n"
        'a_total{e="0"} 1\nb{e="0"} 2\nh_sum{e="0"} 3\nc 1\na_total{e="1"} 10\nb{e="1"} 20\nh_sum{e="1"} 30\n'
    )
    for buckets in (True, False):
        found = parse(text, frozenset({"a", "b", "h"}), buckets=buckets)
        assert [found.total(name) for name in ("a", "b", "h")] == [11, 22, 33]


def test_several_families_of_the_same_beginning_stay_apart() -> None:
    text = (
        page("gauge", "a_created", ("", "5"))
        + page("counter", "a_total", ("", "1"))
        + page("gauge", "a_b", ("", "3"))
    )
    found = parse(text)
    assert {name: found.total(name) for name in found.families} == {"a": 1, "a_created": 5, "a_b": 3}


OPEN_METRICS = """\
# HELP vllm:prompt_tokens Number of prefill tokens.
# TYPE vllm:prompt_tokens counter
# UNIT vllm:prompt_tokens
vllm:prompt_tokens_total{engine="0"} 12.0 1700000000.25 # {trace_id="a \\"}\\" 1"} 3.0 1.7e9
vllm:prompt_tokens_created{engine="0"} 1.7e+09
vllm:prompt_tokens_total{engine="1"} 30
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 3 # {trace_id="b"} 0.4
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4
vllm:time_to_first_token_seconds_count{engine="0"} 4
vllm:time_to_first_token_seconds_sum{engine="0"} 2.5
vllm:time_to_first_token_seconds_created{engine="0"} 1.7e9
# EOF
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("buckets", [True, False])
def test_a_page_of_openmetrics_says_what_one_of_text_says(end: str, *, buckets: bool) -> None:
    """Its counters are declared without `_total`, and have their creation, timestamps and exemplars beside them."""
    exposition = parse(OPEN_METRICS.replace("\n", end), FAMILIES, buckets=buckets)
    ttft = "vllm:time_to_first_token_seconds"
    assert exposition.faults == ()
    assert [exposition.total("vllm:prompt_tokens", **labels) for labels in ({}, {"engine": "1"})] == [42, 30]
    parts = ["_bucket", "_bucket", "_count", "_sum"] if buckets else ["_count", "_sum"]
    assert [(s.name.removeprefix(ttft), s.value) for s in exposition[ttft]][-2:] == [("_count", 4), ("_sum", 2.5)]
    assert [s.name.removeprefix(ttft) for s in exposition[ttft]] == parts


@pytest.mark.shared
def test_a_captured_page_with_other_line_ends_reads_the_same(shared_dir: Path) -> None:
    text = (shared_dir / "facts" / "vllm-0.32.0" / "tiering-after-load.prom").read_text()
    assert parse(text.replace("\n", "\r\n")) == parse(text)


CUT = (
    "# TYPE b_total counter\nb_total 7\n"
    '# TYPE a_total counter\na_total{engine="0"} 10\na_total{engine="1"} 25\n'
    '# TYPE a_gauge gauge\na_gauge{engine="0"} 31\n'
)


@pytest.mark.parametrize("end", range(len(CUT) + 1))
def test_of_a_page_that_ends_inside_a_line_nothing_that_it_was_telling_is_taken(end: int) -> None:
    """Half a number is a number, and a family without its second rank would be a reset."""
    text = CUT[:end]
    whole, part = parse(CUT), parse(text)
    for family, samples in part.families.items():
        assert set(map(str, samples)) <= set(map(str, whole[family])), "no other number than that of the whole page"
    if last := text.rpartition("\n")[2]:
        telling = last.removeprefix("# TYPE ") if last.startswith("#") else text.rpartition("# TYPE ")[2]
        assert telling.split(" ")[0].removesuffix("_total") not in part.families


def test_a_long_line_of_nothing_takes_no_time() -> None:
    for nothing in ('a{x="' + "\\" * 50_000, "a{" + 'x="1",' * 20_000, "a{" + '"' * 50_000, "a" + " " * 50_000):
        assert parse(page("gauge", "a") + nothing + "\n").total("a") in (None, 0)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.text(max_size=80)
    | st.builds(lambda at, junk: TEXT[:at] + junk + TEXT[at:], st.integers(0, len(TEXT)), st.text(max_size=9))
    | st.builds(lambda one, other: TEXT[:one] + TEXT[other:], st.integers(0, len(TEXT)), st.integers(0, len(TEXT)))
    | st.binary(max_size=80).map(lambda body: body.decode("utf-8", "replace"))
)
def test_any_text_gives_samples_of_known_names(text: str) -> None:
    samples = canonical(parse_engine(text))
    assert {sample.name for sample in samples} <= {sample.name for sample in canonical(parse_engine(TEXT))}
    assert all(math.isfinite(sample.value) for sample in samples)
    parse(text)
