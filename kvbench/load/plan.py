"""What the load driver is told: one JSON file beside the schedule. It runs as a process of its own."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvbench.errors import InputError
from kvbench.spec.access import NO_ACCESS, Access, Api
from kvbench.spec.crew import Crew

__all__ = ["LOG_FILE", "PLAN_FILE", "LoadPlan", "read_plan"]

PLAN_FILE = "load-plan.json"
"""In `LoadPlan.out`. It is there before the first request is sent, and stays."""
LOG_FILE = "load.log"
"""Beside it: what the driver's process writes to stderr."""


class LoadPlan(BaseModel):
    """One round of one arm for one worker. Paths are absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schedule: Path
    """Written by `kvbench.workload.storage.write_schedule`."""
    out: Path
    """Directory for `requests.parquet`, `tokens.parquet` and `load.json`; exists."""
    arm: str
    round: int
    base_url: str
    model: str
    token_id_range: tuple[int, int]
    access: Access = NO_ACCESS
    """What every request carries; each worker reads secrets from its own environment."""
    api: Api = "completions"
    extra_body: dict[str, object] = Field(default_factory=dict)
    """Further fields of every completion. `"min_tokens": "output"` stands for the output length of each request."""
    words: tuple[str, ...] = ()
    """Prompts are sent as text: word k stands for token number k. Empty: as token ids."""
    opening: str = ""
    """Every text begins with it; its tokens are among `extra_prompt_tokens`."""
    extra_prompt_tokens: int = 0
    """Tokens that the server puts in front of a text by itself; they count as part of the prompt."""
    extra_tokens_behind: int = 0
    """The same behind a text, as chat templates do."""
    past_secondary: dict[str, object] | None = None
    """Further fields of a request that is held out; None: this arm has no tier to hold it out of."""
    drain_s: float | None = None
    """After the last phase, requests still under way get this long before they count as timed out. None: the time
    that each of them is allowed, which the last one sent has used up one request time-out after the phase; whatever
    is shorter makes errors of healthy answers."""
    connect_timeout_s: float = 10.0
    """For one TCP connection with its TLS handshake: three SYN retransmissions (1 + 2 + 4 s) and some room."""
    worker: int = 0
    crew: Crew = Crew()
    """Who plays it; a single local worker needs no master."""

    @property
    def forces_length(self) -> bool:
        """Whether the server is told to produce exactly the tokens asked for, so that fewer are a failure."""
        return self.extra_body.get("ignore_eos") is True or "min_tokens" in self.extra_body


def read_plan(path: Path) -> LoadPlan:
    """The plan in a JSON file. InputError when it is none."""
    try:
        return LoadPlan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{path} is not a load plan: {error}") from error
