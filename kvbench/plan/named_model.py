"""A model as users name it for a plan: a directory, its config.json, or one of the known public ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvbench.errors import InputError, Where
from kvbench.plan.geometry import read_config
from kvbench.plan.known_models import KNOWN_MODELS
from kvbench.plan.layers import Config

__all__ = ["NamedModel", "named_model"]


@dataclass(frozen=True)
class NamedModel:
    """Its config, and where its files lie if they do."""

    name: str
    config: Config
    directory: Path | None = None
    where: Where | None = None


def named_model(text: str) -> NamedModel:
    """InputError for what is neither there nor known."""
    if text in KNOWN_MODELS:
        return NamedModel(text, KNOWN_MODELS[text])
    source = Path(text).expanduser()
    if not _is_there(source):
        known = ", ".join(KNOWN_MODELS)
        raise InputError(f"--model: {text!r} is neither a model's directory or config.json nor one of {known}")
    directory = source if source.is_dir() else source.parent
    file = source / "config.json" if source.is_dir() else source
    return NamedModel(directory.resolve().name, read_config(source), directory, Where(file))


def _is_there(source: Path) -> bool:
    try:
        return source.exists()
    except OSError:  # a name that no file can have, or a folder that may not be looked into
        return False
