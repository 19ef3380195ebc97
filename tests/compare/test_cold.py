"""Before a round: what is in a tier is found, and a server that does not tell is not taken for an empty one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvbench.compare.cold import Before, look_before
from kvbench.engine.base import Endpoint
from tests.standin.server import Behaviour, stand_in

UNTOLD = "no prompt_tokens, cached_tokens, kv_cache_usage at /metrics before the first request"


def looked(behaviour: Behaviour, disk: Path | None = None, kind: str = "vllm") -> Before:
    engine: Any = SimpleNamespace(kind=kind, reset=lambda: ("device and host: the reset failed",))
    launch: Any = SimpleNamespace(disk_directory=disk)
    with stand_in(behaviour) as (url, _):
        return look_before(engine, Endpoint(url, f"{url}/metrics", "m", (32, 255)), launch)


def test_a_server_that_says_zero_is_empty() -> None:
    assert looked(Behaviour()) == Before()


def test_what_was_served_before_is_residue() -> None:
    served = Behaviour(counters={"prompt": 7.0, "generation": 1.0, "finished": 1.0})
    assert looked(served) == Before(("prompt_tokens is 7 before the first request",))


@pytest.mark.parametrize("silent", [Behaviour(metrics=False), Behaviour(metrics_vanish_after=0)])
def test_a_server_without_metrics_is_not_known_to_be_empty(silent: Behaviour) -> None:
    assert looked(silent) == Before(residue_unknown=(UNTOLD,))


def test_a_page_that_lacks_one_of_the_figures_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"prompt_tokens": 0.0, "kv_cache_usage": 0.0, "requests_running": 0.0}
    monkeypatch.setattr("kvbench.compare.cold.scrape_once", lambda *_, **__: told)
    assert looked(Behaviour()) == Before(residue_unknown=("no cached_tokens at /metrics before the first request",))


def test_blocks_on_disk_are_found_where_metrics_are_silent(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "block.bin").write_bytes(b"\0")
    found = looked(Behaviour(metrics=False), tmp_path)
    assert found.residue == ("the disk tier holds 1 blocks before the first request",)
    assert found.residue_unknown == (UNTOLD,)


def test_a_running_server_is_reset_and_not_looked_at() -> None:
    served = Behaviour(counters={"prompt": 7.0, "generation": 1.0, "finished": 1.0})
    assert looked(served, kind="attached") == Before(not_emptied=("device and host: the reset failed",))
