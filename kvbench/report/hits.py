"""What a report says about single hits: tables of plain strings, the same in every format."""

from __future__ import annotations

from kvbench.judge.hit_quality import worth_sentence
from kvbench.judge.movement import CASCADE
from kvbench.judge.quality import HitQuality, Holdout, LedgerTotals, Neighbours, SourceTtft, TierWorth
from kvbench.judge.sources import SOURCES
from kvbench.judge.verdict import CandidateVerdict
from kvbench.ledger.account import EVIDENCE
from kvbench.report.parts import TableView
from kvbench.report.plain import plain
from kvbench.report.wording import MISSING, show_share, show_tokens, show_value

__all__ = ["hit_tables", "ledger_mismatch", "ledger_table", "source_table"]

Ends = tuple[float, float] | None
MICRO = 1e6
HEEDED = {
    False: "The server did not hold them out: the tier served them as it served the others, so nothing follows "
    "from the difference. ",
    None: "Whether the server did hold them out is not known. ",
}


def hit_tables(verdict: CandidateVerdict) -> tuple[TableView, ...]:
    """Everything there is; what was not measured has no table."""
    found = [ledger_table(verdict.ledger)]
    if verdict.hits is not None:
        hits = verdict.hits
        found += [source_table(hits.ttft_by_source), _costs(hits), _worth(hits.worth)]
        found += [_neighbours(hits.neighbours)] if hits.neighbours is not None else []
        found += [_movement(hits), _lives(hits)]
    found.append(_holdout(verdict.holdout))
    return tuple(table for table in found if table.rows)


def _seconds(value: float | None) -> str:
    return show_value(value, "s")


def _between(ci: Ends) -> str:
    return "" if ci is None else f" [{_signed(ci[0])}, {_signed(ci[1])}]"


def _signed(seconds: float) -> str:
    return ("−" if seconds < 0 else "") + _seconds(abs(seconds))


def _micro(seconds: float | None, ci: Ends = None) -> str:
    """A cost of a token; negative ones are noise around nothing."""
    if seconds is None:
        return MISSING
    ends = "" if ci is None else f" [{ci[0] * MICRO:.3g}, {ci[1] * MICRO:.3g}]"
    return f"{seconds * MICRO:.3g} µs{ends}"


def ledger_table(arms: list[LedgerTotals]) -> TableView:
    """What the ledgers add up to, what they rest on, and what the engines counted."""
    rows = []
    for arm in arms:
        for name in (*SOURCES, "unattributed"):
            if name == "unattributed" and not arm.tokens.get(name):
                continue
            counted, off = arm.counters.get(name), arm.mismatch_points.get(name)
            rows.append(
                (
                    plain(arm.arm),
                    name,
                    show_tokens(arm.tokens.get(name, 0)),
                    MISSING if counted is None else show_tokens(counted),
                    MISSING if off is None else f"{off:+.2f} points",
                )
            )
    evidence = "; ".join(
        f"{plain(arm.arm)}: {', '.join(f'{plain(name)} {count:,}' for name, count in arm.evidence.items())}"
        for arm in arms
    )
    used = dict.fromkeys(name for arm in arms for name in arm.evidence)
    meaning = "; ".join(f"{name}: {EVIDENCE[name]}" for name in used if name in EVIDENCE)
    distrusted = "".join(
        f" {sentence[:1].upper()}{sentence[1:]}." for arm in arms if (sentence := plain(arm.distrusted or ""))
    )
    return TableView(
        "The ledger of requests against the engine's counters",
        f"Whole rounds, their filling included. Requests by evidence: {evidence}. {meaning}.{distrusted}",
        ("Arm", "Source", "Ledger", "Counters", "Difference"),
        tuple(rows),
        right=2,
    )


def ledger_mismatch(arms: list[LedgerTotals]) -> str | None:
    """`base: device +0.00, computed +0.00 points; ...`, for where there is room for one line; None: no ledgers."""
    each = []
    for arm in arms:
        told = (
            f"{source} {'not counted' if off is None else f'{off:+.2f}'}"
            for source in SOURCES
            if (off := arm.mismatch_points.get(source)) is not None or arm.tokens.get(source)
        )
        each.append(f"{plain(arm.arm)}: {', '.join(told)}")
    return f"{'; '.join(each)} (points of prompt tokens)" if each else None


def source_table(each: list[SourceTtft]) -> TableView:
    """TTFT by where most of a prompt came from and by its length."""
    rows = tuple(
        (
            f"{row.prompt_tokens_from:,}–{row.prompt_tokens_to:,}",
            row.source,
            plain(row.arm),
            f"{row.n:,}",
            _seconds(row.ttft_p50_s),
            f"{_seconds(row.service_p50_s)}{_between(row.service_ci)}",
        )
        for row in sorted(each, key=lambda r: (r.prompt_tokens_from, SOURCES.index(r.source), r.arm))
    )
    return TableView(
        "TTFT by source",
        "Medians of requests by the source of most of their prompt, and by the prompt's length in tokens. The "
        "interval is that over rounds.",
        ("Prompt", "Mostly from", "Arm", "n", "TTFT p50", "From the actual send"),
        rows,
        right=3,
    )


def _costs(hits: HitQuality) -> TableView:
    rows = tuple(
        (
            row.source,
            _micro(row.per_token_s, row.ci),
            MISSING if row.fixed_s is None else f"{_signed(row.fixed_s)}{_between(row.fixed_ci)}",
        )
        for row in hits.costs
    )
    return TableView(
        "What a prompt token costs",
        f"{hits.method or ''}. Mean over the lengths seen, at the load of these rounds.",
        ("Source", "Each token", "Each hit"),
        rows,
        right=1,
    )


def _worth(worth: list[TierWorth]) -> TableView:
    rows = tuple(
        (
            row.tier,
            f"{row.requests:,}",
            show_tokens(row.tokens),
            f"{_signed(row.saved_s)}{_between(row.saved_ci)}",
            show_share(row.lost_share),
            _break_even(row),
            _per_gib(row.saved_s_per_gib_moved),
            _per_gib(row.saved_s_per_gib_kept),
        )
        for row in worth
    )
    return TableView(
        "What promotions were worth",
        "Against computing the same tokens, by the fitted costs; below zero is lost. Per GiB kept: of one round, "
        "by the host's size and by what was written to disk, of which engines count too much. Per GiB moved: by "
        f"{_moved_by(worth)}. "
        + " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in map(worth_sentence, worth)),
        ("Tier", "Requests", "Tokens", "Saved", "Lost", "Faster from", "Per GiB moved", "Per GiB kept"),
        rows,
        right=1,
        brief=True,
    )


def _moved_by(worth: list[TierWorth]) -> str:
    if all(row.moved_by == "counters" for row in worth):
        return "the engine's counters"
    return "the tokens that requests had from the tier, as the engine does not count what was read"


def _break_even(row: TierWorth) -> str:
    if row.pays == "never":
        return "never"
    if row.break_even_tokens is None or row.pays == "unknown":
        return MISSING
    ci = row.break_even_ci
    ends = "" if ci is None else f" [{max(ci[0], 0):,.0f}, {max(ci[1], 0):,.0f}]"
    return f"{row.break_even_tokens:,.0f} tokens{ends}"


def _per_gib(seconds: float | None) -> str:
    return MISSING if seconds is None else _signed(seconds)


def _neighbours(found: Neighbours) -> TableView:
    rows = (
        ("requests", f"{found.during:,}", f"{found.quiet:,}"),
        (
            "TTFT p50 from the actual send",
            _seconds(found.ttft_service_during_s),
            _seconds(found.ttft_service_quiet_s),
        ),
        ("ITL p50", _seconds(found.itl_during_p50_s), _seconds(found.itl_quiet_p50_s)),
        ("ITL p99", _seconds(found.itl_during_p99_s), _seconds(found.itl_quiet_p99_s)),
    )
    return TableView(
        "Neighbours: requests without promotions",
        "While others were promoted, and while none was. Their own prompts' costs taken off, TTFT was "
        f"{_signed(found.effect_s)}{_between(found.effect_ci)} later during promotions. That is what went along "
        "with promotions, not what they caused: more of everything may be under way then.",
        ("", "During", "Quiet"),
        rows,
        right=1,
    )


def _movement(hits: HitQuality) -> TableView:
    rows = [
        (
            row.way,
            show_value(row.gib * 2**30, "bytes"),
            _seconds(row.seconds),
            MISSING if row.gib_per_s is None else f"{show_value(row.gib_per_s * 2**30, 'bytes')}/s",
        )
        for row in hits.movement
    ]
    notes = ["Measured parts of all rounds; times of transfers that overlap are added up."]
    if any(row.way == CASCADE for row in hits.movement):
        notes.append(
            "An engine may count a chunk as written whose file was there already (vLLM does): the amount and the "
            "speed of the cascade are upper bounds."
        )
    if hits.lookup_wait_s is not None:
        notes.append(
            f"A request that waited for a tier to answer waited {_seconds(hits.lookup_wait_s)} on average."
        )
    return TableView(
        "What moved between the tiers", " ".join(notes), ("Way", "Amount", "Time", "Speed"), tuple(rows), right=1
    )


def _lives(hits: HitQuality) -> TableView:
    rows = tuple(
        (
            plain(row.tier),
            f"{row.stored:,}",
            f"{row.removed:,}",
            MISSING
            if row.never_read is None
            else f"{row.never_read:,} ({show_share(row.never_read / row.stored)})",
            _seconds(row.lifetime_p50_s),
            _seconds(row.reuse_gap_p50_s),
        )
        for row in hits.lives
        if row.stored
    )
    return TableView(
        "What became of blocks",
        "By the engine's KV events, whole rounds, their filling included; a block counts once for each stay in a "
        "tier. Medians: lifetimes of those that were removed, reuse gaps from being stored or read to being read.",
        ("Tier", "Stored", "Removed", "Never read", "Lifetime", "Reuse gap"),
        rows,
        right=1,
    )


def _holdout(effects: list[Holdout]) -> TableView:
    rows = tuple(
        (
            plain(row.class_),
            f"{row.kept:,}",
            f"{row.held:,}",
            _seconds(row.ttft_kept_s),
            _seconds(row.ttft_held_s),
            MISSING if row.heeded is False else f"{_signed(row.difference_s)}{_between(row.ci)}",
        )
        for row in effects
    )
    method = effects[0].method if effects else ""
    heeded = HEEDED.get(effects[0].heeded, "") if effects else ""
    return TableView(
        "Held out of the secondary tier",
        "Mean TTFT of requests that were sent past the tier at random, on the same server at the same time, "
        "against the others; below zero the tier makes it shorter. What the tier does to both alike, such as reads "
        f"that others wait behind, is not in it. {heeded}{method[:1].upper()}{method[1:]}.",
        ("Class", "With the tier", "Held out", "TTFT with it", "TTFT held out", "Difference"),
        rows,
        right=1,
        brief=True,
    )
