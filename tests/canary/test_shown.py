"""How the gate's verdict is told: JSON, JUnit, Markdown, a terminal, and over HTTP."""

from __future__ import annotations

import io
import json
import re
import socket
import struct
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from kvbench.canary.judge import judge_canary
from kvbench.canary.serve import GateServer, parse_address, verdict_document
from kvbench.canary.verdict import CanaryVerdict, ProofPart, Rollback
from kvbench.dashboards import gate_series
from kvbench.errors import InputError, RunError
from kvbench.judge.verdict import Outcome
from kvbench.report.gate import GateView, render_gate_junit, render_gate_markdown, show_gate
from tests.canary.build import P99, SUSTAINED, Truth, group, observed, rules


def judged(slow: float = 0.001) -> CanaryVerdict:
    seconds = 900.0
    candidate = group("c|anary", Truth(slow=lambda t: slow), Truth(slow=lambda t: slow), seconds=seconds)
    base = group("stable", Truth(seed=2), seconds=seconds)
    return judge_canary(observed(candidate, base, seconds=seconds, asked=rules(P99, SUSTAINED)))


GO, NO_GO = judged(), judged(0.3)
ROLLED_BACK = NO_GO.model_copy(
    update={
        "rollback": Rollback(
            tier="host",
            hook_at=0.0,
            within_s=600.0,
            at=90.0,
            ended=False,
            tier_off=ProofPart(status="proven", after_s=30.0, text="the host tier is off"),
            baseline_back=ProofPart(status="waiting", text="TTFT is looked at in 20 s"),
        )
    }
)


def test_the_document_has_the_keys_of_every_verdict_and_its_window() -> None:
    document = verdict_document(NO_GO)
    assert {
        "schema",
        "verdict",
        "exit_code",
        "baseline",
        "candidate",
        "action",
        "rules",
        "sources",
        "rounds",
    } <= set(document)
    assert document["schema"] == 1
    assert set(document["window"]) == {"start", "end"}  # type: ignore[arg-type]
    assert {"rule", "kind", "status", "metric", "class", "limit", "text"} <= set(document["rules"][-1])  # type: ignore[index]
    json.dumps(document, allow_nan=False)


def test_junit_is_red_for_what_must_not_stay_and_skips_what_is_unknown() -> None:
    root = ET.fromstring(render_gate_junit(NO_GO, "c"))
    failed = {case.get("name") for case in root.iter("testcase") if case.find("failure") is not None}
    assert {"verdict", "sustained", "p99"} <= failed
    assert int(root.get("failures", "0")) == len(failed)
    assert int(root.get("tests", "0")) == len(list(root.iter("testcase")))
    assert ET.fromstring(render_gate_junit(GO, "c")).get("failures") == "0"


def test_markdown_is_a_summary_whose_cells_hold_foreign_text() -> None:
    text = render_gate_markdown(NO_GO, "c")
    assert text.startswith("## ✘ NO_GO")
    assert "c&#124;anary-0" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| candidate")}
    assert widths == {6}


def test_names_of_servers_are_no_markup() -> None:
    """A label's value is anybody's: an image of somebody else's, a link, a mention, a control code, another row."""
    foreign = "![x](http://evil/p.png) @all <b> \x1b[31m\n| x | `y"
    verdict = judge_canary(observed(group(foreign, Truth(), seconds=300.0), seconds=300.0, asked=rules(P99)))
    verdict = verdict.model_copy(update={"candidate": foreign, "reasons": [foreign]})
    text = render_gate_markdown(verdict, "c")
    assert not re.search(r"(?<!\\)!|(?<!\\)\[|http://|@|<b>|\x1b|(?<!\\)`", text.partition("\n")[2])
    assert {line.count("|") for line in text.splitlines() if line.startswith("| candidate")} == {6}
    root = ET.fromstring(render_gate_junit(verdict, foreign.partition(" ")[0]))
    assert root[0].get("name", "").startswith("![x](http://evil/p.png) @all <b> \N{REPLACEMENT CHARACTER}[31m")
    assert json.loads(json.dumps(verdict_document(verdict)))["candidate"] == foreign


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (GO, "GO: canary may stay"),
        (NO_GO, "NO_GO: canary must not stay"),
        (ROLLED_BACK, "✔ proven 30 s after the hook: the host tier is off"),
    ],
)
def test_a_terminal_shows_the_verdict_first(verdict: CanaryVerdict, words: str) -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, no_color=True)
    with GateView(console) as view:
        view.look(verdict, None)
        view.look(verdict, "http://p cannot be reached")
    show_gate(console, verdict)
    text = out.getvalue()
    assert words in text
    assert "cannot read: http://p cannot be reached" in text
    assert "c|anary-1" in text


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class TestServing:
    def test_answers_with_the_verdict_its_health_and_its_metrics(self) -> None:
        with GateServer("127.0.0.1", 0, "g", every_s=15.0, armed=True) as server:
            assert fetched(f"{server.address}/verdict")[0] == 503
            assert fetched(f"{server.address}/healthz")[0] == 503
            server.show(replace(server.seen, verdict=ROLLED_BACK, reads_done=3, last_read_s=1.0, ended=True))
            status, body = fetched(f"{server.address}/verdict")
            assert (status, json.loads(body)["verdict"]) == (200, "NO_GO")
            assert fetched(f"{server.address}/healthz") == (200, "ok\n")
            assert fetched(f"{server.address}/nothing")[0] == 404
            _, text = fetched(f"{server.address}/metrics")
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        found = {(s.name, *sorted(s.labels.items())): s.value for s in samples}
        assert found["kvbench_gate_verdict", ("gate", "g"), ("verdict", "NO_GO")] == 1
        assert found["kvbench_gate_verdict", ("gate", "g"), ("verdict", "GO")] == 0
        key = ("kvbench_gate_share_over_budget", ("gate", "g"), ("rule", "sustained"), ("stretch", "for"))
        assert found[key] == pytest.approx(0.3, abs=0.1)
        assert found["kvbench_gate_rollback", ("gate", "g"), ("part", "tier_off"), ("status", "proven")] == 1
        assert found["kvbench_gate_rollback_after_seconds", ("gate", "g"), ("part", "tier_off")] == 30
        # What the dashboards ask for is what is told.
        names = {value for name, value in vars(gate_series).items() if name.isupper()}
        assert names <= {sample.name for sample in samples}

    def test_tells_no_share_where_there_was_no_request(self) -> None:
        """Zero would look as if all were within the budget."""
        silent = group("c", Truth(per_s=0.0), seconds=900.0)
        verdict = judge_canary(observed(silent, seconds=900.0, planned_s=1800.0, asked=rules(SUSTAINED)))
        with GateServer("127.0.0.1", 0, "g", every_s=15.0, armed=False) as server:
            server.show(replace(server.seen, verdict=verdict))
            _, text = fetched(f"{server.address}/metrics")
            document = json.loads(fetched(f"{server.address}/verdict")[1])
        assert "kvbench_gate_share_over_budget{" not in text
        assert "kvbench_gate_firing_share{" in text
        (latest,) = next(each for each in document["rules"] if each["rule"] == "sustained")["windows"]
        assert (latest["for_share"], latest["window_share"], latest["requests"]) == (None, None, 0.0)

    def test_answers_many_at_a_time_and_each_with_one_verdict(self) -> None:
        with GateServer("127.0.0.1", 0, "g", every_s=15.0, armed=False) as server, ThreadPoolExecutor(32) as pool:
            verdicts = (GO, NO_GO)
            server.show(replace(server.seen, verdict=GO))
            paths = ["/verdict", "/metrics", "/verdict/GO"]
            asked = [pool.submit(fetched, server.address + paths[n % len(paths)]) for n in range(240)]
            for n in range(60):
                server.show(replace(server.seen, verdict=verdicts[n % 2]))
            answers = [each.result() for each in asked]
        assert {status for status, _ in answers} <= {200, 409}
        for status, body in answers[::3]:
            document = json.loads(body)
            assert status == 200
            assert document["exit_code"] == Outcome(document["verdict"]).exit_code
        for _, body in answers[1::3]:
            assert len(re.findall(r"^kvbench_gate_verdict\{.*\} 1\.0$", body, re.MULTILINE)) == 1

    def test_takes_a_port_or_an_address_and_nothing_else(self) -> None:
        assert parse_address("9109") == ("127.0.0.1", 9109)
        assert parse_address("0.0.0.0:1") == ("0.0.0.0", 1)
        assert parse_address("[::1]:80") == ("::1", 80)
        with pytest.raises(InputError, match="--serve"):
            parse_address("here")
        with pytest.raises(InputError, match="--serve"):
            parse_address("\N{SUPERSCRIPT TWO}")

    def test_says_nothing_of_those_who_hang_up(self, capfd: pytest.CaptureFixture[str]) -> None:
        with GateServer("127.0.0.1", 0, "g", every_s=15.0, armed=False) as server:
            port = int(server.address.rpartition(":")[2])
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", port)) as caller:
                    caller.sendall(b"GET /metr")
                    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert fetched(f"{server.address}/metrics")[0] == 200
        assert capfd.readouterr().err == ""

    def test_that_has_never_read_anything_tells_for_how_long(self) -> None:
        with GateServer("127.0.0.1", 0, "g", every_s=15.0, armed=False) as server:
            server.show(replace(server.seen, began_s=server.seen.began_s - 500.0, reads_failed=33))
            _, text = fetched(f"{server.address}/metrics")
        (age,) = next(f for f in text_string_to_metric_families(text) if f.name == gate_series.SCRAPE_AGE).samples
        assert age.value >= 500

    def test_says_when_the_address_is_taken(self) -> None:
        with GateServer("127.0.0.1", 0, "g", every_s=15.0, armed=False) as server:
            port = int(server.address.rpartition(":")[2])
            with pytest.raises(RunError, match="cannot serve on"):
                GateServer("127.0.0.1", port, "g", every_s=15.0, armed=False)
