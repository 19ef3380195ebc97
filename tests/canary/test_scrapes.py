"""Scrapes on disk: kept as they were read, in little space, whatever was cut off; gone when the watch is over."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.canary.families import wanted_names
from kvbench.canary.reading import History, Read
from kvbench.canary.scrapes import ScrapeLog
from kvbench.canary.scraping import samples_of
from kvbench.canary.series import Group, Samples, key_of
from kvbench.engine.emulated.counters import Counters
from kvbench.engine.emulated.exposition import exposition
from kvbench.engine.emulated.sizes import Sizes
from kvbench.errors import RecordError
from tests.canary.build import ERRORS, P99, SUSTAINED, rules
from tests.canary.watched import BAD, GOOD, Clock, Stored, both, gate

Round = dict[str, dict[str, float]]
"""Replica → series → value."""
NAMES = st.sampled_from(["a_total", "b_total", "c"])
VALUES = st.one_of(st.integers(0, 2**60).map(float), st.floats(-1e6, 1e6), st.sampled_from([0.1, 2.0**53, -0.0]))
SCRAPE = st.dictionaries(NAMES, VALUES, min_size=1)
ROUNDS = st.lists(st.dictionaries(st.sampled_from(["r1", "r2"]), SCRAPE), min_size=1, max_size=12)


def read_of(round_: Round, t_s: float) -> Read:
    times = np.array([t_s])
    samples: dict[str, Samples] = {
        name: {key_of(series, {"x": "1"}): (times, np.array([value])) for series, value in told.items()}
        for name, told in round_.items()
    }
    return Read({"candidate": samples}, {"candidate": {"down": [t_s]}})


def told(group: Group) -> dict[str, dict[object, tuple[list[float], list[float]]]]:
    return {
        replica.name: {key: (t_s.tolist(), values.tolist()) for key, (t_s, values) in replica.samples.items()}
        for replica in group.replicas
    }


@given(rounds=ROUNDS, stopped_after=st.integers(0, 12), cut=st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_kept_is_what_was_read_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[Round], stopped_after: int, cut: bool
) -> None:
    """Also when another process went on after some rounds, and where a line of the first was cut off."""
    file = tmp_path_factory.mktemp("log") / "scrapes"
    seen, log = History(), ScrapeLog(file)
    for number, round_ in enumerate(rounds):
        read, t_s = read_of(round_, 100.0 + number), 100.0 + number
        if number == stopped_after:
            log = ScrapeLog(file)
            if cut:
                file.write_bytes((file.read_bytes() if file.exists() else b"") + b"eJyrVipR")
        log.keep(read, t_s)
        seen.add(read, t_s)
    kept = ScrapeLog(file).kept()
    assert kept is not None
    again = History()
    again.add(*kept)
    assert again.read_until_s == seen.read_until_s
    assert told(again.group("candidate", "c")) == told(seen.group("candidate", "c"))


def test_what_was_cut_off_takes_nothing_with_it_that_came_before_or_after(tmp_path: Path) -> None:
    file = tmp_path / "scrapes"
    first = ScrapeLog(file)
    for number in range(4):
        first.keep(read_of({"r": {"a_total": 10.0 + number}}, float(number)), float(number))
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 20])  # in the middle of the last line
    second = ScrapeLog(file)
    for number in range(5, 8):
        second.keep(read_of({"r": {"a_total": 10.0 + number}}, float(number)), float(number))
    kept = ScrapeLog(file).kept()
    assert kept is not None
    t_s, values = kept[0].samples["candidate"]["r"][key_of("a_total", {"x": "1"})]
    assert t_s.tolist() == [0, 1, 2, 5, 6, 7]
    assert values.tolist() == [10, 11, 12, 15, 16, 17]


def test_of_what_builds_on_a_lost_line_nothing_is_made_up(tmp_path: Path) -> None:
    file = tmp_path / "scrapes"
    log = ScrapeLog(file)
    for number in range(4):
        log.keep(read_of({"r": {"a_total": 10.0 + number}}, float(number)), float(number))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], lines[1][:20] + b"\n", *lines[2:]]))
    kept = ScrapeLog(file).kept()
    assert kept is not None
    assert kept[0].samples["candidate"]["r"][key_of("a_total", {"x": "1"})][0].tolist() == [0]


def test_a_disk_that_refuses_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot write"):
        ScrapeLog(tmp_path / "none" / "scrapes").keep(read_of({"r": {"c": 1.0}}, 1.0), 1.0)


def test_a_day_of_fifty_replicas_is_tens_of_megabytes(tmp_path: Path) -> None:
    """By the size of 40 rounds of emulated engines that serve 30 requests in each."""
    sizes = Sizes(
        block_tokens=128, device_blocks=512, max_model_len=8192, max_batched_tokens=8192, max_sequences=64,
        block_bytes=262144, host_bytes=1 << 28, host_chunks=1024, store_threshold=2, disk=True,
    )  # fmt: skip
    names = wanted_names(rules(SUSTAINED, P99, ERRORS))
    rng, engines = random.Random(1), [Counters() for _ in range(50)]
    log = ScrapeLog(tmp_path / "scrapes")
    numbers = [n for n, v in vars(engines[0]).items() if isinstance(v, int | float) and not n.startswith("_")]
    for round_ in range(40):
        t_s = 1_790_000_000.0 + 15 * round_
        samples = {}
        for place, counters in enumerate(engines):
            for number in numbers:
                setattr(counters, number, getattr(counters, number) + rng.randrange(5000))
            for _ in range(30):
                counters.ttft.observe(rng.lognormvariate(-1, 1))
            text = exposition(counters, sizes, model="m", created_s=1.0)
            samples[f"http://10.0.0.{place}:8000"] = samples_of(text, names, t_s + place / 1000)
        log.keep(Read({"candidate": samples}), t_s)
    lines = (tmp_path / "scrapes").read_bytes().splitlines()
    a_day = 5760 * sum(map(len, lines[1:])) / len(lines[1:])
    assert a_day < 70e6, f"{a_day / 1e6:.0f} MB"


def test_nothing_is_left_of_them_when_the_watch_is_over(tmp_path: Path) -> None:
    for name, candidate in (("good", GOOD), ("bad", BAD)):
        folder = tmp_path / name
        with gate(folder, Stored(Clock(), both(candidate), looks_back=False)) as watched:
            looks: list[bool] = []
            watched.watch(lambda _, file=folder / "state" / "scrapes", looks=looks: looks.append(file.exists()))  # type: ignore[misc]
        assert all(looks)
        assert looks
        assert not (folder / "state" / "scrapes").exists()


def test_series_of_one_scrape_share_their_times() -> None:
    """A day of fifty replicas would else take twice the memory."""
    history = History()
    for number in range(3):
        history.add(read_of({"r": {"a_total": 1.0, "b_total": 2.0}}, float(number)), float(number))
    one, other = (t_s for t_s, _ in history.group("candidate", "c").replicas[-1].samples.values())
    assert one is other
