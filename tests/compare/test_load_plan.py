"""What a held out request is told, for every kind of tier behind the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbench.compare.load_plan import load_plan
from kvbench.engine.base import Endpoint
from kvbench.errors import NotSupportedYetError
from kvbench.record.content import content_digests
from kvbench.record.journal import Journal
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from tests.compare.test_sequence import WORKLOAD, journal_of

PAST: dict[str, object] = {"kv_transfer_params": {"kv_load_tiers": []}}
OBJECTS = {"type": "obj", "bucket": "kv", "endpoint_override": "http://127.0.0.1:9000"}
TIERS: dict[str, dict[str, Any]] = {
    "device": {},
    "host": {"host": {"size": "1GiB"}},
    "disk": {"host": {"size": "1GiB"}, "disk": {"path": "/kv"}},
    "objects": {"host": {"size": "1GiB"}, "secondary": [OBJECTS]},
}


def told(folder: Path, tiers: str, past: dict[str, object] | None = PAST) -> dict[str, object] | None:
    """What the load driver is to add to a held out request of an arm with these tiers."""
    journal = journal_of(folder, "vllm")
    workload = Workload.model_validate({**WORKLOAD, "tier_holdout": "10%"})
    manifest = journal.manifest.model_copy(update={"workload": workload})
    journal = Journal(journal.run, manifest.model_copy(update={"digests": content_digests(manifest)}))
    engine = {"kind": "vllm", "version": "0.32.0", "command": ["vllm", "serve"], "model": "/m"}
    profile = Profile.model_validate({"name": "tiered", "engine": engine, "tiers": TIERS[tiers]})
    endpoint = Endpoint("http://127.0.0.1:1", "http://127.0.0.1:1/metrics", "m", (32, 255), past_secondary=past)
    return load_plan(profile, 1, journal, endpoint, folder).past_secondary


@pytest.mark.parametrize(
    ("tiers", "expected"), [("device", None), ("host", None), ("disk", PAST), ("objects", PAST)]
)
def test_requests_are_held_out_of_whatever_stands_behind_the_host(
    tmp_path: Path, tiers: str, expected: dict[str, object] | None
) -> None:
    assert told(tmp_path, tiers) == expected


def test_a_server_that_takes_no_such_wish_is_refused(tmp_path: Path) -> None:
    assert told(tmp_path, "host", None) is None
    with pytest.raises(NotSupportedYetError, match="takes no wish of a request to go past a tier"):
        told(tmp_path / "again", "objects", None)
