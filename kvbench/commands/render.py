"""`kvbench render`: the exact command of a profile."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench.commands.options import Json
from kvbench.report.streams import print_document

__all__ = ["EXAMPLES", "render"]

EXAMPLES = "[bold]Example[/bold]\n\nkvbench render profiles/vllm/host-and-disk.yaml"


def render(
    profile: Annotated[str, typer.Argument(help="The profile to render.")],
    as_json: Json = False,
) -> None:
    """Show the exact command, environment and config files of a profile; nothing is started."""
    from kvbench.engine.create import render_profile
    from kvbench.report.rendered import show_rendered, start_document
    from kvbench.spec.loading import load_profile

    rendered = render_profile(load_profile(profile))
    if as_json:
        print_document(start_document(rendered))
    else:
        print(show_rendered(rendered), end="")
