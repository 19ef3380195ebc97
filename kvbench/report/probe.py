"""What `probe` tells: a table for people, and a page with the table and a drawing. Pure; no figure is made here."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from kvbench.report.charts import label_axes, log_seconds, new_axes
from kvbench.report.page import style_sheet
from kvbench.report.plain import plain
from kvbench.report.svg import COLOURS, drawing_style, inline_svg
from kvbench.report.wording import MISSING
from kvbench.spec.quantity import show_bytes, show_seconds

__all__ = ["probe_page", "show_probe"]

Document = Mapping[str, Any]
"""As `kvbench.probe.command.probe_profile` makes it."""

EMULATED = "emulated engine: these costs are the ones that it was told to have"
_MARKERS = {"device": "o", "host": "s", "disk": "^", "computed": "D"}


def show_probe(console: Console, found: Document) -> None:
    """Points, costs and break-even lengths, alone and under load."""
    for heading, part in _parts(found):
        table = Table(title=heading, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name in ("source", "prefix tokens", "probes", "TTFT, median", "95 % interval"):
            table.add_column(name, justify="left" if name == "source" else "right")
        for cells in _rows(part):
            table.add_row(*cells)
        console.print(table)
        for line in _sentences(part):
            console.print(plain(line), markup=False, soft_wrap=True)
    if found["emulated"]:
        console.print(EMULATED, soft_wrap=True)


def _parts(found: Document) -> list[tuple[str, Document]]:
    parts: list[tuple[str, Document]] = [("TTFT of single requests, alone", found)]
    if found["under_load"] is not None:
        parts.append((f"Beside {found['background_per_s']:g} other requests per second", found["under_load"]))
    return parts


def _rows(part: Document) -> list[tuple[str, ...]]:
    return [
        (
            point["source"],
            f"{point['prefix_tokens']:,}",
            str(point["n"]),
            show_seconds(point["ttft_s"]),
            _seconds_interval(point["ci"]),
        )
        for point in part["points"]
    ]


def _seconds_interval(ci: Sequence[float] | None) -> str:
    return MISSING if ci is None else f"{show_seconds(ci[0])} to {show_seconds(ci[1])}"


def _sentences(part: Document) -> list[str]:
    """One plain sentence for each cost, each break-even length and everything that could not be measured."""
    lines = [_cost(source, cost, part) for source, cost in part["cost_per_token_s"].items()]
    lines += [_even(tier, tokens, part) for tier, tokens in part["break_even_tokens"].items()]
    lines += [_check(check) for check in part["checks"]]
    lines += [f"{source}: no request could be made to come from there" for source in part["not_reached"]]
    thrown = {source: count for source, count in part["thrown_away"].items() if count}
    if thrown:
        counts = ", ".join(f"{count} meant for {source}" for source, count in thrown.items())
        lines.append(f"thrown away because they came from elsewhere, by the engine's counters: {counts}")
    lines += [_suffix(each) for each in part.get("suffixes", ())]
    lines += [_decode(each) for each in part.get("decode", ())]
    if not part["interval_reached"]:
        lines.append("the time was over before every interval was as narrow as asked")
    return lines


def _cost(source: str, cost: float | None, part: Document) -> str:
    if cost is None:
        return f"{source}: cost per token not measured"
    ci = part["cost_per_token_ci"][source]
    interval = "no interval" if ci is None else f"{ci[0] * 1e6:.3g} to {ci[1] * 1e6:.3g}"
    verb = "computing a token costs" if source == "computed" else f"a token from {source} costs"
    return f"{verb} {cost * 1e6:.3g} µs ({interval})"


def _suffix(each: Document) -> str:
    return (
        f"{each['suffix_tokens']:,} tokens computed behind {each['prefix_tokens']:,} on the device: TTFT "
        f"{show_seconds(each['ttft_s'])}"
    )


def _decode(each: Document) -> str:
    requests = each["requests"]
    who = "one request alone decodes" if requests == 1 else f"{requests} requests decode"
    return f"while {who}, a token comes every {show_seconds(each['itl_s'])}"


def _even(tier: str, tokens: int | None, part: Document) -> str:
    low, high = part["break_even_ci"][tier]
    if tokens is None:
        told = "a hit is slower than computing" if low is None else "hits and computing are not told apart"
        return f"{tier}: {told} at the longest prefix that was probed"
    if high is not None and high <= part["smallest_hit_tokens"]:
        return f"{tier}: even the smallest hit, {tokens:,} tokens, is faster than computing"
    if high is None:
        return f"{tier}: a hit seems faster than computing from {tokens:,} tokens on, which is proven at no length"
    ends = f"{low if low is not None else MISSING} to {high}"
    return f"{tier}: a hit is faster than computing from {tokens:,} tokens on ({ends})"


def _check(check: Document) -> str:
    says = {True: "confirmed", False: "NOT confirmed", None: "not told apart"}[check["agrees"]]
    if check.get("moved") and check["agrees"]:
        says = "found out, and the break-even moved past it"
    expected = "slower" if check["side"] == "below" else "faster"
    return f"{check['source']}: a hit of {check['prefix_tokens']:,} tokens is {expected} than computing: {says}"


def probe_page(found: Document) -> str:
    """A page of its own: nothing is loaded, every foreign text is escaped."""
    title = f"Probe of {plain(found['profile'])}"
    body = [f"<header class='top'><h1>{html.escape(title)}</h1><p>{html.escape(_conditions(found))}</p></header>"]
    body.append("<main>")
    for number, (heading, part) in enumerate(_parts(found), 1):
        drawing = _drawing(f"p{number}", heading, part)
        body += [f"<h2>{html.escape(heading)}</h2>", f"<div class='card beside'>{drawing}{_legend()}</div>"]
        body.append(_table(part))
        body.append("<ul>" + "".join(f"<li>{html.escape(plain(line))}</li>" for line in _sentences(part)) + "</ul>")
    body.append("</main>")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{style_sheet()}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _conditions(found: Document) -> str:
    conditions = found["conditions"]
    engine = conditions["engine"]
    per_token = conditions["kv_bytes_per_token"]
    words = [
        f"{engine['kind']} {engine['version'] or 'of unknown version'}, model {plain(engine['model'])}",
        f"device {conditions['device_tokens']:,} tokens",
        "no host tier" if conditions["host_tokens"] is None else f"host {conditions['host_tokens']:,} tokens",
        "with a disk tier" if conditions["disk"] else "no disk tier",
        f"{show_bytes(per_token)} of KV a token" if per_token else "bytes of KV a token unknown",
        "one launch, so intervals hold for it",
        plain(conditions["host"]["cpu_model"]),
        conditions["began_utc"],
    ]
    return "; ".join([*words, EMULATED] if found["emulated"] else words)


def _table(part: Document) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("source", "prefix tokens", "probes", "TTFT, median", "interval"))
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>" for cells in _rows(part)
    )
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _legend() -> str:
    shapes = {"device": "circles", "host": "squares", "disk": "triangles", "computed": "diamonds"}
    words = "; ".join(f"{source}: {shape}" for source, shape in shapes.items())
    return f"<p class='note'>{words}. Bars are intervals of the median, lines the fitted costs.</p>"


@drawing_style()
def _drawing(name: str, heading: str, part: Document) -> str:
    """TTFT by prefix length, one line a source."""
    figure, axes = new_axes()
    seconds = [second for p in part["points"] for second in (p["ttft_s"], *(p["ci"] or ()))] or [1e-3, 1.0]
    bounds = min(seconds) / 1.3, max(seconds) * 1.3
    axes.set(yscale="log", ylim=bounds)
    log_seconds(axes.yaxis, *bounds)
    for source, marker in _MARKERS.items():
        points = [point for point in part["points"] if point["source"] == source]
        if not points:
            continue
        colour = COLOURS[source]
        for point in points:
            low, high = point["ci"] or (point["ttft_s"], point["ttft_s"])
            axes.plot([point["prefix_tokens"]] * 2, [low, high], color=colour, linewidth=1.6)
        lengths = [point["prefix_tokens"] for point in points]
        axes.plot(lengths, [p["ttft_s"] for p in points], linestyle="", marker=marker, color=colour, markersize=5)
        if source in part["curve"]:
            x = np.linspace(min(lengths), max(lengths), 50)
            y = sum(c * x**power for power, c in enumerate(part["curve"][source]))
            axes.plot(x, np.maximum(y, bounds[0]), color=colour, linewidth=1.2)
    label_axes(axes, "prefix tokens", "TTFT")
    return inline_svg(figure, name, title=f"TTFT by source and prefix length: {heading}", description=_told(part))


def _told(part: Document) -> str:
    return "; ".join(
        f"{p['source']} {p['prefix_tokens']} tokens {show_seconds(p['ttft_s'])}" for p in part["points"]
    )
