"""What every spec model shares: unknown keys are errors, values never change, and where it was written is known."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from kvbench.spec.document import KeyPath, Origin

__all__ = ["Misfit", "Name", "SpecFile", "SpecModel"]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
"""Names become directory names, labels and file names, hence the narrow alphabet."""


class Misfit(ValueError):
    """Raised by a model whose values do not fit together; names the key at fault, relative to the model."""

    def __init__(self, *problems: tuple[KeyPath, str]) -> None:
        self.problems = problems
        super().__init__("; ".join(text for _, text in problems))


class SpecModel(BaseModel):
    """Base of everything users write."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class SpecFile(SpecModel):
    """A model that is a file of its own (or a member of an experiment): it knows where it was written."""

    _origin: Origin = PrivateAttr(default_factory=Origin)
