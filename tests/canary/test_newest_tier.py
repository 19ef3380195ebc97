"""The tier that a rollback switches off, where it is an object store behind the host."""

from __future__ import annotations

from pathlib import Path

from kvbench.canary.action import newest_tier_of, without_tier
from kvbench.spec.canary import Canary, LoadedCanary
from kvbench.spec.profile import Profile

HOST = {"size": "1GiB"}
STORE = {"type": "obj", "bucket": "kv", "endpoint_override": "http://127.0.0.1:9000"}
CANARY = Canary.model_validate(
    {
        "name": "c",
        "scrape": {"candidate": ["http://127.0.0.1:8000"]},
        "candidate": {},
        "rules": {"guardrails": [{"id": "p", "metric": "ttft", "quantile": 0.99, "max": 1.0}]},
    }
)


def profile(**tiers: object) -> Profile:
    return Profile.model_validate({"name": "p", "engine": {"kind": "vllm", "model": "tiny"}, "tiers": tiers})


def test_an_object_store_counts_as_the_disk_and_goes_with_it() -> None:
    stored, before = profile(host=HOST, secondary=[STORE]), profile(host=HOST)
    for baseline in (None, before):
        assert newest_tier_of(LoadedCanary(CANARY, stored, baseline, Path("c.yaml"))) == "disk"
        assert without_tier(stored, "disk", baseline) == before
    assert newest_tier_of(LoadedCanary(CANARY, before, None, Path("c.yaml"))) == "host"
