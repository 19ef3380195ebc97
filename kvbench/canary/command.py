"""What `kvbench gate` does: the file, the reader and the state put together, watched, shown and written down."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from kvbench.canary.gate import Gate, Look, Times, make_reader
from kvbench.canary.serve import GateServer, Seen, parse_address, verdict_document
from kvbench.canary.state import StateStore, default_directory
from kvbench.canary.verdict import CanaryVerdict
from kvbench.compare.interrupts import raise_if_stopped
from kvbench.errors import InputError
from kvbench.record.atomic import write_text
from kvbench.report.gate import GateView, render_gate_junit, render_gate_markdown, show_gate
from kvbench.report.streams import say
from kvbench.spec.canary import LoadedCanary, load_canary
from kvbench.spec.quantity import parse_quantity

__all__ = ["Asked", "run_gate"]

SHORTEST_S = 1.0
"""Between two looks."""


@dataclass(frozen=True)
class Asked:
    """The command line."""

    canary: Path
    once: bool = False
    for_: str | None = None
    every: str = "15s"
    junit: Path | None = None
    markdown: Path | None = None
    serve: str | None = None
    state: Path | None = None


def run_gate(asked: Asked, console: Console, *, as_json: bool) -> tuple[CanaryVerdict, dict[str, object]]:
    """The verdict and its document. Files that were asked for are written before it returns."""
    times = Times(None if asked.for_ is None else _seconds("--for", asked.for_), _seconds("--every", asked.every))
    if asked.once and asked.serve is not None:
        raise InputError("--once ends after one look, and --serve goes on; give one of them")
    address = None if asked.serve is None else parse_address(asked.serve)
    for file in (asked.junit, asked.markdown):
        if file is not None and not file.parent.is_dir():
            raise InputError(f"there is no folder {file.parent} to write {file.name} to")
    loaded = load_canary(asked.canary)
    with ExitStack() as stack:
        reader = make_reader(loaded)
        stack.callback(reader.close)
        store = StateStore(asked.state or default_directory(loaded.canary), loaded.canary)
        stack.callback(store.close)
        gate = Gate(loaded, reader, store, times)
        server = None
        if address is not None:
            armed = loaded.canary.on_breach.armed
            server = GateServer(*address, loaded.canary.name, every_s=times.every_s, armed=armed)
            stack.enter_context(server)
            say(console, f"serving {server.address}/verdict, /healthz and /metrics")
        verdict = gate.once() if asked.once else _watched(gate, server, console)
        _write(asked, loaded, verdict)
        if not as_json:
            show_gate(console, verdict)
        if server is not None:
            _serve_on(server, gate, verdict)
    return verdict, verdict_document(verdict)


def _seconds(option: str, text: str) -> float:
    try:
        amount = parse_quantity(text, "seconds")
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error
    if amount < SHORTEST_S:
        raise InputError(f"{option}: {text} is too short; the least is {SHORTEST_S:g} s")
    return amount


def _watched(gate: Gate, server: GateServer | None, console: Console) -> CanaryVerdict:
    with GateView(console) as view:

        def on_look(look: Look) -> None:
            if gate.resumed and gate.looks == 1:
                say(console, "going on with the watch that an earlier gate began")
            view.look(look.verdict, look.failure)
            if server is not None:
                server.show(_seen(server.seen, gate, look.verdict))

        return gate.watch(on_look)


def _seen(before: Seen, gate: Gate, verdict: CanaryVerdict, *, ended: bool = False) -> Seen:
    return replace(
        before,
        verdict=verdict,
        reads_done=gate.reads_done,
        reads_failed=gate.reads_failed,
        last_read_s=gate.last_read_s,
        ended=ended,
    )


def _serve_on(server: GateServer, gate: Gate, verdict: CanaryVerdict) -> None:
    """The verdict stays to be asked for until a signal ends the command."""
    server.show(_seen(server.seen, gate, verdict, ended=True))
    while True:
        time.sleep(0.5)
        raise_if_stopped()


def _write(asked: Asked, loaded: LoadedCanary, verdict: CanaryVerdict) -> None:
    if asked.junit is not None:
        write_text(asked.junit, render_gate_junit(verdict, loaded.canary.name))
    if asked.markdown is not None:
        write_text(asked.markdown, render_gate_markdown(verdict, loaded.canary.name))
