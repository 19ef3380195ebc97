"""Files that come with kvbench: workloads, rules and profiles, found by name (`mixed`, `default`, `cpu/baseline`).

They lie in the wheel under `kvbench/shipped`, in a source checkout in `workloads/` and `profiles/` at its top.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from kvbench.errors import InputError, Where
from kvbench.spec.spelling import did_you_mean, nearest

__all__ = ["DEFAULT_RULES", "DEFAULT_WORKLOAD", "Kind", "find", "shipped_folder", "shipped_names", "shipped_path"]

Kind = Literal["profile", "workload", "rules"]

DEFAULT_WORKLOAD = "mixed"
DEFAULT_RULES = "default"

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS: dict[Kind, str] = {"profile": "profiles", "workload": "workloads", "rules": "profiles/rules"}


def shipped_folder(name: str) -> Path:
    """The folder of that name among what comes with kvbench: `deploy`, `dashboards`."""
    wheel = _PACKAGE / "shipped"
    return (wheel if wheel.is_dir() else _PACKAGE.parent) / name


def _folder(kind: Kind) -> Path:
    return shipped_folder(_FOLDERS[kind])


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """Sorted names: `mixed`; profiles with their folder, `cpu/baseline`."""
    folder = _folder(kind)
    names = (file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.yaml"))
    return tuple(sorted(name for name in names if kind != "profile" or not name.startswith("rules/")))


def shipped_path(kind: Kind, name: str) -> Path:
    """The file of a shipped name. InputError names the ones there are."""
    names = shipped_names(kind)
    if name not in names:
        raise InputError(f"'{name}' is neither a file nor a shipped {kind}{did_you_mean(name, names, 'names')}")
    return _folder(kind) / f"{name}.yaml"


def find(kind: Kind, source: str | Path, beside: Path | None = None) -> Path:
    """The file that `source` means: a path (relative to `beside`, when given), else a shipped name.

    A name that ends in .yaml, .yml or .json always means a path.
    """
    try:
        path = Path(source).expanduser()
        path = beside / path if beside is not None else path
        there = path.exists()
    except (OSError, RuntimeError) as error:
        what = error.strerror if isinstance(error, OSError) else "there is no such home directory"
        raise InputError(f"{str(source)[:200]} cannot be read: {what}") from None
    if there or path.suffix in (".yaml", ".yml", ".json"):
        return _existing(path)
    return shipped_path(kind, str(source))


def _existing(path: Path) -> Path:
    if path.is_dir():
        raise InputError("is a directory; name a file in it", where=Where(path))
    if not path.exists():
        there = sorted(file.name for file in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        guess = nearest(path.name, there)
        raise InputError("there is no such file", where=Where(path), do=f"did you mean {guess}?" if guess else None)
    return path
