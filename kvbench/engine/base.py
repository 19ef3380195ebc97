"""What an engine is to kvbench: something that is started, is reachable, proves what it is, and is stopped.

Kinds (vllm, tensorrt-llm, attached, emulated) are interchangeable behind `Engine`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from kvbench.spec.access import NO_ACCESS, Access, Api

__all__ = ["Effective", "Endpoint", "Engine", "EngineState", "KvEventTarget", "Launch", "Progress", "Rendered"]

Progress = Callable[[str], None]
"""Called with one short line whenever there is news worth showing."""


@dataclass(frozen=True)
class Rendered:
    """The exact command, environment additions and files of an engine; nothing is started."""

    argv: tuple[str, ...]
    env: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    """Absolute path → content, to be written before the start."""
    beside: dict[str, Rendered] = field(default_factory=dict)
    """Servers that are started before the engine and stopped after it, by name."""


@dataclass(frozen=True)
class Endpoint:
    """Where and how requests are sent."""

    base_url: str
    """Without `/v1` and without a trailing slash."""
    metrics_url: str
    model: str
    token_id_range: tuple[int, int]
    """Inclusive range of token ids that prompts are made of."""
    access: Access = NO_ACCESS
    api: Api = "completions"
    extra_body: dict[str, object] = field(default_factory=dict)
    """Fields that this kind of engine takes with a completion, such as `ignore_eos` and `return_token_ids`."""
    words: tuple[str, ...] = ()
    """For servers that take only text: word k stands for token number k, and `token_id_range` counts these."""
    opening: str = ""
    """What every such prompt begins with; its tokens are among `extra_prompt_tokens`."""
    extra_prompt_tokens: int = 0
    """Tokens that such a server puts in front of a prompt by itself."""
    extra_tokens_behind: int = 0
    """Those that it puts behind."""
    past_secondary: dict[str, object] | None = None
    """Further fields that send a completion past the tiers behind the host; None: no such thing is known here."""


@dataclass(frozen=True)
class Effective:
    """What the running server proved about itself. None: it could not be proven."""

    version: str | None
    model: str | None
    max_model_len: int | None
    block_tokens: int | None
    device_blocks: int | None
    kv_dtype: str | None
    prefix_caching: bool | None
    host_bytes: int | None
    """0: proven to have no host tier."""
    disk: bool | None
    differences: tuple[str, ...] = ()
    """Sentences: what is not as the profile asks. Any of them makes the run INVALID."""
    unknown: tuple[str, ...] = ()
    """What could not be proven."""
    raw: dict[str, object] = field(default_factory=dict)
    """The server's own words (`/server_info`, `/version`, labels), kept in the run's manifest."""


@dataclass(frozen=True)
class EngineState:
    """Whether the engine is there now."""

    alive: bool
    detail: str = ""
    pids: tuple[int, ...] = ()
    """Process tree of a launched engine (or of an attached one on loopback, when it can be found)."""


@dataclass(frozen=True)
class KvEventTarget:
    """Where an engine is to publish what becomes of its blocks."""

    endpoint: str
    """A loopback address at which somebody listens; the engine connects to it."""
    topic: str


@dataclass(frozen=True)
class Launch:
    """Where one start of an engine keeps its things."""

    directory: Path
    """For rendered files and the log; exists."""
    log: Path
    """`engine-<n>.log` of this start."""
    disk_directory: Path | None
    """This launch's own directory under the disk tier's path; the start makes and marks it, the stop removes it."""
    label: str
    """Unique within the run, e.g. `tiered-2`."""
    kv_events: KvEventTarget | None = None
    """None: nobody listens, so nothing is published."""


class Engine(Protocol):
    """One start of one engine. `start` may be called once; `stop` any number of times."""

    @property
    def kind(self) -> Literal["vllm", "tensorrt-llm", "attached", "emulated"]:
        """As in the profile."""
        ...

    def start(self, progress: Progress) -> Endpoint:
        """Start and wait until requests are answered. EngineError with the cause when that fails."""
        ...

    def effective(self) -> Effective:
        """Ask the running server what it is and compare that with the profile."""
        ...

    def state(self) -> EngineState:
        """Cheap; may be called every second during a round."""
        ...

    def reset(self) -> tuple[str, ...]:
        """Empty every tier that can be emptied without a restart; returns what could not be emptied or proven."""
        ...

    def stop(self) -> None:
        """Stop it and remove everything it left: processes, port, `/dev/shm` files, its disk directory."""
        ...

    def remarks(self) -> tuple[str, ...]:
        """How it had to be stopped, in sentences; empty before, and when it ended as it was asked to."""
        ...
