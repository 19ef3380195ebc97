"""Pages that need nothing else: one template filled, the one style sheet inside it, every text escaped.

The page's own policy names the digest of that sheet and allows nothing more.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

__all__ = ["fill", "style_sheet"]


def style_sheet() -> str:
    """The sheet of every page."""
    return _text("kvbench.report", "page.css")


def fill(template: str, package: str = "kvbench.report", **content: object) -> str:
    """`template` of `package` with `content`, the sheet and its digest; a name that is missing is an error."""
    style = style_sheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _template(package, template).render(**content, style=style, style_digest=digest)


@cache
def _template(package: str, name: str) -> Template:
    environment = Environment(
        loader=FunctionLoader(lambda asked: _text(package, asked)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(name)


def _text(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")
