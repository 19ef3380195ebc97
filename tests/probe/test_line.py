"""Prompts are pushed from tier to tier by each other alone, and each comes from where it should when it is sent."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from pathlib import Path

import pytest

from kvbench.engine.base import Effective
from kvbench.errors import InputError
from kvbench.probe.line import DEVICE_HITS, Line
from kvbench.probe.setting import Room, choose_lengths, room_of
from kvbench.spec.profile import Profile
from tests.plan.test_geometry import PLAIN

UNIT = 128


class Tiers:
    """Device and host as LRU caches of blocks, and a disk that keeps all. The tail of a prompt goes first."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.device: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.host: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.disk: set[tuple[int, int]] = set()

    def send(self, number: int, tokens: int) -> Counter[str]:
        """Blocks by source; afterwards they are in every tier."""
        keys = [(number, index) for index in range(tokens // UNIT)]
        came: Counter[str] = Counter()
        for key in keys:
            if key in self.device:
                came["device"] += 1
            elif key in self.host:
                came["host"] += 1
            elif key in self.disk and self.room.disk:
                came["disk"] += 1
            else:
                came["computed"] += 1
        for cache, capacity in ((self.device, self.room.device), (self.host, self.room.host or 0)):
            for key in reversed(keys):
                cache[key] = None
                cache.move_to_end(key)
            while len(cache) > capacity // UNIT:
                cache.popitem(last=False)
        self.disk.update(keys)
        return came


def play(room: Room, steps: int, lengths: tuple[int, ...] = ()) -> tuple[Counter[tuple[str, int]], int]:
    """How often each source was hit at each length, and how many probes came from elsewhere."""
    line, tiers = Line(room, choose_lengths(room, lengths)), Tiers(room)
    hits: Counter[tuple[str, int]] = Counter()
    missed = 0
    for _ in range(steps):
        step = line.step()
        came = tiers.send(step.prompt.number, step.prompt.tokens)
        line.used(step)
        if set(came) == {step.source}:
            hits[str(step.source), step.prompt.tokens] += 1
            line.hit(step)
        else:
            missed += 1
            hotter = ("device", "host", "disk", "computed").index(str(step.source))
            line.missed(step, any(came[t] for t in ("device", "host", "disk", "computed")[:hotter]))
    return hits, missed


def a_room(device: int = 130, host: int | None = 256, *, disk: bool = True) -> Room:
    blocks = None if host is None else host * UNIT
    return Room(unit=UNIT, device=device * UNIT, host=blocks, disk=disk, max_model_len=8192)


@pytest.mark.parametrize("host", [200, 256, 1024])
def test_every_source_is_hit_at_every_length_and_hardly_a_probe_is_lost(host: int) -> None:
    room = a_room(host=host)
    hits, missed = play(room, 2000)
    assert {source for source, _ in hits} == {"computed", "device", "host", "disk"}
    assert missed <= 20
    for source in ("computed", "device", "host", "disk"):
        counts = [hits[source, length] for length in choose_lengths(room, ())]
        assert min(counts) >= 10, (source, counts)


def test_what_costs_least_to_probe_and_is_hardest_to_tell_is_probed_most() -> None:
    hits, _ = play(a_room(), 1000)
    for length in choose_lengths(a_room(), ()):
        assert hits["device", length] == pytest.approx(DEVICE_HITS * hits["computed", length], abs=DEVICE_HITS)


def test_a_prompt_that_is_not_on_the_device_is_not_looked_for_there_again() -> None:
    line = Line(a_room(), (UNIT,))
    line.hit(first := line.step())
    line.used(first)
    line.missed(again := line.step(), False)
    assert [first.source, again.source, line.step().source] == ["computed", "device", "computed"]


def test_without_a_disk_the_host_is_the_last() -> None:
    hits, missed = play(a_room(disk=False), 600)
    assert {source for source, _ in hits} == {"computed", "device", "host"}
    assert missed <= 6


def test_the_device_alone_needs_no_pushing() -> None:
    hits, missed = play(a_room(host=None, disk=False), 100)
    assert {source for source, _ in hits} == {"computed", "device"}
    assert missed == 0


def test_a_host_no_larger_than_the_device_cannot_be_forced_and_the_disk_can() -> None:
    hits, _ = play(a_room(device=130, host=130), 1500, (512, 2048))
    assert "host" not in {source for source, _ in hits}
    assert min(hits["disk", 512], hits["disk", 2048]) >= 10


def test_a_tier_that_holds_more_than_it_says_is_pushed_harder_after_each_miss() -> None:
    room = a_room(host=512)
    line, tiers = Line(room, choose_lengths(room, ())), Tiers(room)
    tiers.room = Room(UNIT, int(room.device * 1.4), room.host, disk=True, max_model_len=8192)
    late: list[bool] = []
    for _ in range(1500):
        step = line.step()
        came = tiers.send(step.prompt.number, step.prompt.tokens)
        line.used(step)
        right = set(came) == {step.source}
        late.append(right)
        if right:
            line.hit(step)
        else:
            line.missed(step, came["device"] > 0 and step.source != "device")
    assert not all(late[:500])
    assert sum(late[-500:]) >= 490


def test_lengths_are_whole_units_and_fit_every_tier() -> None:
    room = a_room()
    lengths = choose_lengths(room, ())
    assert lengths[-1] == 8064
    assert all(length % UNIT == 0 for length in lengths)
    assert lengths[0] == UNIT, "near there good tiers break even"
    assert len(lengths) == 5
    assert choose_lengths(room, (1000, 2000)) == (896, 1920)


@pytest.mark.parametrize("asked", [(9000, 128), (130, 140)])
def test_lengths_that_cannot_give_a_cost_are_refused(asked: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        choose_lengths(a_room(), asked)


@pytest.mark.parametrize(("type_", "disk"), [("obj", True), ("p2p", False)])
def test_what_an_object_store_gives_back_counts_as_from_the_disk(tmp_path: Path, type_: str, disk: bool) -> None:
    """As engines count it; what peers give is from elsewhere."""
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    keys = {"bucket": "kv", "endpoint_override": "http://127.0.0.1:9000"} if type_ == "obj" else {}
    tiers = {"device": {"blocks": 20}, "host": {"size": "64MiB"}, "secondary": [{"type": type_, **keys}]}
    engine = {"kind": "vllm", "version": "0.32.0", "command": ["vllm", "serve"], "model": str(tmp_path)}
    profile = Profile.model_validate({"name": "p", "engine": engine, "tiers": tiers})
    effective = Effective("0.32.0", "tiny", 4096, UNIT, 20, None, True, 64 * 2**20, None)
    assert room_of(profile, effective).sources == ("device", "host", *(["disk"] if disk else []), "computed")
