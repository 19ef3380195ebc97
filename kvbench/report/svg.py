"""Fits a drawing of matplotlib into a page: no inline style, no id of its own, colours that follow the theme.

A page may then forbid inline styles, hold many drawings, and switch between light and dark.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from kvbench.report.plain import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "drawing_style", "inline_svg"]

COLOURS: Mapping[str, str] = {
    name: f"#0a0b{number:02x}"
    for number, name in enumerate(
        (
            "ink",
            "muted",
            "grid",
            "surface",
            "baseline",
            "candidate",
            "device",
            "host",
            "disk",
            "computed",
            "pass",
            "fail",
            "unknown",
            "allowed",
        )
    )
}
"""Names of the page's colours → the stand-in that is drawn with, replaced by the page's own variable."""

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_VARIABLE = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
_KEPT = frozenset(
    {
        "fill",
        "fill-opacity",
        "font-size",
        "font-weight",
        "opacity",
        "stroke",
        "stroke-dasharray",
        "stroke-linecap",
        "stroke-opacity",
        "stroke-width",
        "text-anchor",
    }
)
"""Style properties that are presentation attributes as well; the page's own sheet sets the rest."""
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


@contextmanager
def drawing_style() -> Iterator[None]:
    """Inside it, drawings depend on nothing that the user has configured for matplotlib."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "kvbench"
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["text.parse_math"] = False
        matplotlib.rcParams["path.simplify"] = False
        yield


def inline_svg(figure: Figure, name: str, *, title: str, description: str) -> str:
    """`figure` as one `<svg>` element. `name` is unique in the page; title and description are read aloud."""
    root = ET.fromstring(_drawn(figure))  # noqa: S314 - matplotlib's own output
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    referenced = _references(root)
    for element in root.iter():
        _rewrite(element, name, referenced)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("class", "chart")
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{tag}"})
        element.text = plain(text)
        root.insert(position, element)
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return ET.tostring(root, encoding="unicode")


def _drawn(figure: Figure) -> str:
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The reader's fonts draw the text; that the measuring font lacks a letter is of no consequence.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _references(root: ET.Element) -> set[str]:
    found: set[str] = set()
    for element in root.iter():
        for value in element.attrib.values():
            found.update(_REFERENCE.findall(value))
        if (target := element.get(_XLINK)) is not None:
            found.add(target.removeprefix("#"))
    return found


def _rewrite(element: ET.Element, name: str, referenced: set[str]) -> None:
    for rule in element.attrib.pop("style", "").split(";"):
        key, _, value = rule.partition(":")
        if key.strip() in _KEPT:
            element.set(key.strip(), value.strip())
    for key, value in list(element.attrib.items()):
        if key == "id":
            if value in referenced:
                element.set(key, f"{name}-{value}")
            else:
                del element.attrib[key]
        elif key == _XLINK:
            del element.attrib[key]
            element.set("href", f"#{name}-{value.removeprefix('#')}")
        else:
            element.set(key, _shortened(_REFERENCE.sub(rf"url(#{name}-\1)", _VARIABLE.get(value, value))))


def _shortened(value: str) -> str:
    """One decimal is a tenth of a pixel: finer than any screen shows."""
    return " ".join(_NUMBER.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value).split())
