"""A rendered engine as text that can be read and pasted into a shell."""

from __future__ import annotations

import shlex

from kvbench.engine.base import Rendered
from kvbench.report.plain import plain

__all__ = ["show_rendered", "start_document"]


def start_document(rendered: Rendered) -> dict[str, object]:
    """For machines; `beside` only where something is started beside the engine."""
    document: dict[str, object] = {"argv": list(rendered.argv), "env": rendered.env, "files": rendered.files}
    if rendered.beside:
        document["beside"] = {name: start_document(each) for name, each in rendered.beside.items()}
    return document


def show_rendered(rendered: Rendered) -> str:
    """Files as comments with their content, then the environment and the command, one flag a line.

    What is started beside the engine comes first, as it does in a launch.
    """
    lines: list[str] = []
    for name, each in rendered.beside.items():
        lines += [f"# {plain(name)}, started before the engine and stopped after it", show_rendered(each), ""]
    for path, content in rendered.files.items():
        lines += [f"# {plain(path)}", *(f"#   {plain(line)}" for line in content.splitlines()), ""]
    lines += [f"{name}={shlex.quote(plain(value))} \\" for name, value in sorted(rendered.env.items())]
    words = [shlex.quote(plain(word)) for word in rendered.argv]
    groups: list[str] = []
    for word in words:
        if word.startswith("-") or not groups or not groups[-1].startswith("-") or " " in groups[-1]:
            groups.append(word)
        else:
            groups[-1] += f" {word}"
    lines.append(" \\\n  ".join(groups))
    return "\n".join(lines) + "\n"
