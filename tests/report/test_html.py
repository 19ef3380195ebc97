"""The HTML page: complete, self-contained, escaped, deterministic, and legible in both themes."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from kvbench.judge.verdict import Outcome
from kvbench.report.charts import DOT_LIMIT
from kvbench.report.data import ReportData
from tests.report.build import build
from tests.report.conftest import page_of

VOID = {"meta", "link", "img", "br", "hr", "input"}
ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Elements in order, with the text inside each; raises where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {[tag for tag, *_ in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, dict(attrs), [""])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), [""]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, _, text in self._open:
            text[0] += data

    def all(self, tag: str) -> Iterator[tuple[dict[str, str | None], str]]:
        return ((attrs, " ".join(text[0].split())) for name, attrs, text in self.elements if name == tag)

    @property
    def text(self) -> str:
        return next(self.all("body"))[1]


def test_the_page_says_all_that_the_verdict_says(each: ReportData) -> None:
    page = Page(page_of(each))
    verdict = each.verdict
    assert verdict.verdict.value in next(text for _, text in page.all("title"))
    for sentence in (*verdict.reasons, *verdict.not_tested, *each.warnings, *(rule.text for rule in verdict.rules)):
        assert " ".join(sentence.split()) in page.text
    headings = [text for _, text in page.all("h2")]
    expected = [
        "Rules",
        "Where prompt tokens came from",
        "Latency",
        "Over time",
        "Rounds",
        "Configuration",
        "Reproduce",
    ]
    assert [heading for heading in headings if heading in expected] == expected
    assert "kvbench report results/20260314T150926Z-demo" in page.text
    assert ("Disable the disk tier" in page.text) == (verdict.verdict is Outcome.NO_GO)


def test_the_page_has_every_chart(go: ReportData) -> None:
    titles = {attrs["aria-labelledby"]: None for attrs, _ in Page(page_of(go)).all("svg") if "chart" in str(attrs)}
    names = {str(name).split("-title")[0] for name in titles}
    rounds = {f"c1-sources-{k}-{role}" for k in (1, 2, 3) for role in ("baseline", "candidate")}
    assert (
        names
        == {"c1-effects", "c1-itl", "c1-ttft-0", "c1-ttft-1", "c1-dots-baseline", "c1-dots-candidate"} | rounds
    )


def test_every_chart_is_described_and_no_id_comes_twice(several: ReportData) -> None:
    page = Page(page_of(several))
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for attrs, text in page.all("svg"):
        if attrs.get("class") == "chart":
            assert attrs["role"] == "img"
            assert set(str(attrs["aria-labelledby"]).split()) <= set(ids)
            assert text
    hrefs = [str(attrs["href"]) for _, attrs, _ in page.elements if "href" in attrs]
    assert {href[1:] for href in hrefs if href.startswith("#")} <= set(ids)
    referenced = re.findall(r"url\(#([^)]+)\)", page_of(several))
    assert set(referenced) <= set(ids)


def test_the_page_needs_nothing_else(each: ReportData) -> None:
    page = Page(page_of(each))
    assert not [tag for tag, _, _ in page.elements if tag in ("script", "iframe", "object", "img", "base", "form")]
    for tag, attrs, _ in page.elements:
        assert not [name for name in attrs if name.startswith("on") or name in ("style", "src")]
        target = attrs.get("href") or attrs.get("xlink:href")
        assert target is None or target.startswith("#") or (tag == "link" and target == "data:,")
    assert "@import" not in page_of(each)
    assert "url(http" not in page_of(each)


def test_the_policy_allows_the_one_sheet_and_nothing_more(go: ReportData) -> None:
    html = page_of(go)
    (sheet,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    digest = b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = next(str(a["content"]) for a, _ in Page(html).all("meta") if a.get("http-equiv"))
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in policy


def test_foreign_text_stays_text(attacked: ReportData, no_go: ReportData) -> None:
    html = page_of(attacked)
    page, innocent = Page(html), Page(page_of(no_go))
    assert {tag for tag, _, _ in page.elements} <= {tag for tag, _, _ in innocent.elements}
    assert not [name for _, attrs, _ in page.elements for name in attrs if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff\uffff]", html)


def test_equal_data_gives_equal_bytes_in_any_process(no_go: ReportData) -> None:
    code = (
        "import hashlib; from tests.report.build import build; from kvbench.report.html import render_html;"
        "from kvbench.judge.verdict import Outcome;"
        "print(hashlib.sha256(render_html(build(Outcome.NO_GO)).encode()).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == hashlib.sha256(page_of(no_go).encode()).hexdigest()


def test_many_requests_keep_the_page_small_and_it_says_that_points_are_left_out() -> None:
    html = page_of(build(Outcome.GO, rounds=3, requests_a_round=1700))
    assert len(html.encode()) < 1_500_000
    told = re.search(r"(\d+) of (\d+) points drawn", html)
    assert told
    assert int(told[1]) <= DOT_LIMIT + 4 < int(told[2])
    assert f"Above {DOT_LIMIT} points" in html


def test_more_than_three_rounds_fold_away(go: ReportData) -> None:
    more = {
        arm: [*tables, *(dataclasses.replace(t, index=t.index + 3) for t in tables)]
        for arm, tables in go.rounds.items()
    }
    page = Page(page_of(dataclasses.replace(go, rounds=more)))
    assert [text for _, text in page.all("summary")] == ["3 more rounds"]


def test_several_candidates_have_a_section_each_the_worst_first(several: ReportData) -> None:
    page = Page(page_of(several))
    banners = [text for attrs, text in page.all("section") if "verdict" in str(attrs.get("class"))]
    assert [banner.split()[1] for banner in banners] == ["INVALID", "NO_GO", "GO"]
    assert next(text for _, text in page.all("title")).startswith("INVALID: disk-only")


def test_what_was_not_recorded_is_said_and_not_drawn(go: ReportData) -> None:
    bare = {
        arm: [dataclasses.replace(t, metrics=t.metrics.iloc[:0], tokens=t.tokens.iloc[:0]) for t in tables]
        for arm, tables in go.rounds.items()
    }
    assert (
        "Not recorded: the engine exports no counter of tokens by source."
        in Page(page_of(dataclasses.replace(go, rounds=bare))).text
    )
    empty = Page(page_of(dataclasses.replace(go, rounds={})))
    assert "No request of a measured phase was answered." in empty.text
    assert [attrs for attrs, _ in empty.all("svg") if attrs.get("class") == "chart"]  # effects need no tables


# ---- contrast: WCAG 2.1, relative luminance and contrast ratio


def luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_stand_out_in_both_themes(theme: int) -> None:
    sheet = (files("kvbench.report") / "page.css").read_text(encoding="utf-8")
    colour = dict(
        re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)[theme])
    )
    for ink in ("ink", "muted", "link", "pass", "fail", "unknown"):
        for ground in ("surface", "page", "raised"):
            assert contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)
    for tone, tint in (
        ("ink", "pass-tint"),
        ("ink", "fail-tint"),
        ("ink", "unknown-tint"),
        ("unknown", "unknown-tint"),
    ):
        assert contrast(colour[tone], colour[tint]) >= 4.5, (tone, tint)
    for mark in ("baseline", "candidate", "device", "host", "disk", "computed"):
        assert contrast(colour[mark], colour["surface"]) >= 3, mark
