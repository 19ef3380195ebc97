"""A YAML file as plain values plus the line of every key and value. Knows nothing of profiles or rules.

Reads the safe core of YAML 1.2 (`yes`, `on` and `1:30` are text, `1e3` is a number); refuses tags, duplicate keys,
several documents, and files that are too large, too deep or expand without bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml

from kvbench.errors import InputError, KeyPath, Where, dotted

__all__ = ["Document", "KeyPath", "Lines", "Origin", "dotted", "read_document"]

# A spec that a person writes has a few hundred values; these stop accidents and bombs long before memory or time.
MAX_BYTES = 512 * 1024
MAX_DEPTH = 32
MAX_VALUES = 50_000
MAX_DIGITS = 40


class Lines(NamedTuple):
    """Line numbers, from 1, of a key and of its value."""

    key: int
    value: int


@dataclass(frozen=True)
class Origin:
    """Where a spec was written. It is not part of the spec's value: any two compare equal."""

    file: Path | None = None
    lines: dict[KeyPath, Lines] = field(default_factory=dict, repr=False)
    prefix: KeyPath = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return 0

    def where(self, path: KeyPath) -> Where | None:
        """The place of `path`, or of the nearest thing around it that was written down; None without a file."""
        if self.file is None:
            return None
        full = self._as_written(self.prefix + path)
        for end in range(len(full), -1, -1):
            if full[:end] in self.lines:
                line = self.lines[full[:end]].key if end < len(full) else self.lines[full].value
                return Where(self.file, line, dotted(full) or None)
        return Where(self.file, None, dotted(full) or None)

    def _as_written(self, path: KeyPath) -> KeyPath:
        """Flags are the same with `-` and `_`, and with dashes in front."""
        if path in self.lines or not path or not isinstance(path[-1], str):
            return path
        beside = (other for other in self.lines if other[:-1] == path[:-1] and len(other) == len(path))
        return next((other for other in beside if _spelling(other[-1]) == _spelling(path[-1])), path)


def _spelling(key: str | int) -> str:
    return str(key).lstrip("-").replace("_", "-")


@dataclass(frozen=True)
class Document:
    """One file: its values, and where each of them stands."""

    file: Path
    data: object
    lines: dict[KeyPath, Lines]

    def value(self, path: KeyPath) -> object:
        """What stands at `path`, which the file has."""
        value = self.data
        for part in path:
            value = value[part]  # type: ignore[index]
        return value

    def origin(self, prefix: KeyPath = ()) -> Origin:
        """For the part of the file under `prefix`."""
        return Origin(self.file, self.lines, prefix)


def read_document(file: Path) -> Document:
    """Read and parse `file`. InputError says what is wrong and on which line."""
    text = _read_text(file)
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(file, error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(
            f"character U+{ord(text[error.position]):04X} is not allowed", where=Where(file, line)
        ) from None
    if node is None:
        raise InputError("the file is empty", where=Where(file))
    builder = _Builder(file)
    return Document(file, builder.build(node, (), node.start_mark.line + 1), builder.lines)


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", where=Where(file)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=Where(file)) from None
    if len(content) > MAX_BYTES:
        raise InputError(f"larger than {MAX_BYTES // 1024} KiB, so not a spec file", where=Where(file))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"not UTF-8 text (byte 0x{content[error.start]:02x})", where=Where(file, line), do="save it as UTF-8"
        ) from None
    if "\0" in text:
        raise InputError("not a text file (it holds NUL bytes)", where=Where(file))
    return text


def _syntax_error(file: Path, error: yaml.MarkedYAMLError) -> InputError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "not YAML"
    if "'\\t'" in problem:
        problem = "a tab; YAML indents with spaces"
    elif "single document" in (error.context or ""):
        problem = "a second document begins (---); one file holds one"
    elif "recursion" in problem or isinstance(error, _TooDeep):
        problem = f"nested deeper than {MAX_DEPTH} levels"
    elif error.context and error.context not in problem:
        problem = f"{problem} ({error.context})"
    return InputError(f"not valid YAML: {problem}", where=Where(file, mark.line + 1 if mark else None))


class _TooDeep(yaml.MarkedYAMLError):
    pass


class _Loader(yaml.SafeLoader):
    """Composes nodes only; `_Builder` turns them into values."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own form
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _TooDeep(problem="too deep", problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+|0o[0-7]+")
# The scalar forms of the YAML 1.2 core schema.
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", _INT.pattern, "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(rf"(?:{_pattern})\Z"),
        [*_first] if _tag != "null" else [*_first, ""],
    )


class _Builder:
    """Plain values from nodes; collects lines on the way."""

    def __init__(self, file: Path) -> None:
        self.lines: dict[KeyPath, Lines] = {}
        self._file = file
        self._open: set[int] = set()
        self._values = 0

    def build(self, node: yaml.Node, path: KeyPath, key_line: int) -> object:
        line = node.start_mark.line + 1
        # A mapping or list begins, for its author, at its key rather than at its first member.
        self.lines[path] = Lines(key_line, line if isinstance(node, yaml.ScalarNode) else key_line)
        self._values += 1
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            raise self._error("expands to too many values; anchors are used without bound", line, path)
        if id(node) in self._open:
            raise self._error("an anchor contains itself", line, path)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise self._error(f"the tag {node.tag} is not used here; write plain values", line, path)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                items = node.value
                return [self.build(item, (*path, i), item.start_mark.line + 1) for i, item in enumerate(items)]
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, object]:
        place = self.lines[path]
        written: dict[str, int] = {}
        merged: dict[str, object] = {}
        own: dict[str, tuple[yaml.Node, int]] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                for name, value in self._merges(value_node, path, line):
                    merged.setdefault(name, value)
                self.lines[path] = place
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error("a key must be plain text", line, path)
            key = str(key_node.value)
            if key in written:
                raise self._error(f"the key is given twice (first on line {written[key]})", line, (*path, key))
            written[key] = line
            own[key] = (value_node, line)
        # Built last, so that the lines of a key's own value win over those of a merged one.
        return {**merged, **{key: self.build(value, (*path, key), line) for key, (value, line) in own.items()}}

    def _merges(self, node: yaml.Node, path: KeyPath, line: int) -> Iterator[tuple[str, object]]:
        """`<<: *anchor` or `<<: [*a, *b]`; the first mention of a key counts."""
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                raise self._error("'<<' merges a mapping", line, path)
            value = self.build(source, path, line)
            if isinstance(value, dict):
                yield from value.items()

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        text, kind = str(node.value), node.tag.removeprefix("tag:yaml.org,2002:")
        line = node.start_mark.line + 1
        if kind in ("str", "merge"):
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind in ("int", "float"):
            if len(text) > MAX_DIGITS:
                raise self._error(f"a number of {len(text)} characters", line, path)
            try:
                return (
                    int(text, 0)
                    if kind == "int"
                    else float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                )
            except ValueError:
                raise self._error(f"{text!r} is not a number", line, path) from None
        raise self._error(f"the tag {node.tag} is not used here; write plain values", line, path)

    def _error(self, what: str, line: int, path: KeyPath) -> InputError:
        return InputError(what, where=Where(self._file, line, dotted(path) or None))
