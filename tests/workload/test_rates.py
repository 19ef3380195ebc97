"""Steps, ramps, sinusoids, on/off and bursts: the rate that was asked for, whatever the process."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from kvbench.errors import InputError
from kvbench.spec.rates import RateTarget, rate_in_words
from kvbench.spec.workload import Arrivals, Phase
from kvbench.workload.arrivals import arrival_times
from kvbench.workload.randomness import Stream
from kvbench.workload.rates import RateProfile, rate_profile

_ALARM = 1e-4
SINUSOID = {"sinusoid": {"mean": "6/s", "amplitude": "5/s", "period": "20s"}}
ON_OFF = {"on_off": {"rate": "12/s", "on": "5s", "off": "10s"}}
BURST = {"burst": {"size": 20, "every": "10s"}}
SPREAD = {"burst": {"size": 20, "every": "10s", "over": "2s", "base": "1/s"}}


def arrivals(rate: object, process: str = "poisson") -> Arrivals:
    own = {"gamma": {"cv": 2}} if process == "gamma" else {}
    return Arrivals.model_validate({"process": process, "rate": rate, **own})


def phases(*specs: dict[str, object]) -> list[Phase]:
    return [Phase.model_validate({"name": f"p{index}", **spec}) for index, spec in enumerate(specs)]


def profile(rate: object, *specs: dict[str, object]) -> RateProfile:
    return rate_profile(arrivals(rate), phases(*specs))


def times(rate: object, *specs: dict[str, object], process: str = "poisson", seed: int = 1) -> list[float]:
    return arrival_times(arrivals(rate, process), phases(*specs), Stream(seed, "rates"))


def rate_at(rate: object, t_s: float) -> float:
    """The asked rate written once more, without its inverse; of a crowd at one moment, what goes on beside it."""
    if not isinstance(rate, dict):
        return float(str(rate).removesuffix("/s"))
    ((kind, shape),) = rate.items()
    value = {key: float(str(text).removesuffix("/s").removesuffix("s")) for key, text in shape.items()}
    if kind == "sinusoid":
        return value["mean"] + value["amplitude"] * math.sin(2 * math.pi * t_s / value["period"])
    if kind == "on_off":
        return value["rate"] if t_s % (value["on"] + value["off"]) < value["on"] else value.get("base", 0.0)
    over, base = value.get("over", 0.0), value.get("base", 0.0)
    return base + (value["size"] / over if over and t_s % value["every"] < over else 0.0)


@pytest.mark.parametrize("rate", ["4/s", SINUSOID, ON_OFF, SPREAD], ids=["steady", "sinusoid", "on_off", "burst"])
@pytest.mark.parametrize("until_s", [3.0, 10.0, 44.4, 60.0])
def test_the_expected_count_is_the_integral_of_the_rate(rate: object, until_s: float) -> None:
    edges = [edge for edge in (2, 5, 10, 12, 15, 20, 22, 30, 32, 35, 40, 42, 45, 50, 52) if edge < until_s]
    whole, _ = integrate.quad(lambda t: rate_at(rate, t), 0, until_s, points=edges or None, limit=200)
    assert profile(rate, {"for": until_s}).expected == pytest.approx(whole, rel=1e-6)


shapes = st.one_of(
    st.floats(0.1, 50),
    st.builds(
        lambda mean, share, period: {"sinusoid": {"mean": mean, "amplitude": mean * share, "period": period}},
        *(st.floats(0.1, 50), st.floats(0.01, 1), st.floats(0.5, 100)),
    ),
    st.builds(
        lambda rate, on, off, base: {"on_off": {"rate": rate, "on": on, "off": off} | base},
        *(st.floats(1, 50), st.floats(0.5, 20), st.floats(0.5, 20)),
        st.sampled_from([{}, {"base": 0.5}]),
    ),
    st.builds(
        lambda size, every, more: {"burst": {"size": size, "every": every} | more},
        *(st.integers(1, 40), st.floats(2, 30)),
        st.sampled_from([{}, {"base": 0.5}, {"over": 1.5}, {"over": 1.5, "base": 2}]),
    ),
)
plans = st.lists(
    st.builds(
        lambda length, rate: {"for": length} | ({} if rate is None else {"rate": rate}),
        st.floats(0.5, 60),
        st.none() | shapes | st.builds(lambda to: {"to": to}, st.floats(0.1, 50)),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(shapes, plans, st.lists(st.floats(0, 0.999999), min_size=2, max_size=8))
def test_the_inverse_is_the_inverse_and_never_goes_back(rate: object, plan: list, shares: list[float]) -> None:
    made = profile(rate, *plan)
    end_s = sum(part["for"] for part in plan)
    found = [made.time_of(made.expected * share) for share in sorted(shares)]
    assert all(0 <= t_s < end_s for t_s in found)
    assert all(one <= other for one, other in pairwise(found))
    for share, t_s in zip(sorted(shares), found, strict=True):
        # as many as that are expected by then, and in a round cut off just before, no more
        before, after = (_expected_by(made, plan, rate, moment) for moment in (t_s - 1e-6, t_s + 1e-6))
        slack = 1e-6 + 1e-9 * made.expected
        assert before - slack <= made.expected * share <= after + slack


def test_next_to_nothing_is_expected_at_once_where_a_ramp_begins_at_zero() -> None:
    assert profile(BURST, {"for": "3s", "rate": {"to": 0.5}}).time_of(5e-324) == 0.0


def _expected_by(made: RateProfile, plan: list, rate: object, t_s: float) -> float:
    """Of the same plan, cut off at `t_s`: what is left of a phase may be less than a file may say."""
    cut: list[Phase] = []
    start_s = 0.0
    for phase in phases(*plan):
        length = min(phase.for_s, t_s - start_s)
        if length <= 0:
            break
        end = phase.rate
        if isinstance(end, RateTarget):
            before = rate_profile(arrivals(rate), cut).spans[-1].end_rate if cut else _first_rate(rate)
            reached = before + (end.to - before) * length / phase.for_s
            end = RateTarget.model_construct(to=max(reached, 1e-12))
        cut.append(phase.model_copy(update={"for_s": length, "rate": end}))
        start_s += phase.for_s
    return rate_profile(arrivals(rate), cut).expected if cut else 0.0


def _first_rate(rate: object) -> float:
    """The rate with which a shape begins, a crowd at one moment aside."""
    if isinstance(rate, dict) and "burst" in rate:
        return float(rate["burst"].get("base", 0.0))
    return rate_at(rate, 0.0)


def test_a_step_changes_the_rate_at_once() -> None:
    found = times(2, {"for": "100s"}, {"for": "100s", "rate": "20/s"}, process="constant")
    assert Counter(t_s >= 100 for t_s in found) == {False: 200, True: 2000}
    assert [b - a for a, b in pairwise(found[:200])] == pytest.approx([0.5] * 199)
    assert [b - a for a, b in pairwise(found[201:])] == pytest.approx([0.05] * 1998)


def test_a_constant_process_has_bursts_of_exactly_their_size() -> None:
    found = times(BURST, {"for": "35s"}, process="constant")
    assert Counter(found) == {0.0: 20, 10.0: 20, 20.0: 20, 30.0: 20}
    spread = times({"burst": {"size": 20, "every": "10s", "over": "2s"}}, {"for": "20s"}, process="constant")
    assert spread == pytest.approx([start + 0.1 * k for start in (0, 10) for k in range(20)])


def test_poisson_bursts_have_poisson_sizes() -> None:
    sizes = Counter(times(BURST, {"for": "10000s"}))
    assert set(sizes) <= {10.0 * k for k in range(1000)}
    found = [sizes[10.0 * k] for k in range(1000)]
    low, high = stats.poisson(20 * 1000).ppf([_ALARM / 2, 1 - _ALARM / 2])
    assert low <= sum(found) <= high
    dispersion = sum((size - 20) ** 2 for size in found) / 20
    assert _ALARM / 2 < stats.chi2(1000).cdf(dispersion) < 1 - _ALARM / 2


def test_nothing_comes_while_off() -> None:
    found = times(ON_OFF, {"for": "600s"})
    assert all(t_s % 15 < 5 for t_s in found)
    low, high = stats.poisson(12 * 200).ppf([_ALARM / 2, 1 - _ALARM / 2])
    assert low <= len(found) <= high
    base = times({"on_off": {"rate": "12/s", "on": "5s", "off": "10s", "base": "3/s"}}, {"for": "600s"})
    off = sum(t_s % 15 >= 5 for t_s in base)
    low, high = stats.poisson(3 * 400).ppf([_ALARM / 2, 1 - _ALARM / 2])
    assert low <= off <= high


def counted(rate: object, for_s: int) -> Callable[[float], float]:
    """Arrivals expected by a time, summed up in steps of 5 ms."""
    below = [0.0]
    for step in range(for_s * 200):
        below.append(below[-1] + rate_at(rate, step * 0.005 + 0.0025) * 0.005)

    def until(t_s: float) -> float:
        place = min(int(t_s / 0.005), for_s * 200 - 1)
        return below[place] + (below[place + 1] - below[place]) * (t_s / 0.005 - place)

    return until


@pytest.mark.parametrize("rate", [SINUSOID, ON_OFF, SPREAD], ids=["sinusoid", "on_off", "burst"])
def test_a_poisson_process_of_any_shape_is_the_one_that_was_asked_for(rate: object) -> None:
    # given the count, the times of a Poisson process are independent draws from its rate
    found, until = times(rate, {"for": "400s"}), counted(rate, 400)
    assert stats.kstest([until(t_s) / until(400) for t_s in found], stats.uniform().cdf).pvalue > _ALARM
    low, high = stats.poisson(until(400)).ppf([_ALARM / 2, 1 - _ALARM / 2])
    assert low <= len(found) <= high
    # and its gaps in operational time are those of the unit process, which others of the same rate do not have
    assert exponential_p(found, until) > _ALARM


@pytest.mark.parametrize("process", ["constant", "gamma"])
@pytest.mark.parametrize("rate", [SINUSOID, ON_OFF, SPREAD], ids=["sinusoid", "on_off", "burst"])
def test_that_test_rejects_another_process_of_the_same_rate(rate: object, process: str) -> None:
    """Given as many seconds of it; gamma with a cv of 2."""
    found, until = times(rate, {"for": "400s"}, process=process), counted(rate, 400)
    assert len(found) == pytest.approx(until(400), rel=0.25)
    assert exponential_p(found, until) < _ALARM


def exponential_p(found: Sequence[float], until: Callable[[float], float]) -> float:
    """Of the test whether gaps in operational time are exponential with mean 1; nothing is fitted."""
    gaps = [until(later) - until(earlier) for earlier, later in pairwise(found)]
    return float(stats.kstest(gaps, stats.expon().cdf).pvalue)


@pytest.mark.parametrize("rate", [SINUSOID, SPREAD], ids=["sinusoid", "burst"])
def test_gamma_gaps_are_gamma_in_operational_time(rate: object) -> None:
    found, until = times(rate, {"for": "400s"}, process="gamma"), counted(rate, 400)
    gaps = [until(later) - until(earlier) for earlier, later in pairwise(found)]
    assert stats.kstest(gaps, stats.gamma(1 / 4, scale=4).cdf).pvalue > _ALARM


# clocks and chunks


def test_the_clock_of_the_arrivals_runs_on_through_phases_and_that_of_a_phase_is_its_own() -> None:
    through = times(ON_OFF, {"for": "8s"}, {"for": "52s"}, process="constant")
    assert all(t_s % 15 < 5 for t_s in through)
    own = times("1/s", {"for": "8s"}, {"for": "45s", "rate": ON_OFF}, process="constant")
    assert all((t_s - 8) % 15 < 5 for t_s in own if t_s >= 8)
    assert len(own) == 8 + 3 * 60


@settings(max_examples=30, deadline=None)
@given(shapes, st.floats(1, 59), st.sampled_from(["poisson", "constant", "gamma"]))
def test_cutting_a_phase_in_two_changes_nothing(rate: object, at_s: float, process: str) -> None:
    whole = times(rate, {"for": 60.0}, process=process)
    parts = times(rate, {"for": at_s}, {"for": 60.0 - at_s}, process=process)
    # rounding may move the last arrival over the edge of the round
    assert abs(len(whole) - len(parts)) <= 1
    assert parts[: len(whole)] == pytest.approx(whole[: len(parts)], abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(shapes, st.sampled_from(["poisson", "constant", "gamma"]))
def test_a_longer_round_begins_like_the_shorter_one(rate: object, process: str) -> None:
    short, long = (times(rate, {"for": 30.0}, *more, process=process) for more in ((), ({"for": 30.0},)))
    assert long[: len(short)] == short


def test_a_ramp_goes_on_from_where_a_shape_ended() -> None:
    swinging = {"for": "5s", "rate": SINUSOID}  # a quarter of its period: at the top
    made = profile("1/s", swinging, {"for": "10s", "rate": {"to": "1/s"}})
    assert (made.spans[1].start_rate, made.spans[1].end_rate) == pytest.approx((11, 1))
    made = profile(BURST, {"for": "10s", "rate": {"to": "4/s"}})
    assert (made.spans[0].start_rate, made.expected) == (0, 20)
    assert times(BURST, {"for": "10s", "rate": {"to": "4/s"}}, process="constant")[0] == 0.0


def test_a_shape_that_repeats_without_end_is_a_slip_of_a_unit() -> None:
    with pytest.raises(InputError, match="repeats"):
        profile({"on_off": {"rate": 1, "on": "5us", "off": "5us"}}, {"for": "1h"})


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_times_are_the_same_in_every_process_to_the_last_bit(hash_seed: str) -> None:
    program = (
        "import json, sys\n"
        "from kvbench.spec.workload import Arrivals, Phase\n"
        "from kvbench.workload.arrivals import arrival_times\n"
        "from kvbench.workload.randomness import Stream\n"
        "arrivals, phases = json.load(sys.stdin)\n"
        "phases = [Phase.model_validate(phase) for phase in phases]\n"
        "times = arrival_times(Arrivals.model_validate(arrivals), phases, Stream(7, 'far away'))\n"
        "print(len(times), *(times[k].hex() for k in (0, len(times) // 2, -1)))"
    )
    asked = (
        {"process": "gamma", "gamma": {"cv": 1.5}, "rate": SINUSOID},
        [
            {"name": "a", "for": "50s"},
            {"name": "b", "for": "50s", "rate": ON_OFF},
            {"name": "c", "for": "50s", "rate": SPREAD},
        ],
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
    )
    assert ran.stdout.split() == PINNED


PINNED = ["715", "0x1.3ffda7c5d7550p-4", "0x1.9a556028db36fp+5", "0x1.2b75e8aaf5d18p+7"]


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ("4/s", "4/s"),
        (SINUSOID, "6/s ± 5/s every 20 s"),
        (ON_OFF, "12/s for 5 s, then nothing for 10 s"),
        (BURST, "20 at once every 10 s"),
        (SPREAD, "20 within 2 s every 10 s, 1/s besides"),
        ({"to": "9/s"}, "to 9/s"),
    ],
)
def test_a_rate_in_words(rate: object, words: str) -> None:
    phase = Phase.model_validate({"name": "p", "for": "1s", "rate": rate})
    assert phase.rate is not None
    assert rate_in_words(phase.rate) == words
