"""What is found of an engine in virtual time before its first request, by the checks that are made of real ones."""

from __future__ import annotations

from typing import NamedTuple

from kvbench.engine.emulated.configuration import configuration
from kvbench.engine.emulated.counters import canonical_series
from kvbench.engine.emulated.scheduler import EmulatedCore
from kvbench.engine.proof import Seen, compare
from kvbench.observe.residue import counted_before
from kvbench.spec.profile import Profile

__all__ = ["Beginning", "look_before"]


class Beginning(NamedTuple):
    """Sentences, none where all is as it should be."""

    config_differences: tuple[str, ...]
    residue: tuple[str, ...]


def look_before(core: EmulatedCore, profile: Profile, *, told: bool) -> Beginning:
    """`told`: its metrics can be had. A profile of another engine says nothing that this one could differ from."""
    sizes = core.sizes
    differences: tuple[str, ...] = ()
    if profile.engine.kind == "emulated":
        differences = compare(profile, Seen(info={"vllm_config": configuration(sizes, "")})).differences
    series = canonical_series(core.read_gauges(), host=sizes.host_bytes > 0, disk=sizes.disk) if told else []
    return Beginning(differences, counted_before({name: value for name, labels, value in series if not labels}))
