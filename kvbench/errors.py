"""Every error that kvbench raises on purpose, and the exit code each one ends in.

KvbenchError
├── InputError            2  what the user wrote or asked for is wrong
│   └── NotSupportedYetError   a documented key or command whose behaviour comes later
├── RunError              4  the run failed, whoever is at fault
│   ├── EngineError            an engine did not start, died, or is not what was asked for
│   ├── LoadError              the load driver failed
│   └── RecordError            the run directory cannot be written or read
└── Interrupted       130/143  stopped by a signal; `--resume` goes on
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "EngineError",
    "InputError",
    "Interrupted",
    "KeyPath",
    "KvbenchError",
    "LoadError",
    "NotSupportedYetError",
    "RecordError",
    "RunError",
    "UnwritableError",
    "Where",
    "dotted",
]

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the top of a file: `("guardrails", 0, "max")`."""


def dotted(path: KeyPath) -> str:
    """`guardrails[0].max`"""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True)
class Where:
    """A place in a file that the user wrote; `line` counts from 1 and may be unknown."""

    file: Path
    line: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line is not None else str(self.file)
        return f"{place}: {self.key}" if self.key else place


class KvbenchError(Exception):
    """One clear sentence: what is wrong, where, and what to do about it."""

    exit_code = 4

    def __init__(self, what: str, *, where: Where | None = None, do: str | None = None) -> None:
        self.what = what
        self.where = where
        self.do = do
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  → {self.do}" if self.do else text

    @property
    def told(self) -> str:
        """What is wrong, for those who are told nothing else."""
        return self.what


class InputError(KvbenchError):
    """The user's files, flags or environment are wrong.

    `key` is of the profile or workload that is at fault, where its file is not known; see `kvbench.spec.places`.
    """

    exit_code = 2

    def __init__(
        self, what: str, *, where: Where | None = None, key: KeyPath | None = None, do: str | None = None
    ) -> None:
        self.key = key
        super().__init__(what, where=where, do=do)

    @property
    def told(self) -> str:
        """With its key, where no place names that."""
        return f"{dotted(self.key)}: {self.what}" if self.where is None and self.key is not None else self.what

    def __str__(self) -> str:
        text = super().__str__()
        return f"{dotted(self.key)}: {text}" if self.where is None and self.key is not None else text


class NotSupportedYetError(InputError):
    """Valid according to the file format, but this version does not do it."""

    def __init__(
        self, what: str, *, where: Where | None = None, key: KeyPath | None = None, do: str | None = None
    ) -> None:
        super().__init__(f"{what} is not supported yet", where=where, key=key, do=do)


class RunError(KvbenchError):
    """The run could not be carried out."""


class EngineError(RunError):
    """An engine did not start, stopped by itself, or is not what was asked for."""


class LoadError(RunError):
    """The load driver could not do its work."""


class RecordError(RunError):
    """The run directory cannot be written or read."""


class UnwritableError(RecordError):
    """What was recorded or judged could not be written."""


class Interrupted(KvbenchError):
    """A signal ended the run; what was recorded stays and can be resumed."""

    def __init__(self, signal_number: int, *, do: str | None = None) -> None:
        self.exit_code = 128 + signal_number
        super().__init__("stopped by " + ("Ctrl-C" if signal_number == 2 else f"signal {signal_number}"), do=do)
