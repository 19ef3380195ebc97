"""Every round begins with tiers known to be empty: fresh launches are checked, attached servers are reset."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.engine.base import Endpoint, Engine, Launch
from kvbench.engine.reset import blocks_on_disk
from kvbench.observe.residue import MUST_BE_ZERO, counted_before
from kvbench.observe.scrape import scrape_once

__all__ = ["Before", "look_before"]


@dataclass(frozen=True)
class Before:
    """What is known of the tiers before the first request of a round."""

    residue: tuple[str, ...] = ()
    """What lies in a tier that should be empty."""
    residue_unknown: tuple[str, ...] = ()
    """What a server that was just started does not tell about that."""
    not_emptied: tuple[str, ...] = ()
    """What could not be emptied, or proven to be, at a server that was already running."""


def look_before(engine: Engine, endpoint: Endpoint, launch: Launch) -> Before:
    """Empty what can be emptied, and look for the rest.

    A request of the new round can hit nothing old in any case, since its prefixes are new in every round; what is
    left in a tier still takes room in it.
    """
    if engine.kind == "attached":
        return Before(not_emptied=engine.reset())
    values = scrape_once(endpoint.metrics_url, access=endpoint.access)
    residue = list(counted_before(values))
    untold = [name for name in MUST_BE_ZERO if name not in values]
    blocks = blocks_on_disk(launch.disk_directory) if launch.disk_directory is not None else 0
    if blocks:
        residue.append(f"the disk tier holds {blocks} blocks before the first request")
    unknown = (f"no {', '.join(untold)} at /metrics before the first request",) if untold else ()
    return Before(tuple(residue), unknown)
