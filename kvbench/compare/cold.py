"""Every round begins with tiers known to be empty: fresh launches are checked, attached servers are reset."""

from __future__ import annotations

from kvbench.engine.base import Endpoint, Engine, Launch
from kvbench.engine.reset import blocks_on_disk
from kvbench.observe.scrape import scrape_once

__all__ = ["residue_before"]

_MUST_BE_ZERO = ("prompt_tokens", "cached_tokens", "kv_cache_usage")


def residue_before(engine: Engine, endpoint: Endpoint, launch: Launch) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What lies in a tier that should be empty, and what could not be emptied or proven.

    A request of the new round can hit nothing old in any case, since its prefixes are new in every round; what is
    left in a tier still takes room in it.
    """
    if engine.kind == "attached":
        return (), engine.reset()
    residue: list[str] = []
    values = scrape_once(endpoint.metrics_url, access=endpoint.access)
    residue += [
        f"{name} is {values[name]:g} before the first request" for name in _MUST_BE_ZERO if values.get(name)
    ]
    if launch.disk_directory is not None:
        blocks = blocks_on_disk(launch.disk_directory)
        if blocks:
            residue.append(f"the disk tier holds {blocks} blocks before the first request")
    return tuple(residue), ()
