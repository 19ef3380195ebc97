"""JUnit XML for CI: one suite a candidate, one case a rule, and a case `verdict` that is red unless GO.

A failed rule is a failure, an unknown one is skipped with the reason. A benefit that was not reached is skipped
as well when the verdict is GO, because one proven benefit is enough.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kvbench.judge.verdict import Outcome
from kvbench.report.data import ReportData
from kvbench.report.parts import CandidateView, ReportView, RuleView
from kvbench.report.view import view

__all__ = ["render_junit"]


def render_junit(data: ReportData) -> str:
    """A `<testsuites>` document. It has no time attributes: no duration belongs to a rule."""
    report = view(data)
    root = ET.Element("testsuites", {"name": f"kvbench {report.title}"})
    for candidate in report.candidates:
        root.append(_suite(report, candidate))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(report: ReportView, candidate: CandidateView) -> ET.Element:
    name = f"{candidate.candidate} against {candidate.baseline}"
    timestamp = report.started.removesuffix(" UTC").replace(" ", "T")
    suite = ET.Element("testsuite", {"name": name, "timestamp": timestamp})
    properties = ET.SubElement(suite, "properties")
    for key, value in (
        ("verdict", candidate.outcome.value),
        ("run", report.run_id),
        ("kvbench", report.version),
        ("host", report.host),
        ("rounds", candidate.rounds),
        *(("warning", warning) for warning in report.warnings),
    ):
        ET.SubElement(properties, "property", {"name": key, "value": value})
    suite.append(_verdict_case(candidate))
    suite.extend(_rule_case(rule, candidate) for rule in candidate.rules)
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    return suite


def _verdict_case(candidate: CandidateView) -> ET.Element:
    case = ET.Element("testcase", {"classname": f"kvbench.{candidate.candidate}", "name": "verdict"})
    if candidate.outcome is not Outcome.GO:
        message = f"{candidate.word}: {candidate.sentence}"
        failure = ET.SubElement(case, "failure", {"type": candidate.word, "message": message})
        failure.text = "\n".join(filter(None, (*candidate.reasons, candidate.action)))
    return case


def _rule_case(rule: RuleView, candidate: CandidateView) -> ET.Element:
    case = ET.Element("testcase", {"classname": f"kvbench.{candidate.candidate}.{rule.kind}", "name": rule.rule})
    forgiven = rule.kind == "benefit" and candidate.outcome is Outcome.GO
    if rule.status == "fail" and not forgiven:
        failure = ET.SubElement(case, "failure", {"type": rule.kind, "message": rule.text})
        failure.text = _figures(rule, candidate)
    elif rule.status != "pass":
        why = "not reached; another benefit is proven" if forgiven else "unknown"
        ET.SubElement(case, "skipped", {"message": f"{why}: {rule.text}"})
    return case


def _figures(rule: RuleView, candidate: CandidateView) -> str:
    return (
        f"{rule.what or rule.rule}: {candidate.baseline} {rule.baseline}, {candidate.candidate} {rule.candidate}, "
        f"effect {rule.effect} {rule.interval}, limit {rule.limit}"
    )
