"""What every process that plays does first: right of way, room for connections, the key, the player."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder

import pyarrow as pa

from kvbench.load.client import Client
from kvbench.load.clock import Clock
from kvbench.load.plan import LoadPlan
from kvbench.load.player import Player
from kvbench.load.precedence import take_precedence
from kvbench.load.recorder import Recorder
from kvbench.load.target import Target
from kvbench.load.users import Share
from kvbench.workload.schedule import Schedule

__all__ = ["prepare_player", "prepare_process"]

SWITCH_S = 1e-3
"""How long the playing thread waits at most for the interpreter while Locust is busy; Python's own is 5 ms. It lets
go of the interpreter with every read, and has to get it back. Much less costs more than it gives: at 10 us the
threads that wait wake up so often that reads came up to 70 ms late (20,000 events/s, one core)."""


def prepare_process() -> bool:
    """Make this process fit to play. Whether it may run before ordinary work."""
    precedence = take_precedence()
    _keep_pandas_out()
    _allow_many_connections()
    sys.setswitchinterval(SWITCH_S)
    return precedence


def prepare_player(
    plan: LoadPlan,
    schedule: Schedule,
    share: Share,
    *,
    begin: Callable[[], int] | None = None,
    shipped: Callable[[str, pa.Buffer], None] | None = None,
) -> tuple[Player, Recorder]:
    """A player of `schedule`, assigned to `share`, and the recorder it writes to. InputError for the server's
    address, its headers or its authority. `begin` and `shipped` as in Player and Recorder."""
    clock = Clock()
    target = Target.of(plan.base_url, plan.api, plan.access)
    recorder = Recorder(plan.out, shipped=shipped)
    player = Player(
        schedule,
        plan,
        lambda on_over: Client(target, clock, on_over, connect_timeout_s=plan.connect_timeout_s),
        clock,
        recorder,
        report=share.report,
        answered=share.answered,
        begin=begin,
    )
    share.assign(player)
    return player, recorder


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _keep_pandas_out() -> None:
    """Arrow imports pandas with its first array, if it can, which takes half a second; nothing here needs it."""
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def _allow_many_connections() -> None:
    """Open loop: every request may need a connection of its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
