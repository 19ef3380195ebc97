"""Turns what is wrong with a file's values into one sentence each, with line, key and the nearest valid key."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from kvbench.errors import InputError, Where
from kvbench.spec.document import Document, KeyPath, dotted
from kvbench.spec.fitness import WEIGHT_OFFLOAD, is_weight_offload
from kvbench.spec.model import NAME_PATTERN, Misfit
from kvbench.spec.spelling import did_you_mean

__all__ = ["Problem", "input_error", "problems_of"]


class Problem(NamedTuple):
    """One thing that is wrong with a file."""

    where: Where
    text: str


def input_error(problems: list[Problem]) -> InputError:
    """All problems of a file as one error, in the order of their lines."""
    first, *others = sorted(problems, key=lambda problem: problem.where.line or 0)
    lines = [first.text, *(f"{problem.where}: {problem.text}" for problem in others)]
    return InputError("\n".join(lines), where=first.where)


def problems_of(
    error: ValidationError, model: type[BaseModel], document: Document, prefix: KeyPath
) -> list[Problem]:
    """Every finding of `error`, which arose from the part of `document` under `prefix` as a `model`."""
    found: list[Problem] = []
    for details in error.errors(include_url=False):
        for path, at_key, text in _explain(details, model, document, prefix):
            problem = Problem(_where(document, path, at_key), text)
            if problem not in found:
                found.append(problem)
    return found


def _explain(
    details: ErrorDetails, model: type[BaseModel], document: Document, prefix: KeyPath
) -> Iterator[tuple[KeyPath, bool, str]]:
    """(path, whether the key's line counts rather than the value's, sentence)."""
    kind, loc = details["type"], details["loc"]
    cause = details.get("ctx", {}).get("error")
    path = _written_path(document, prefix, loc)
    if isinstance(cause, Misfit):
        for inner, text in cause.problems:
            yield _written_path(document, path, inner), False, text
    elif kind == "missing" and isinstance(loc[-1], int):
        yield path, False, f"expected more values, got {_show(document.value(path))}"
    elif kind == "missing":
        key = str(loc[-1])
        hint = _confused_with(document, path, model, loc)
        yield path, True, f"needs the key '{key}'{hint}"
    elif kind == "extra_forbidden":
        yield path, True, _unknown_key(str(loc[-1]), _keys_at(model, loc[:-1]), path)
    elif loc[-1:] == ("[key]",):
        yield path, True, _sentence(details, path[-1])
    else:
        yield path, False, _sentence(details, document.value(path))


def _unknown_key(key: str, valid: list[str], path: KeyPath) -> str:
    if "tiers" in path and is_weight_offload(key):
        return f"{key} {WEIGHT_OFFLOAD}"
    return f"unknown key{did_you_mean(key, valid, 'keys')}" if valid else "unknown key"


def _confused_with(document: Document, path: KeyPath, model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """A key that was written but is unknown, and looks like the one that is missing, explains the lack."""
    value = document.value(path)
    keys = _keys_at(model, loc[:-1])
    unknown = [key for key in value if key not in keys] if isinstance(value, dict) else []
    return f" (written: {', '.join(unknown)})" if unknown else ""


def _sentence(details: ErrorDetails, written: object) -> str:
    """What a finding of pydantic means to the author of a YAML file."""
    kind, message, ctx = details["type"], details["msg"], details.get("ctx", {})
    shown = _show(written)
    match kind:
        case "value_error":
            text = str(ctx["error"])
        case "form":
            text = f"{message}; got {shown}"
        case "bounds":
            text = f"{message}, got {shown}"
        case "string_type":
            quotes = f'; put quotes around it: "{written}"' if isinstance(written, int | float) else ""
            text = f"expected text, got {shown}{quotes}"
        case "bool_parsing" | "bool_type":
            text = f"expected true or false, got {shown}"
        case "literal_error":
            choices = [choice.strip(" '") for choice in str(ctx["expected"]).replace(" or ", ", ").split(",")]
            text = f"{shown} is not known here{did_you_mean(str(written), choices, 'values')}"
        case "string_pattern_mismatch" if ctx["pattern"] == NAME_PATTERN:
            text = f"{shown} is not a name; use letters, digits, '.', '_' and '-', at most 64, no spaces"
        case "string_pattern_mismatch":
            # The value is not repeated: it may be the secret itself.
            text = "expected the NAME of an environment variable (letters, digits, '_'), never its content"
        case "model_type" | "model_attributes_type" | "dict_type":
            text = f"expected keys with values beneath, got {shown}"
        case "list_type" | "tuple_type":
            text = f"expected a list, got {shown}"
        case _ if written in ([], {}, ""):
            text = "must not be empty"
        case _:
            plain = message.removeprefix("Input should ").removeprefix("Tuple should ")
            text = f"{'must ' if plain != message else ''}{plain[:1].lower()}{plain[1:]}, got {shown}"
    return text


def _show(value: object) -> str:
    if isinstance(value, dict):
        text = "{" + ", ".join(map(str, value)) + "}" if value else "{}"
    else:
        text = str(value).lower() if isinstance(value, bool) else "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _where(document: Document, path: KeyPath, at_key: bool) -> Where:
    lines = document.lines.get(path)
    line = None if lines is None else lines.key if at_key else lines.value
    return Where(document.file, line, dotted(path) or None)


def _written_path(document: Document, prefix: KeyPath, loc: tuple[int | str, ...]) -> KeyPath:
    """The longest path that the file has: `loc` also names union members and keys that are missing.

    The settings of an arrival process may stand under `process`, from where they were moved.
    """
    path = prefix
    for part in loc:
        for step in ((part,), ("process", part)):
            if (*path, *step) in document.lines:
                path = (*path, *step)
                break
    return path


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The valid keys of the mapping at `loc`, by walking the models' types."""
    types: list[Any] = [model]
    for part in loc:
        types = [inner for outer in types for inner in _step(outer, part)]
    models = [kind for kind in types if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return sorted({field.alias or name for kind in models for name, field in kind.model_fields.items()})


def _step(outer: Any, part: int | str) -> list[Any]:  # noqa: ANN401 - a type expression has no type of its own
    """The types that can stand one step further along an error's location."""
    if isinstance(outer, type) and issubclass(outer, BaseModel):
        fields = [field for name, field in outer.model_fields.items() if part in (name, field.alias)]
        return [inner for field in fields for inner in _members(field.annotation)]
    if get_origin(outer) is Annotated and any(
        isinstance(tag, Tag) and tag.tag == part for tag in outer.__metadata__
    ):
        return [get_args(outer)[0]]
    return (
        [inner for argument in get_args(outer)[-1:] for inner in _members(argument)]
        if get_origin(outer) in (list, dict)
        else []
    )


def _members(annotation: Any) -> list[Any]:  # noqa: ANN401 - see _step
    """A union's members (tagged ones as they are), or the type itself."""
    if get_origin(annotation) is Annotated and not any(isinstance(tag, Tag) for tag in annotation.__metadata__):
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [inner for argument in get_args(annotation) for inner in _members(argument)]
    return [annotation]
