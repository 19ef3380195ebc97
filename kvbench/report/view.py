"""What a report says, decided once: plain, cleaned strings in reading order. Formats only lay them out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from kvbench.judge.latency import carries
from kvbench.judge.sources import SOURCES
from kvbench.judge.verdict import CandidateVerdict, ClassChange, Outcome, RuleResult
from kvbench.report.achieved import achieved
from kvbench.report.data import ArmFacts, ReportData
from kvbench.report.hits import hit_tables, ledger_mismatch
from kvbench.report.host import host_tables
from kvbench.report.instrument import instrument_figures
from kvbench.report.parts import (
    ArmView,
    CandidateView,
    ChangeView,
    Figure,
    LatencyView,
    PerRound,
    ReportView,
    RuleView,
    SourcePart,
    SourcesView,
)
from kvbench.report.plain import plain
from kvbench.report.prediction import prediction_tables
from kvbench.report.tier_activity import activity_tables
from kvbench.report.wording import (
    CHANGES,
    KINDS,
    MISSING,
    OUTCOMES,
    STATUSES,
    is_ratio,
    latency_name,
    show_effect,
    show_interval,
    show_limit,
    show_ratio,
    show_share,
    show_tokens,
    show_value,
    what_is_judged,
    who_pays_note,
)
from kvbench.spec.quantity import show_bytes, show_seconds
from kvbench.spec.rates import rate_in_words
from kvbench.spec.workload import Phase, Workload

__all__ = ["view"]

CLOSED_LOOP = "a slow answer delays the next request, so its tails say nothing about an arrival rate"
CLOSED_LOOP_SENT = (
    "which requests are sent depends on the server and on the number of workers, each of which has slots and a "
    "queue of its own"
)


def view(data: ReportData) -> ReportView:
    """Everything that any format shows."""
    verdict = data.verdict
    each: Iterable[CandidateVerdict] = verdict.candidates or [verdict]
    ordered = sorted(each, key=lambda candidate: -candidate.verdict.severity)
    host = data.host
    return ReportView(
        title=plain(data.name),
        run_id=plain(data.run_id),
        directory=plain(data.directory),
        again=plain(f"kvbench report {shlex.quote(data.directory)}"),
        started=data.started_utc.strftime("%Y-%m-%d %H:%M:%S UTC"),
        version=plain(data.kvbench_version),
        host=f"{plain(host.cpu_model)}, {host.cores} cores, {show_bytes(host.memory_bytes)}, {plain(host.kernel)}",
        warnings=(*_emulated(data.arms), *_closed(data.workload), *map(plain, data.warnings)),
        candidates=tuple(_candidate(candidate, data) for candidate in ordered),
        arms=tuple(map(_arm, data.arms)),
        workload=_workload(data.workload),
        rules_summary=_rules_summary(data),
        confidence=f"{data.rules.confidence:.4g}",
    )


def _emulated(arms: Iterable[ArmFacts]) -> list[str]:
    names = [plain(arm.name) for arm in arms if arm.engine == "emulated"]
    if not names:
        return []
    return [f"Emulated engine in {', '.join(names)}: no figure of it says anything about a real engine."]


def _closed(workload: Workload) -> list[str]:
    return [f"Closed loop: {CLOSED_LOOP}; {CLOSED_LOOP_SENT}."] if workload.arrivals.process == "closed" else []


def _candidate(verdict: CandidateVerdict, data: ReportData) -> CandidateView:
    symbol, word, sentence = OUTCOMES[verdict.verdict]
    rules = _rules(verdict, data)
    action = verdict.action
    return CandidateView(
        outcome=verdict.verdict,
        symbol=symbol,
        word=word,
        sentence=sentence.format(candidate=plain(verdict.candidate)),
        baseline=plain(verdict.baseline),
        candidate=plain(verdict.candidate),
        reasons=tuple(map(plain, verdict.reasons)),
        action=f"Disable the {action.disable_tier} tier: {plain(action.why)}" if action else None,
        rules=rules,
        who_pays=tuple(map(_change, verdict.who_pays)),
        who_pays_note=who_pays_note(data.rules.confidence, stopped_early=_stopped_early(verdict, data)),
        headline_figures=_headline_figures(rules),
        sources=tuple(_sources(arm, counts) for arm, counts in verdict.sources.items()),
        latency=_side_by_side(_latency(row) for row in verdict.latency),
        rounds=_rounds(verdict),
        per_round=tuple(
            _per_round(result, data) for result in verdict.rules if result.windows and _decides(result, verdict)
        ),
        instrument=instrument_figures(verdict.instrument, data.rules.validity),
        not_tested=tuple(map(plain, verdict.not_tested)),
        achieved=tuple(
            row for arm in (verdict.baseline, verdict.candidate) for row in achieved(arm, data.rounds.get(arm, []))
        ),
        prediction=prediction_tables(verdict.prediction),
        hits=(*hit_tables(verdict), *activity_tables(verdict.tier_activity)),
        ledger_mismatch=ledger_mismatch(verdict.ledger),
        host=host_tables(verdict.host),
    )


def _stopped_early(verdict: CandidateVerdict, data: ReportData) -> bool:
    rounds = data.rules.rounds
    return rounds.min < rounds.max and verdict.rounds.done < verdict.rounds.planned


def _decides(result: RuleResult, verdict: CandidateVerdict) -> bool:
    """Whether a result belongs to those that made the verdict what it is."""
    match verdict.verdict:
        case Outcome.INVALID:
            return result.kind == "validity" and result.status == "fail"
        case Outcome.NO_GO:
            guarded = any(rule.kind != "benefit" and rule.status == "fail" for rule in verdict.rules)
            return result.status == "fail" and (result.kind != "benefit" or not guarded)
        case Outcome.INCONCLUSIVE:
            return result.status == "unknown"
        case _:
            return result.status == "pass" and result.kind == "benefit"


def _rules(verdict: CandidateVerdict, data: ReportData) -> tuple[RuleView, ...]:
    """The deciding rules first, then in the order in which a verdict is reached."""
    rows = [_rule(result, data, _decides(result, verdict)) for result in verdict.rules]
    return tuple(sorted(rows, key=lambda row: (not row.deciding, KINDS.index(row.kind))))


def _rule(result: RuleResult, data: ReportData, deciding: bool) -> RuleView:
    effect, interval = show_effect(result, data.rules)
    return RuleView(
        rule=plain(result.rule),
        kind=result.kind,
        status=result.status,
        symbol=STATUSES[result.status],
        what=what_is_judged(result, data.rules),
        baseline=show_value(result.baseline, result.unit),
        candidate=show_value(result.candidate, result.unit),
        effect=effect,
        interval=interval,
        limit=show_limit(result, data.rules),
        text=plain(result.text),
        deciding=deciding,
    )


def _change(change: ClassChange) -> ChangeView:
    return ChangeView(
        class_=plain(change.class_),
        latency=latency_name(change.metric, change.quantile),
        before=show_value(change.baseline, "s"),
        after=show_value(change.candidate, "s"),
        ratio=show_value(change.effect, "ratio"),
        interval=show_interval(change.ci, "ratio") if change.ci else "",
        change=change.change,
        symbol=CHANGES[change.change],
    )


def _headline_figures(rules: Iterable[RuleView]) -> tuple[RuleView, ...]:
    """At most four rules with an effect: benefits and deciding ones first."""
    measured = [rule for rule in rules if rule.effect != MISSING and rule.kind in ("benefit", "guardrail")]
    return tuple(sorted(measured, key=lambda rule: (not rule.deciding, rule.kind != "benefit"))[:4])


def _sources(arm: str, counts: Mapping[str, float | None]) -> SourcesView:
    names = (*SOURCES, *(name for name in counts if name not in SOURCES))
    known = {name: count for name in names if (count := counts.get(name)) is not None}
    total = sum(known.values())
    parts = tuple(
        SourcePart(
            source=plain(name),
            tokens=show_tokens(known[name]) if name in known else MISSING,
            share=known[name] / total if name in known and total > 0 else None,
            shown=show_share(known[name] / total) if name in known and total > 0 else MISSING,
        )
        for name in names
    )
    return SourcesView(arm=plain(arm), total=show_tokens(total) if known else MISSING, parts=parts)


def _latency(row: Mapping[str, float | str | int | None]) -> LatencyView:
    n = int(float(row.get("count") or 0))

    def quantile(name: str) -> str:
        value = row.get(name)
        if value is None or not carries(n, int(name.removeprefix("p")) / 100):
            return MISSING
        return show_value(float(value), "s")

    return LatencyView(
        arm=plain(row.get("arm", "")),
        class_=plain(row.get("class", "all")),
        metric=plain(row.get("metric", "")),
        n=f"{n:,}",
        p50=quantile("p50"),
        p90=quantile("p90"),
        p99=quantile("p99"),
    )


def _side_by_side(rows: Iterable[LatencyView]) -> tuple[LatencyView, ...]:
    """The arms of one metric and class next to each other, all else in the order given."""
    every = list(rows)
    order = list(dict.fromkeys((row.metric, row.class_) for row in every))
    return tuple(sorted(every, key=lambda row: order.index((row.metric, row.class_))))


def _rounds(verdict: CandidateVerdict) -> str:
    rounds = verdict.rounds
    unit = (
        "each pair of rounds had fresh launches, so the round is the unit of evidence"
        if rounds.unit == "round"
        else "rounds of one launch are not independent, so the launch is the unit of evidence"
    )
    needed = ""
    if rounds.needed is not None:
        least, most = rounds.needed
        needed = f"; about {least:,}{f' to {most:,}' if least < most else ''} would be needed"
    elif verdict.verdict is Outcome.INCONCLUSIVE:
        needed = "; no number of rounds is known to settle all that is open, see the reasons"
    return f"{rounds.done} of {rounds.planned} rounds of each arm, paired by schedule; {unit}{needed}."


def _per_round(result: RuleResult, data: ReportData) -> PerRound:
    columns = tuple(dict.fromkeys(key for window in result.windows for key in window))
    unit = "ratio" if is_ratio(result, data.rules) else result.unit
    return PerRound(
        rule=plain(result.rule),
        what=what_is_judged(result, data.rules) + _descriptions(result, columns),
        columns=tuple(plain(column).removesuffix("_s").replace("_", " ") for column in columns),
        rows=tuple(
            tuple(_cell(column, window.get(column), result.unit, unit) for column in columns)
            for window in result.windows
        ),
    )


def _descriptions(result: RuleResult, columns: Iterable[str]) -> str:
    """What stands beside a rule's rounds and decides nothing, marked so."""
    words = ""
    if any(column.endswith("_low_s") for column in columns):
        words += "; low and high: block bootstrap within the round, a description"
    if result.sign_flip_p is not None:
        words += f"; sign-flip test of no difference: p = {result.sign_flip_p:.2g}, a description"
    return words


def _cell(column: str, value: float | str | None, unit: str | None, effect_unit: str | None) -> str:
    if value is None or isinstance(value, str):
        return MISSING if value is None else plain(value)
    if column in ("baseline", "candidate", "limit"):
        return show_value(value, unit)
    if column in ("ratio", "effect"):
        return show_ratio(value) if column == "ratio" else show_value(value, effect_unit)
    if column.endswith("_s"):
        return show_value(value, "s")
    return show_value(value, "fraction" if column.endswith("share") else None)


def _arm(arm: ArmFacts) -> ArmView:
    version = f" {plain(arm.engine_version)}" if arm.engine_version else ", version unknown"
    return ArmView(
        name=plain(arm.name),
        role=arm.role,
        engine=f"{plain(arm.engine)}{version}, model {plain(arm.model)}",
        tiers=tuple(map(plain, arm.tiers)),
        command=" ".join(shlex.quote(plain(word)) for word in arm.argv),
        effective=tuple((plain(label), plain(value)) for label, value in arm.effective),
        differences=tuple(map(plain, arm.differences)),
        unproven=tuple(map(plain, arm.unproven)),
    )


def _workload(workload: Workload) -> tuple[Figure, ...]:
    arrivals = workload.arrivals
    rate = f", {rate_in_words(arrivals.rate)}" if arrivals.rate else ""
    if arrivals.closed is not None:
        rate = f" loop, {arrivals.closed.concurrency} at once: {CLOSED_LOOP}"
    phases = ", ".join(map(_phase, workload.phases))
    whole = sum(class_.weight for class_ in workload.classes.values())
    classes = ", ".join(
        f"{plain(name)} {show_share(class_.weight / whole)}" for name, class_ in workload.classes.items()
    )
    return (
        Figure("workload", f"{workload.name}, seed {workload.seed}"),
        Figure("arrivals", f"{arrivals.process}{rate}"),
        Figure("phases", phases),
        Figure("classes", classes),
        Figure("prompts sent again", show_share(workload.repeat)),
        *(
            [Figure("held out of the secondary tier", show_share(share))]
            if (share := workload.tier_holdout)
            else []
        ),
        *([Figure("tenants with canary text", f"{workload.canaries.tenants}")] if workload.canaries else []),
        Figure("request time-out", show_seconds(workload.request_timeout)),
    )


def _phase(phase: Phase) -> str:
    notes = [rate_in_words(phase.rate)] if phase.rate else []
    notes += [] if phase.measured else ["not measured"]
    return f"{phase.name} {show_seconds(phase.for_s)}" + (f" ({'; '.join(notes)})" if notes else "")


def _rules_summary(data: ReportData) -> tuple[Figure, ...]:
    rules = data.rules
    return (
        Figure("rules", plain(rules.name)),
        Figure("confidence", show_share(rules.confidence)),
        Figure("guardrails", ", ".join(rule.id for rule in rules.guardrails) or "none"),
        Figure("benefits", ", ".join(rule.id for rule in rules.benefits) or "none"),
        Figure("evidence", ", ".join(rule.id for rule in rules.evidence) or "none"),
        Figure("rounds", f"{rules.rounds.min} to {rules.rounds.max}"),
    )
