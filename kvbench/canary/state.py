"""What a gate remembers on disk: when its watch began, what it has fired, and scrapes that nobody else keeps.

One directory a canary, locked while a gate runs. A gate that was killed goes on from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvbench.canary.scrapes import ScrapeLog
from kvbench.canary.told import ServerSays
from kvbench.canary.verdict import CanaryVerdict, HookResult, Rollback
from kvbench.engine.environment import kvbench_home
from kvbench.errors import InputError, RecordError
from kvbench.record.atomic import write_text
from kvbench.spec.canary import Canary

__all__ = ["GateState", "ProofState", "StateStore", "default_directory"]


class ProofState(BaseModel):
    """The proof after a hook, under way or over. Unix seconds by the clock of the samples."""

    model_config = ConfigDict(frozen=True)

    before_s: float
    fired_s: float
    until_s: float
    told_before: dict[str, ServerSays] = Field(default_factory=dict)
    """What the servers declared before the hook."""
    rollback: Rollback | None = None
    """What the latest look said."""


class GateState(BaseModel):
    """The watch that is under way, or was last."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    schema_: Literal[1] = Field(default=1, alias="schema")
    canary: str
    """Digest of what the file says; a changed file is another watch."""
    started_s: float
    planned_end_s: float
    fired: HookResult | None = None
    proof: ProofState | None = None
    """After what was fired."""
    breach: CanaryVerdict | None = None
    """The verdict that called for it, until the proof is over; a gate that was killed meanwhile goes on with it."""
    outcome: str | None = None
    """Of a watch that has ended."""
    ended: CanaryVerdict | None = None
    """What it ended with. A gate started again says it where others were told, or ask, or nobody has heard it."""
    delivered: bool = True
    """Whether whoever started the watch has had its verdict: killed at the very end, it is not lost."""
    ended_for_good: bool = False
    """A serving gate ended with it: it is answered until the file or the state is another one."""


def digest(canary: Canary) -> str:
    """Of everything that the file says."""
    text = json.dumps(canary.model_dump(mode="json", by_alias=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def default_directory(canary: Canary) -> Path:
    """`<KVBENCH_HOME>/gates/<name>-<digest>`."""
    return kvbench_home() / "gates" / f"{canary.name}-{digest(canary)[:12]}"


class StateStore:
    """The directory of one canary, held by one gate at a time."""

    def __init__(self, directory: Path, canary: Canary) -> None:
        """InputError when another gate holds it; RecordError when it cannot be written."""
        self._directory = directory
        self._digest = digest(canary)
        self._file = directory / "state.json"
        self.scrapes = ScrapeLog(directory / "scrapes")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (directory / "lock").open("a+", encoding="ascii")
        except OSError as error:
            raise RecordError(
                f"cannot keep the state of the gate in {directory}: {error.strerror or error}",
                do="name another directory with --state",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InputError(
                f"another gate watches this canary (its state is in {directory})",
                do="wait for it, or name another directory with --state",
            ) from None

    @property
    def directory(self) -> Path:
        return self._directory

    def load(self) -> GateState | None:
        """What is known of this canary; None when there is nothing, or it is of another file."""
        try:
            state = GateState.model_validate_json(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise RecordError(
                f"{self._file} cannot be read: {error}", do="remove it to begin a new watch, or give --state"
            ) from None
        return state if state.canary == self._digest else None

    def begin(self, started_s: float, planned_end_s: float, fired: HookResult | None = None) -> GateState:
        """A new watch; scrapes of an earlier one are dropped."""
        self.scrapes.drop()
        state = GateState(canary=self._digest, started_s=started_s, planned_end_s=planned_end_s, fired=fired)
        self.save(state)
        return state

    def save(self, state: GateState) -> None:
        """On disk before anything else happens."""
        # Not by pydantic: it writes null for the open end of an interval.
        write_text(self._file, json.dumps(state.model_dump(by_alias=True), indent=1) + "\n")

    def close(self) -> None:
        """Let the next gate have it."""
        self._lock.close()
