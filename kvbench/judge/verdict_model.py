"""The base of what a verdict is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["JudgeModel"]


class JudgeModel(BaseModel):
    """Values that never change."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)
