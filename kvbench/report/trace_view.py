"""What `analyze` tells people, as sentences and tables of text: the same for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.plan.references import ratio
from kvbench.report.plain import plain
from kvbench.spec.quantity import show_bytes, show_seconds

__all__ = ["Document", "Sheet", "TraceView", "share", "skipped_lines", "trace_view"]

Document = Mapping[str, Any]
"""As `kvbench.plan.analysis.analyse` makes it."""

_BY = {
    "same_session": "an earlier turn of the same session",
    "system_prompts": "prefixes that at least 5 % of all sessions have",
    "documents": "prefixes that fewer sessions share",
}
_TAILS = {
    "keep": "a partial last block counts like a whole one",
    "drop": "whole blocks count",
    "vllm": "whole blocks count, and at least the last token is computed, as in vLLM",
}
"""Rules of `kvbench.plan.references.Tail`."""
_DISTANCES = {
    "flat_stack_distance": "different other blocks since a block's last use",
    "arrival_depth": "blocks used more recently when its request comes (an LRU must hold more)",
}
_SHOWN_PERCENTILES = ("p10", "p25", "p50", "p75", "p90", "p99")


@dataclass(frozen=True)
class Sheet:
    """A table; all columns but the `words` first ones hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 0


@dataclass(frozen=True)
class TraceView:
    """Everything that is shown, in order."""

    title: str
    pilot: str
    """yes, no or unknown."""
    advice: str
    facts: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    assumptions: tuple[str, ...]
    unknown: tuple[str, ...]


def trace_view(document: Document) -> TraceView:
    """From the document of a trace, with or without block identity."""
    advice = document["advice"]
    known = document["ideal"] is not None
    return TraceView(
        title=plain(f"{document['file']} ({document['format']})"),
        pilot=advice["pilot"],
        advice=advice["text"],
        facts=tuple(_facts(document) if known else _lengths(document)),
        sheets=tuple(_sheets(document) if known else ()),
        assumptions=tuple(advice["setting"]["assumptions"]) if advice["setting"] else (),
        unknown=tuple(document["unknown"]),
    )


def share(value: float | None) -> str:
    """In percent."""
    return "unknown" if value is None else f"{value:.1%}"


def _lengths(document: Document) -> Iterator[str]:
    basic = document["basic"]
    yield (
        f"{basic['requests']:,} requests over {basic['duration_s']:,.0f} s, {basic['input_tokens']:,} tokens in, "
        f"{basic['output_tokens']:,} out"
    )
    yield from _arrivals(document["burstiness"])
    yield from skipped_lines(document)


def skipped_lines(document: Document) -> Iterator[str]:
    """How many lines of a trace could not be read, and the first of them; nothing where all could."""
    skipped = document.get("skipped_lines")
    if skipped and skipped["count"]:
        first = skipped["first"][0]
        what = first["what"] if first["line"] is None else f"line {first['line']}: {first['what']}"
        yield plain(f"{skipped['count']} lines could not be read and are left out; the first is {what}")


def _facts(document: Document) -> Iterator[str]:
    basic, ideal, reuse = document["basic"], document["ideal"], document["reuse_time_s"]
    never, sharing = document["never_used_again"], document["sharing"]
    yield from _lengths(document)
    yield (
        f"{basic['total_refs']:,} references to {basic['unique_blocks']:,} blocks of {document['block_size']} "
        f"tokens; {share(never['share'])} of the whole blocks are never used again"
    )
    yield (
        f"an unlimited cache serves {share(ideal['vllm']['token_hit_rate'])} of the prompt tokens (leading whole "
        f"blocks, the last token computed)"
    )
    if reuse["n"]:
        yield (
            f"a block is used again after {show_seconds(reuse['p50'])} in half, "
            f"{show_seconds(reuse['p90'])} in 90 % of cases"
        )
    distance = document["flat_stack_distance"]["percentiles"]
    if distance["n"]:
        model = document["bytes_by_model"][0]
        half, most = (
            f"{distance[q]:,.0f} ({show_bytes(distance[q] * model['bytes_per_block'])})" for q in ("p50", "p90")
        )
        yield plain(
            f"between two uses lie {half} other blocks in half, {most} in 90 % of cases (as KV of {model['model']})"
        )
    yield (
        f"{sharing['prefixes']:,} prefixes, {sharing['shared_prefixes']:,} of them shared; "
        f"{sharing['prefixes_for_90_percent_of_saved']:,} save 90 % of what sharing saves"
    )


def _arrivals(bursts: Document) -> Iterator[str]:
    if bursts["windows"]:
        window = bursts["windows"][0]
        dispersion = "" if window["dispersion"] is None else f", dispersion {window['dispersion']:.2g} (Poisson: 1)"
        yield (
            f"arrivals per {window['window_s']:g} s: {window['mean_requests']:.3g} on average, "
            f"{window['peak_requests']:,} at most{dispersion}"
        )


def _sheets(document: Document) -> Iterator[Sheet]:
    yield _lru(document)
    if document["flat_stack_distance"]["percentiles"]["n"]:
        yield _distances(document)
    yield _shared(document["sharing"])
    if document["sharing"]["top_prefixes"]:
        yield _top(document["sharing"]["top_prefixes"])
    if document["hierarchy"]:
        yield _tiers(document["hierarchy"])
    yield _admission(document["admission"])
    yield _models(document["bytes_by_model"])


def _lru(document: Document) -> Sheet:
    points = document["lru_request_stream"]["vllm_all"]["points"]
    block_bytes = document["bytes_by_model"][0]["bytes_per_block"]
    model = document["bytes_by_model"][0]["model"]
    rows = (
        (f"{p['capacity_blocks']:,}", show_bytes(p["capacity_blocks"] * block_bytes), share(p["token_hit_rate"]))
        for p in points
    )
    return Sheet(
        f"One LRU cache: {_TAILS['vllm']}",
        ("blocks", f"as KV of {plain(model)}", "prompt tokens served"),
        tuple(rows),
    )


def _distances(document: Document) -> Sheet:
    """Of blocks that are used again, every listed one."""
    rows = []
    for key, words in _DISTANCES.items():
        found = document[key]["percentiles"]
        rows.append((words, *(f"{found[q]:,.0f}" for q in _SHOWN_PERCENTILES)))
    title = f"Reuse distance in blocks: {_TAILS['keep']}"
    return Sheet(title, ("of a block that is used again", *_SHOWN_PERCENTILES), tuple(rows), words=1)


def _shared(sharing: Document) -> Sheet:
    total = sharing["saved_tokens"]
    rows: list[tuple[str, ...]] = []
    for key, words in _BY.items():
        tokens = sharing["saved_by"][key]
        known = tokens is not None
        rows.append((words, f"{tokens:,}" if known else "unknown", share(ratio(tokens, total) if known else None)))
    return Sheet("Who shares", ("saved by", "tokens", "of all saved"), tuple(rows), words=1)


def _top(entries: Sequence[Document]) -> Sheet:
    rows = (
        (
            f"{e['from_token']:,}–{e['to_token']:,}",
            f"{e['requests']:,}",
            f"{e['sessions']:,}",
            f"{e['saved_tokens']:,}",
            share(e["share_of_saved"]),
            f"{e['first_request']:,}",
        )
        for e in entries
    )
    columns = ("prompt tokens", "requests", "sessions", "tokens saved", "of all saved", "first in request")
    return Sheet("Prefixes that save most", columns, tuple(rows))


def _tiers(entries: Sequence[Document]) -> Sheet:
    """Small traces round several usual sizes to the same ones: each is shown once."""
    rows = {
        (
            " + ".join(f"{size:,}" for size in entry["capacities"]),
            _kept(entry["mode"]),
            " + ".join(share(rate) for rate in entry["token_hit_rate_per_tier"]),
            share(entry["token_hit_rate_total"]),
            " + ".join(f"{count:,}" for count in entry["writes_per_tier"]),
        ): None
        for entry in entries
    }
    columns = ("blocks", "kept", "prompt tokens served by each", "together", "blocks written to each")
    policies = entries[0].get("policies", ())
    by = "each an LRU" if "arc" not in policies else f"tier {policies.index('arc') + 1} by ARC, the others LRUs"
    title = f"Tiers behind each other, fastest first, {by}: {_TAILS[entries[0]['tail']]}"
    return Sheet(title, columns, tuple(rows), words=2)


def _kept(mode: str) -> str:
    return mode.replace("_", " ") + (" (as vLLM)" if mode == "inclusive_touch_all" else "")


def _admission(entries: Sequence[Document]) -> Sheet:
    rows = (
        (
            f"{e['store_threshold']}",
            f"{e['written_blocks']:,}",
            share(e["writes_saved"]),
            share(e["token_hit_rate"]),
            share(e["hits_lost"]),
        )
        for e in entries
    )
    columns = ("stored at use", "blocks written", "writes saved", "prompt tokens served", "hits lost")
    return Sheet("Admission by reuse count (store_threshold), without limit of size", columns, tuple(rows))


def _models(entries: Sequence[Document]) -> Sheet:
    rows = tuple(
        (
            plain(e["model"]),
            plain(e["attention"]),
            f"{e['bytes_per_token']:,}",
            show_bytes(e["unique_bytes"]),
            *(_bytes(e["bytes_for_share_of_reuse"], wanted) for wanted in (0.5, 0.9)),
            "unknown" if e["written_bytes_per_day"] is None else show_bytes(e["written_bytes_per_day"]),
        )
        for e in entries
    )
    columns = (
        *("model", "attention", "KV bytes a token", "all blocks"),
        *("for half of the reuse", "for 90 %", "written a day"),
    )
    return Sheet("In bytes", columns, rows, words=2)


def _bytes(entries: Sequence[Document], wanted: float) -> str:
    found = next((entry["bytes"] for entry in entries if entry["share_of_reuse"] == wanted), None)
    return "none" if found is None else show_bytes(found)
