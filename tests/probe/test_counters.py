"""Where a probe's tokens came from: by hand, and from the pages of a server whose counters come when they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from kvbench.engine.base import Endpoint
from kvbench.engine.metrics_page import MetricsPage
from kvbench.errors import EngineError
from kvbench.probe import counters
from kvbench.probe.counters import Counters, came_from, hotter
from tests.observe.pages import by_label

PREFIX, SUFFIX = 256, 8
PROMPT = PREFIX + SUFFIX


@pytest.mark.parametrize(
    ("source", "rise", "alone", "beside_load"),
    [
        ("device", {"device": PREFIX, "computed": SUFFIX}, True, True),
        ("host", {"host": PREFIX, "computed": SUFFIX}, True, True),
        ("disk", {"disk": PREFIX, "computed": SUFFIX}, True, True),
        ("computed", {"computed": PROMPT}, True, True),
        # A background load computes its own prompts, and hits nothing.
        ("host", {"host": PREFIX, "computed": SUFFIX + 512}, False, True),
        ("computed", {"computed": PROMPT + 512}, False, True),
        ("host", {"host": PREFIX, "computed": SUFFIX - 1}, False, False),
        # Another tier, or part of it from another.
        ("host", {"disk": PREFIX, "computed": SUFFIX}, False, False),
        ("host", {"host": 128, "disk": 128, "computed": SUFFIX}, False, False),
        ("disk", {"host": 128, "disk": 128, "computed": SUFFIX}, False, False),
        ("disk", {"device": 128, "disk": 128, "computed": SUFFIX}, False, False),
        ("host", {"host": 128, "computed": SUFFIX + 128}, False, False),
        ("computed", {"device": 128, "computed": PROMPT - 128}, False, False),
        # A tier that the server does not name.
        ("host", {"elsewhere": PREFIX, "computed": SUFFIX}, False, False),
        ("host", {"host": PREFIX, "elsewhere": 128, "computed": SUFFIX}, False, False),
        ("computed", {"elsewhere": 1, "computed": PROMPT}, False, False),
        # A hit of somebody else's besides.
        ("host", {"host": PREFIX, "device": 64, "computed": SUFFIX}, False, False),
        ("host", {"host": 2 * PREFIX, "computed": SUFFIX}, False, False),
    ],
)
def test_a_probe_counts_where_all_of_it_came_from_its_source(
    source: str, rise: dict[str, float], alone: bool, beside_load: bool
) -> None:
    assert came_from(source, rise, PREFIX, PROMPT, alone=True) is alone
    assert came_from(source, rise, PREFIX, PROMPT, alone=False) is beside_load


@pytest.mark.parametrize(
    ("source", "rise", "expected"),
    [
        ("disk", {"host": 128, "disk": 128}, True),
        ("disk", {"device": 8, "computed": 264}, True),
        ("host", {"device": 128, "host": 128}, True),
        ("computed", {"disk": 128}, True),
        ("host", {"disk": 128, "computed": 264}, False),
        ("host", {"host": 256}, False),
        ("device", {"device": 128, "host": 128, "computed": 8}, False),
        ("disk", {"elsewhere": 256}, False),
    ],
)
def test_what_came_from_a_hotter_tier_was_not_pushed_far_enough(
    source: str, rise: dict[str, float], expected: bool
) -> None:
    """What came from a colder one had been pushed too far; harder pushing would make it worse."""
    assert hotter(source, rise) is expected


def a_page(computed: float, device: float, host: float = 0, disk: float = 0, peer: float = 0) -> str:
    """As vLLM tells its sources since 0.32."""
    kinds = {"local_compute": computed, "local_cache_hit": device, "external_kv_transfer": host + disk + peer}
    tiers = {"device": device, "host": host, "disk": disk, "p2p": peer}
    return by_label("vllm:prompt_tokens_by_source", "source", kinds) + by_label(
        "vllm:prompt_tokens_cached_by_source", "source", tiers
    )


@contextmanager
def reading(pages: Sequence[str]) -> Iterator[Counters]:
    """Of a server with these pages, one after the other, and then always the last."""
    left = list(pages)
    with closing(MetricsPage(lambda: (200, left.pop(0) if len(left) > 1 else left[0]))) as page:
        endpoint = Endpoint(page.url.removesuffix("/metrics"), page.url, "tiny", (32, 255))
        with closing(Counters(endpoint)) as found:
            yield found


BEFORE = a_page(1000, 500, 300, 200, 100)


def test_what_rose_is_told_by_source() -> None:
    with reading([BEFORE, a_page(1008, 500, 428, 328, 100)]) as found:
        before = found.read()
        rise = found.increase(before, PROMPT, PREFIX)
    assert rise == {"computed": 8, "device": 0, "host": 128, "disk": 128, "elsewhere": 0}


def test_what_a_peer_gave_is_from_elsewhere() -> None:
    with reading([BEFORE, a_page(1008, 500, 300, 200, 356)]) as found:
        rise = found.increase(found.read(), PROMPT, PREFIX)
    assert rise == {"computed": 8, "device": 0, "host": 0, "disk": 0, "elsewhere": 256}


def test_counters_that_come_late_are_waited_for() -> None:
    """Given an answer that is there before the server has counted any of it, and then only a part."""
    late = [BEFORE, BEFORE, BEFORE, a_page(1008, 500, 300, 200, 100), a_page(1008, 500, 556, 200, 100)]
    with reading(late) as found:
        rise = found.increase(found.read(), PROMPT, PREFIX)
    assert (rise["computed"], rise["host"]) == (SUFFIX, PREFIX)


def test_what_a_load_computes_does_not_stand_for_hits_that_come_late() -> None:
    """Given enough tokens of others, then those that the answer says were cached are waited for all the same."""
    busy = [BEFORE, a_page(1600, 500, 300, 200, 100), a_page(1608, 500, 556, 200, 100)]
    with reading(busy) as found:
        assert found.increase(found.read(), PROMPT, PREFIX)["host"] == PREFIX
    with reading(busy) as found:
        assert found.increase(found.read(), PROMPT)["host"] == 0, "nobody said that any was cached"


@pytest.mark.parametrize(
    "after", [a_page(8, 0, 256), a_page(2000, 500, 300, 100, 100)], ids=["all of them", "one of them"]
)
def test_counters_that_fall_in_the_middle_of_a_probe_end_it(after: str) -> None:
    with reading([BEFORE, after]) as found:
        before = found.read()
        with pytest.raises(EngineError, match="were reset in the middle of a probe"):
            found.increase(before, PROMPT, PREFIX)


def test_counters_that_never_come_are_told_with_what_they_rose_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "SETTLED_S", 0.2)
    with reading([BEFORE, a_page(1008, 500, 428, 200, 100)]) as found:
        before = found.read()
        with pytest.raises(EngineError, match=r"of 264 tokens .* rose by 136, 128 of them cached"):
            found.increase(before, PROMPT, PREFIX)


@pytest.mark.parametrize("text", ["", "vllm:prompt_tokens_total 5\n", "no metrics at all"])
def test_a_server_that_does_not_tell_its_sources_verifies_no_probe(text: str) -> None:
    with reading([text]) as found, pytest.raises(EngineError, match="no probe can be verified"):
        found.read()
