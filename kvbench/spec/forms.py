"""Values that may be written in several ways: which of them one has."""

from __future__ import annotations

from collections.abc import Callable

from kvbench.spec.model import SpecModel

__all__ = ["form"]


def form(*keys: str, bare: type | tuple[type, ...] = (int, float, str)) -> Callable[[object], str | None]:
    """Which of several written forms a value has: "bare", or the one of `keys` that it carries."""

    def written(value: object) -> str | None:
        if isinstance(value, SpecModel):
            fields = type(value).model_fields
            return next((key for key in keys if key in fields), None)
        if isinstance(value, dict):
            return next((key for key in keys if key in value), None)
        return "bare" if isinstance(value, bare) else None

    return written
