"""Which charts the section of one candidate shows, drawn to common axes so that arms can be compared by eye."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbench.judge.sources import SOURCES
from kvbench.judge.verdict import CandidateVerdict, RuleResult
from kvbench.report import charts
from kvbench.report.data import ReportData, RoundTables
from kvbench.report.plain import plain
from kvbench.report.series import (
    SourceRates,
    class_names,
    itl_sample,
    measured,
    source_rates,
    ttft_dots,
    ttft_sample,
)
from kvbench.report.wording import is_ratio, is_upper

__all__ = ["Gallery", "Picture", "gallery"]


@dataclass(frozen=True)
class Picture:
    """A finished SVG element and the heading above it."""

    heading: str
    svg: str


@dataclass(frozen=True)
class Gallery:
    """What could be drawn; an empty tuple says that it was not recorded."""

    effects: tuple[Picture, ...]
    ttft: tuple[Picture, ...]
    itl: tuple[Picture, ...]
    ttft_over_time: tuple[Picture, ...]
    sources_over_time: tuple[tuple[Picture, ...], ...]
    """One tuple a round, with a picture for each arm."""
    elsewhere: bool
    """Whether tokens came from a source that the engine does not tell apart."""


def gallery(verdict: CandidateVerdict, data: ReportData, prefix: str) -> Gallery:
    """All charts of one candidate against the baseline. `prefix` keeps ids unique in the page."""
    arms = {
        "baseline": data.rounds.get(verdict.baseline, []),
        "candidate": data.rounds.get(verdict.candidate, []),
    }
    names = {"baseline": plain(verdict.baseline), "candidate": plain(verdict.candidate)}
    rates = {
        (tables.index, role): found
        for role, rounds in arms.items()
        for tables in rounds
        if (found := source_rates(tables.metrics)) is not None
    }
    return Gallery(
        effects=_effects(verdict.rules, data, prefix),
        ttft=_ttft(arms, prefix),
        itl=_itl(arms, prefix),
        ttft_over_time=_ttft_over_time(arms, names, prefix),
        sources_over_time=_sources_over_time(arms, names, rates, prefix),
        elsewhere=any(set(each.rates) - set(SOURCES) for each in rates.values()),
    )


def _pictures(*drawn: tuple[str, str | None]) -> tuple[Picture, ...]:
    return tuple(Picture(heading, svg) for heading, svg in drawn if svg is not None)


def _effects(results: Sequence[RuleResult], data: ReportData, prefix: str) -> tuple[Picture, ...]:
    ratios = [(result, is_upper(result, data.rules)) for result in results if is_ratio(result, data.rules)]
    return _pictures(("Effects beside their limits", charts.effects(f"{prefix}-effects", ratios)))


def _ttft(arms: Mapping[str, Sequence[RoundTables]], prefix: str) -> tuple[Picture, ...]:
    classes = class_names([tables for rounds in arms.values() for tables in rounds])
    drawn = []
    for position, class_ in enumerate(classes):
        samples = {
            role: [ttft_sample(tables.requests, class_) for tables in rounds] for role, rounds in arms.items()
        }
        svg = charts.ttft_distribution(f"{prefix}-ttft-{position}", class_, samples)
        drawn.append((f"TTFT, class {plain(class_)}", svg))
    return _pictures(*drawn)


def _itl(arms: Mapping[str, Sequence[RoundTables]], prefix: str) -> tuple[Picture, ...]:
    samples = {role: [itl_sample(tables) for tables in rounds] for role, rounds in arms.items()}
    requests = {role: sum(len(measured(tables.requests)) for tables in rounds) for role, rounds in arms.items()}
    return _pictures(("ITL, all classes", charts.itl_quantiles(f"{prefix}-itl", samples, requests)))


def _ttft_over_time(
    arms: Mapping[str, Sequence[RoundTables]], names: Mapping[str, str], prefix: str
) -> tuple[Picture, ...]:
    dots = {role: ttft_dots(rounds) for role, rounds in arms.items()}
    bounds = charts.dot_bounds(points for kinds in dots.values() for points in kinds.values())
    if bounds is None:
        return ()
    return _pictures(
        *(
            (names[role], charts.ttft_over_time(f"{prefix}-dots-{role}", names[role], kinds, bounds))
            for role, kinds in dots.items()
        )
    )


def _sources_over_time(
    arms: Mapping[str, Sequence[RoundTables]],
    names: Mapping[str, str],
    rates: Mapping[tuple[int, str], SourceRates],
    prefix: str,
) -> tuple[tuple[Picture, ...], ...]:
    if not rates:
        return ()
    first = min(float(each.t_s[0]) for each in rates.values())
    last = max(float(each.t_s[-1]) for each in rates.values())
    limits = (first, last, charts.highest_rate(rates.values()))
    return tuple(
        tuple(
            Picture(
                f"Round {index}, {names[role]}",
                charts.sources_over_time(
                    f"{prefix}-sources-{index}-{role}", names[role], index, rates[index, role], limits
                ),
            )
            for role in arms
            if (index, role) in rates
        )
        for index in sorted({index for index, _ in rates})
    )
